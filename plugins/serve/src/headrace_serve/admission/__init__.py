"""Who may call, and how much each caller may use: hosts and origins, keys, limits, the account of memory."""
