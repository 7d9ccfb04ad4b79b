"""Which node comes next for a request."""
