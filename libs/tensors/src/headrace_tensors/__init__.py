"""What the engines of Headrace share: ports, requests as tensors, rows of batches."""

__version__ = "0.1.0"

__all__ = ["__version__"]
