"""Which distributions bring a package: two that write into one folder are one too many."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Owners"]


class Owners:
    """The distributions of each package that is installed, looked up when they are first needed."""

    def __init__(self) -> None:
        self._by_package: Mapping[str, list[str]] | None = None

    def rivals(self, requires: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Give each package that something required and others install into one folder, with all names."""
        if self._by_package is None:
            from importlib.metadata import packages_distributions

            self._by_package = packages_distributions()
        wanted = set(map(_name, requires))
        for package, brought in self._by_package.items():
            names = sorted({str(canonicalize_name(one)) for one in brought})
            # Several distributions may share a namespace package, which has no file of its own.
            if len(names) > 1 and wanted & set(names) and _has_a_file(package):
                yield package, names


def _name(requirement: str) -> str:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""


def _has_a_file(package: str) -> bool:
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None
