"""Several nodes as one pipeline: how they are linked, and how a request goes through them."""
