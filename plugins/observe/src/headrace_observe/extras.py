"""Libraries of the extras: imported when used, named with the extra when missing."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.errors import MissingDependencyError

__all__ = ["library"]


def library(name: str, extra: str | None, purpose: str) -> Any:
    """Import a library of an extra.

    Args:
        name: The module to import.
        extra: The extra of headrace-observe that installs the library. None: no extra is for it, and it is named itself.
        purpose: What needs the library, for the error.

    Raises:
        MissingDependencyError: The library is not installed. The error names the extra.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = name.partition(".")[0]
        package = missing if extra is None else f'"headrace-observe[{extra}]"'
        raise MissingDependencyError(
            f"{purpose} needs {missing}, which is not installed",
            distribution="headrace-observe",
            hint=f"Install it: pip install {package}",
        ) from error
