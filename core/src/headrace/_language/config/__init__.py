"""The configuration as tables of texts: read, merged and sorted by node; names have no meaning yet."""
