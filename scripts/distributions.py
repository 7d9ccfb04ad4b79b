"""The distributions of this repository as if they were installed: metadata without an installation.

python scripts/distributions.py FOLDER     write a .dist-info per distribution, and print PYTHONPATH
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]

__all__ = ["ROOT", "folders", "project", "sources", "tomllib", "write_metadata"]


def folders() -> list[Path]:
    """Return the folders of all distributions, each after those that it may need."""
    own = [ROOT / name for name in ("core", "libs/formats", "cli", "testing")]
    patterns = ("libs/*/pyproject.toml", "plugins/*/pyproject.toml")
    others = [path.parent for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return own + [one for one in others if one not in own]


def project(folder: Path) -> dict[str, Any]:
    """Return the table ``project`` of a distribution."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def sources() -> list[Path]:
    """Give the folders that hold their packages."""
    return [folder / "src" for folder in folders()]


def write_metadata(target: Path) -> None:
    """Write a ``.dist-info`` for each distribution, with the fields that an installer takes from its project."""
    for folder in folders():
        table = project(folder)
        name = table["name"].replace("-", "_")
        info = target / f"{name}-{table['version']}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        lines = ["Metadata-Version: 2.1", f"Name: {table['name']}"]
        lines.append(f"Version: {table['version']}")
        lines += [f"Requires-Dist: {one}" for one in table.get("dependencies", ())]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(_entry_points(table), encoding="utf-8")
        (info / "INSTALLER").write_text("headrace scripts\n", encoding="utf-8")
        (info / "RECORD").write_text("", encoding="utf-8")


def _entry_points(table: dict[str, Any]) -> str:
    groups = dict(table.get("entry-points", {}))
    if "scripts" in table:
        groups["console_scripts"] = table["scripts"]
    parts = []
    for group, entries in groups.items():
        parts.append(f"[{group}]")
        parts += [f"{name} = {value}" for name, value in entries.items()]
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    write_metadata(Path(sys.argv[1]))
    print(os.pathsep.join(map(str, [Path(sys.argv[1]).resolve(), *sources()])))
