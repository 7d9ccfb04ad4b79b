"""The contract with authors of plugins: base classes of backends and policies, contexts, options."""
