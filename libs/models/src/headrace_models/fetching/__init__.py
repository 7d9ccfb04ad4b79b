"""How files come to this machine that a configuration names by addresses: addresses, limits, cache, digests."""
