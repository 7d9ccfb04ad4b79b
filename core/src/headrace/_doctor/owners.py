"""Which distributions bring a package: none, another than the one asked for, or two into one folder."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Owners", "is_there"]


def is_there(distribution: str) -> bool:
    """Tell whether a package named like a distribution that is not installed can be imported.

    Builds of one library (``lib`` and ``lib-gpu``) are distributions that take each other's place.
    """
    try:
        found = importlib.util.find_spec(canonicalize_name(distribution).replace("-", "_"))
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None


class Owners:
    """The distributions of each package that is installed, looked up when they are first needed."""

    def __init__(self) -> None:
        self._by_package: Mapping[str, list[str]] | None = None

    def rivals(self, distribution: str) -> Iterator[tuple[str, list[str]]]:
        """Give each package that a distribution and others install into one folder, with all names."""
        if self._by_package is None:
            from importlib.metadata import packages_distributions

            self._by_package = packages_distributions()
        name = canonicalize_name(distribution)
        for package, brought in self._by_package.items():
            names = sorted({canonicalize_name(one) for one in brought})
            # Several distributions may share a namespace package, which has no file of its own.
            if name in names and len(names) > 1 and is_there(package):
                yield package, list(names)
