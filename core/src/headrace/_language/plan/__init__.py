"""From a configuration to a checked plan: each name has a meaning, options and a range."""
