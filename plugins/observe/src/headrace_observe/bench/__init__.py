"""Measures: loads on a pipeline, a backend alone, a part of an expression; what they use of the machine; plots and rows."""
