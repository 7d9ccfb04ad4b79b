"""Devices: the place of an instance, its streams and memory, and copies to and from it."""
