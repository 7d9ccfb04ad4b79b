"""One request at a node, from its entry to its one outcome, and who waits for it."""
