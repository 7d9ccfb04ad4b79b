"""How changed files become updates: the watcher, and what says whether a file is whole or gone."""
