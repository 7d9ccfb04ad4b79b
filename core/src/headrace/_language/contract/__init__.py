"""The contract with authors of plugins.

Base classes of backends and policies, contexts, options.
"""
