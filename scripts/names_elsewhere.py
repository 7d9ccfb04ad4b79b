"""Write the table of names that this repository's plugins bring, so that core can say what to install: python scripts/names_elsewhere.py.

Backends are read from the entry points in each ``pyproject.toml``; definitions, translated keys and words, probes and policies are what the hooks give.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "core" / "src" / "headrace" / "_registry" / "names_elsewhere.json"

HOOKS = {
    "backends": ("definitions", "rewriters"),
    "probes": ("probes",),
    "policies": ("batch_policies", "dispatch_policies"),
}
"""The hooks whose names stand in each table."""


def names() -> dict[str, dict[str, list[str]]]:
    """Return the tables: names by distribution. Definitions, and what is translated, stand among the backends."""
    tables: dict[str, dict[str, list[str]]] = {table: {} for table in HOOKS}
    for path in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        points: dict[str, Any] = project.get("entry-points", {})
        hooks = [*map(importlib.import_module, points.get("headrace.plugins", {}).values())]
        for name, of in HOOKS.items():
            given = {one for hook in of for module in hooks for one in _given(module, hook)}
            if name == "backends":
                given.update(points.get("headrace.backends", ()))
            tables[name][project["name"]] = sorted(given)
    return tables


def _given(module: Any, hook: str) -> dict[str, str]:
    """Return what a hook of a plugin's module gives, nothing where it has none."""
    return getattr(module, f"headrace_{hook}", dict)()  # type: ignore[no-any-return]


def table() -> str:
    """Return the text that core reads: in each table the distribution to install, by name."""
    tables = {
        table: {name: by for by, some in found.items() for name in some}
        for table, found in names().items()
    }
    return json.dumps(tables, indent=1) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
