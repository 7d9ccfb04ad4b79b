"""The composition expression: from text to tree and back, with its placeholders."""
