"""What is wrong with installed plugins, and what to do about it."""
