"""Texts for Headrace: `Tokenize` before a model, `Pool` and `Normalize` behind it.

Nothing is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_text.tokenize import Tokenize
    from headrace_text.vectors import Normalize, Pool

__version__ = "0.1.0"

__all__ = ["Normalize", "Pool", "Tokenize", "__version__"]

_HOME = {"Normalize": "vectors", "Pool": "vectors", "Tokenize": "tokenize"}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module 'headrace_text' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headrace_text.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
