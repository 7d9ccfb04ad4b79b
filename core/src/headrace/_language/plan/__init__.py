"""From a configuration to a checked plan, in which every name has its meaning, options and range."""
