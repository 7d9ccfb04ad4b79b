"""Tunes: goals, the space of keys and values, the search in it, and its trials."""
