"""Certifies: results alone and beside others, what a configuration runs here, and nodes that require it."""
