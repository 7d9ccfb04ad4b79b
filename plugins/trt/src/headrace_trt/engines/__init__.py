"""Engines: a loaded plan, its layers, its inputs and outputs."""
