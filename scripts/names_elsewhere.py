"""Write the table of names that this repository's plugins bring, so that core can say what to install.

python scripts/names_elsewhere.py            write the table
python scripts/names_elsewhere.py --check    exit 1 when it is not what the plugins say

Backends are read from the entry points in each ``pyproject.toml``; definitions and probes are what the hooks give.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any

from generated import write_or_check

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "core" / "src" / "headrace" / "_registry" / "names_elsewhere.py"

HEAD = '''"""Names that plugins of Headrace's repository bring, by distribution; made by `python scripts/names_elsewhere.py`."""

from __future__ import annotations
'''


def names() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the backends, definitions among them, and the probes of each distribution."""
    backends: dict[str, list[str]] = {}
    probes: dict[str, list[str]] = {}
    for path in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        points: dict[str, Any] = project.get("entry-points", {})
        hooks = [*map(importlib.import_module, points.get("headrace.plugins", {}).values())]
        given = [
            {name for one in hooks for name in getattr(one, f"headrace_{hook}", dict)()}
            for hook in ("definitions", "probes")
        ]
        backends[project["name"]] = sorted({*points.get("headrace.backends", ()), *given[0]})
        probes[project["name"]] = sorted(given[1])
    return backends, probes


def table() -> str:
    """Return the text of the module that core imports."""
    found = zip(("BACKENDS", "PROBES"), names(), strict=True)
    return HEAD + "".join(_written(name, by) for name, by in found)


def _written(name: str, by: dict[str, list[str]]) -> str:
    lines = [f"\n{name} = {{"]
    for distribution, some in by.items():
        rows = textwrap.wrap(" ".join(some), 84)
        if len(rows) == 1:
            lines.append(f'    "{distribution}": "{rows[0]}",')
        elif rows:
            lines += [f'    "{distribution}": (', *(f'        "{row} "' for row in rows), "    ),"]
    return "\n".join([*lines, "}\n"])


if __name__ == "__main__":
    sys.exit(write_or_check(TABLE, table()))
