"""Named models with versions over Headrace: updates without a lost request."""

__version__ = "0.1.0"

__all__ = ["__version__"]
