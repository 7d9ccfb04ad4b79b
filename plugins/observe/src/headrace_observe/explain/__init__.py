"""Explains why a request was slow: the causes of its time, and settings that would have helped."""
