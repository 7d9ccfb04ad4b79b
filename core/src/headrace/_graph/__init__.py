"""Several nodes as one pipeline: how the nodes are linked, and how a request goes through them."""
