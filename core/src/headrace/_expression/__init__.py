"""The composition expression: text to tree, tree to text, and its placeholders."""
