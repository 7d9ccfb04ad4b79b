"""What the distribution of a backend requires, compared with the libraries that the backend loads."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import lru_cache
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    distributions,
    packages_distributions,
)
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["distributions_by_module", "distributions_of", "not_required"]


def distributions_by_module(modules: Iterable[str]) -> dict[str, set[str]]:
    """Return for each top-level module the names of the distributions that bring it, installed from a wheel or editable."""
    recorded, folders = _installed(tuple((path, _changed(path)) for path in sys.path))
    return {
        name: {
            canonicalize_name(name)
            for name in recorded.get(name) or _editable(name, folders) or _namesake(name)
        }
        for name in modules
    }


@lru_cache(maxsize=4)
def _installed(_: tuple[tuple[str, int], ...]) -> tuple[Mapping[str, list[str]], dict[Path, str]]:
    """Return what is installed along ``sys.path``: to read all metadata takes a second, and a backend is asked many times."""
    return packages_distributions(), _editable_folders()


def _changed(folder: str) -> int:
    """Return when something was last installed into a folder, or removed from it."""
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def _editable_folders() -> dict[Path, str]:
    """Return the folder of each distribution that is installed editable: its RECORD does not name its modules."""
    folders = {}
    for installed in distributions():
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            path = Path(url2pathname(urlsplit(origin["url"]).path)).resolve()
            folders[path] = installed.metadata["Name"]
    return folders


def _editable(module: str, folders: dict[Path, str]) -> list[str]:
    """Return the distribution in whose folder a module lies, the innermost; the module is not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except (
        ImportError,
        ValueError,
    ):  # some libraries put modules without a spec into `sys.modules`
        return []
    if spec is None:
        return []
    places = [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
    parents = [parent for place in places for parent in Path(place).resolve().parents]
    inner = max(
        (parent for parent in parents if parent in folders),
        key=lambda p: len(p.parts),
        default=None,
    )
    return [] if inner is None else [folders[inner]]


def _namesake(module: str) -> list[str]:
    return [module] if _is_installed(module) else []


def distributions_of(names: Iterable[str], modules: Iterable[str]) -> list[str]:
    """Return the installed distributions among ``names``, and those that the top-level modules belong to, sorted."""
    needs = {*names}.union(*distributions_by_module(modules).values())
    return sorted({canonicalize_name(name) for name in needs if _is_installed(name)})


def not_required(loaded: Iterable[str], requiring: Iterable[str]) -> list[str]:
    """Return which of the loaded top-level modules none of the distributions ``requiring`` brings.

    A distribution brings what it requires, with any of its extras, and what those require in turn.
    """
    brought = _brought(requiring)
    return [module for module, by in distributions_by_module(loaded).items() if not brought & by]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):  # an empty name, a module or a file
        return False
    return True


def _brought(names: Iterable[str]) -> set[str]:
    """Return the names of distributions and of all that they require."""
    todo: list[tuple[str, frozenset[str]]] = []
    for name in names:
        extras = distribution(name).metadata.get_all("Provides-Extra") or ()
        todo.append((canonicalize_name(name), frozenset(extras)))
    needs: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirer = todo.pop()
        if requirer not in needs:
            needs.add(requirer)
            todo += _required(*requirer)
    return {name for name, _ in needs}


def _required(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield what a distribution requires here, with the extras that it asks for; nothing where it is not installed."""
    if not _is_installed(name):
        return
    for text in distribution(name).requires or ():
        try:
            need = Requirement(text)
        except InvalidRequirement:  # of a distribution from before the rules for these texts
            continue
        marker = need.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield canonicalize_name(need.name), frozenset(need.extras)
