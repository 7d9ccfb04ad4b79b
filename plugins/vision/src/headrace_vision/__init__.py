"""Videos, cameras and pictures through one Headrace pipeline: ordered, tracked, saved, seen."""

__version__ = "0.1.0"

__all__ = ["__version__"]
