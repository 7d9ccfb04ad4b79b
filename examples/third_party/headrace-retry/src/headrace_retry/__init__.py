"""The Headrace container Retry."""
