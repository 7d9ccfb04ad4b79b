"""Model repositories of Triton for Headrace, as they are.

Nothing is imported until it is used.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
