"""A Headrace backend that runs on another server of the Open Inference Protocol."""

__version__ = "0.1.0"

__all__ = ["__version__"]
