"""Running it: the server and its ports, signals and settings, several worker processes, what it logs."""
