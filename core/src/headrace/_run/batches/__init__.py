"""How the requests of a node become batches, and which thread runs them."""
