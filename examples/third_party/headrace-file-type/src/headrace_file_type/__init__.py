"""The Headrace backend FileType, which wraps Magika."""
