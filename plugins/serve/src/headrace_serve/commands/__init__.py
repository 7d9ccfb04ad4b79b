"""The commands ``headrace serve`` and ``headrace ui``."""
