"""What the distribution of a backend requires, compared with the libraries that the backend loads."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["distributions_of", "not_required"]


def distributions_of(names: Iterable[str], modules: Iterable[str]) -> list[str]:
    """Return the installed distributions among ``names``, and those that the top-level modules belong to, sorted."""
    by_module = packages_distributions()
    found = {*names, *(one for module in modules for one in by_module.get(module, ()))}
    return sorted({canonicalize_name(one) for one in found if _is_installed(one)})


def not_required(loaded: Iterable[str], distributions: Iterable[str]) -> list[str]:
    """Return which of the loaded top-level modules none of ``distributions`` brings.

    A distribution brings what it requires, with any of its extras, and what those require in turn.
    """
    brought = _brought(distributions)
    by_module = packages_distributions()
    return [
        one
        for one in loaded
        if not brought & {canonicalize_name(name) for name in by_module.get(one, ())}
    ]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):  # an empty name, a module or a file
        return False
    return True


def _brought(distributions: Iterable[str]) -> set[str]:
    """Return the names of distributions and of all that they require."""
    todo: list[tuple[str, frozenset[str]]] = []
    for name in distributions:
        extras = distribution(name).metadata.get_all("Provides-Extra") or ()
        todo.append((canonicalize_name(name), frozenset(extras)))
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += _required(*one)
    return {name for name, _ in seen}


def _required(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield what a distribution requires here, with the extras that it asks for; nothing where it is not installed."""
    if not _is_installed(name):
        return
    for text in distribution(name).requires or ():
        try:
            wanted = Requirement(text)
        except InvalidRequirement:  # of a distribution from before the rules for these texts
            continue
        marker = wanted.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield canonicalize_name(wanted.name), frozenset(wanted.extras)
