"""The APIs of other servers: a table of functions by route for each, and what finds these tables."""
