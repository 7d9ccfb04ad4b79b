"""Simulates: a pipeline in virtual time, made from a configuration and how long its batches take."""
