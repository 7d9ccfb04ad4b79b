"""What a plugin requires, compared with what is installed, from metadata alone."""

from __future__ import annotations

import functools
import importlib.util
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement

__all__ = ["missing_requirements"]

_FOLDER = re.compile(r"[^-]+-([^-]+)\.dist-info")


def missing_requirements(requires: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Give reason and remedy for each requirement that is not met here; nothing is imported.

    The version of a library is read from the name of its ``.dist-info`` folder where that has one,
    so that its metadata need not be opened.

    Args:
        requires: Requirements as in ``Requires-Dist``; those of core itself are left out.
    """
    from importlib.metadata import distributions

    for wanted in filter(None, map(_parsed, requires)):
        found = next(iter(distributions(name=wanted.name)), None)
        if found is None and _can_be_imported(wanted.name):
            continue  # another build of that library, `lib-gpu` for `lib`, has taken its place
        wish = f"{wanted.name}{wanted.specifier}"
        remedy = f'Install it: pip install "{str(wanted).partition(";")[0].strip()}"'
        if found is None:
            yield f"it requires {wish}, which is not installed", remedy
        elif not _contains(wanted, version := _version(found)):
            yield f"it requires {wish}, installed is {version}", remedy


def _version(found: Distribution) -> str:
    folder = _FOLDER.fullmatch(getattr(getattr(found, "_path", None), "name", ""))
    return folder[1] if folder is not None else found.version


def _contains(wanted: Requirement, installed: str) -> bool:
    from packaging.version import InvalidVersion

    try:
        return wanted.specifier.contains(installed, prereleases=True)
    except InvalidVersion:
        return True  # a version from before there were rules for them cannot be compared


def _can_be_imported(distribution: str) -> bool:
    from packaging.utils import canonicalize_name

    try:
        found = importlib.util.find_spec(canonicalize_name(distribution).replace("-", "_"))
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None


@functools.cache
def _parsed(text: str) -> Requirement | None:
    """Give what a plugin requires besides core, or None for what is not for here or now."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return None  # what is no requirement asks for nothing that could be missing
    if canonicalize_name(wanted.name) == "headrace":
        return None
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return None
    return wanted
