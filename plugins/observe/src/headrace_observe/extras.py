"""Libraries of the extras: imported when used, named with the extra when missing."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.errors import MissingDependencyError

__all__ = ["library"]


def library(name: str, extra: str, purpose: str) -> Any:
    """Import a library of an extra.

    Raises:
        MissingDependencyError: It is not installed; the error says which extra brings it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs {name.partition('.')[0]}, which is not installed",
            distribution="headrace-observe",
            hint=f'Install it: pip install "headrace-observe[{extra}]"',
        ) from error
