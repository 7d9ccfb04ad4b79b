"""The configuration as tables of texts: read, merged and sorted by node.

Names have no meaning yet.
"""
