"""From a plan to backends and instances: the factories of a blueprint."""
