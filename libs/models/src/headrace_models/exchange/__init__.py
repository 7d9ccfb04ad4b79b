"""How a new version of a model proves itself beside the old one: options, phase, comparison, judge."""
