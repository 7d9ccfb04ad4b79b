"""The configuration as text and tables: read, merged, sorted by node; nothing is looked up yet."""
