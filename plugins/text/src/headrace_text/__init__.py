"""Texts for Headrace: `Tokenize` before a model, `Pool`, `Normalize` and `Scores` behind it.

Nothing is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_text.tokenize import Tokenize
    from headrace_text.vectors import Normalize, Pool, Scores

__version__ = "0.1.0"

__all__ = ["Normalize", "Pool", "Scores", "Tokenize", "__version__"]

_HOME = {
    "tokenize": "Tokenize",
    "vectors": "Normalize Pool Scores",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
