"""From a configuration to a checked plan: what every name means, with its options and range."""
