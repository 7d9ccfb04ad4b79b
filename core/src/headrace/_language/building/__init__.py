"""Building backends and instances from a plan: the factories of a blueprint."""
