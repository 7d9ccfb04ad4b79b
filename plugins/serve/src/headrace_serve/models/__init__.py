"""Models by name: what is served under which name and version, and what a client is told of it."""
