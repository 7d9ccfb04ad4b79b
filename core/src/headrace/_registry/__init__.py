"""Which backends, definitions and policies there are, and which distribution brings each."""
