"""Which libraries an import would lack, told from the source: nothing is imported.

Only what stands at the beginning of a line is looked at, so an import inside ``try`` or ``if`` or a
function counts for nothing; and only whether its first part can be found. What else may go wrong in a
module only its import shows.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Lookup"]

_IMPORT = re.compile(r"^(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)


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
        return True  # a finder of somebody else that does not tell


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
