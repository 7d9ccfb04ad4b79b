"""What a plugin lacks here, from metadata and sources alone: nothing is imported.

Of a source only what stands at the beginning of a line is looked at, so an import inside ``try`` or
``if`` or a function counts for nothing; and only whether its first part can be found. What else may go
wrong in a module only its import shows.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from headrace._registry.discovery import is_core, requirement_here

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement


_FOLDER = re.compile(r"[^-]+-([^-]+)\.dist-info")
_IMPORT = re.compile(r"^(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)


# Requirements.


def missing_requirements(requires: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Give reason and remedy for each requirement that is not met here; nothing is imported.

    The version of a library is read from the name of its ``.dist-info`` folder where that has one,
    so that its metadata need not be opened.

    Args:
        requires: Requirements as in ``Requires-Dist``; those of core itself are left out.
    """
    from importlib.metadata import distributions

    for wanted in filter(None, map(_library, requires)):
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


def _library(text: str) -> Requirement | None:
    """Give what a plugin requires besides core, or None for what is not for here or now."""
    from packaging.requirements import InvalidRequirement

    try:
        wanted = requirement_here(text)
    except InvalidRequirement:
        return None  # what is no requirement asks for nothing that could be missing
    return None if wanted is None or is_core(wanted) else wanted


# Imports.


class Lookup:
    """Looks up modules and libraries, each once."""

    def __init__(self) -> None:
        self._found: dict[str, bool] = {}
        self._lacks: dict[Path, list[str]] = {}

    def lacking(self, module: str) -> list[str]:
        """Give the libraries that importing a module would not find; none for an unknown module."""
        return [name for source in _sources(module) for name in self._lacking_in(source)]

    def _lacking_in(self, source: Path) -> list[str]:
        if source not in self._lacks:
            try:
                text = source.read_text(encoding="utf-8")
            except (OSError, UnicodeError):
                text = ""
            suspects = {name for name in _IMPORT.findall(text) if not self._is_there(name)}
            # Such a line may stand in a text: the parser is asked when there is something to report.
            named = _imported(text) if suspects else []
            self._lacks[source] = [name for name in named if name in suspects]
        return self._lacks[source]

    def _is_there(self, name: str) -> bool:
        if name not in self._found:
            self._found[name] = name in sys.stdlib_module_names or _can_be_found(name)
        return self._found[name]


def _can_be_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return True  # a finder that another library installed cannot say


def _sources(module: str) -> Iterator[Path]:
    """Give the source files that importing a module runs: those of its packages, then its own."""
    locations: list[str] | None = None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        try:
            spec = (
                importlib.util.find_spec(name)
                if locations is None
                else PathFinder.find_spec(name, locations)
            )
        except (ImportError, ValueError):
            return
        if spec is None:
            return
        if spec.has_location and spec.origin is not None and spec.origin.endswith(".py"):
            yield Path(spec.origin)
        locations = list(spec.submodule_search_locations or ())


def _imported(text: str) -> list[str]:
    """Give the first part of every name that a module imports at its top level."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return []
    names: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            names.append(statement.module)
    return list(dict.fromkeys(name.partition(".")[0] for name in names))
