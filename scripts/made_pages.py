"""Make the pages of docs that say what the code, results of benchmarks and examples say: python scripts/made_pages.py.

Git ignores them, and no page that git keeps has a link to them. They stand in docs, and the site has them beside the others.
The libraries of backends are not needed: requirements/docs.txt has all that is.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("api", "catalogue", "gallery", "look_up", "performance", "reference", "rules")
_MADE = re.compile(r"docs/((api|catalogue|look_up|performance|rules|words)[./]|gallery\.md$)")


def is_made(path: Path) -> bool:
    """Return whether a file of the repository is one that this script makes, now or formerly."""
    return bool(_MADE.match(path.relative_to(ROOT).as_posix()))


def pages() -> dict[Path, str]:
    """Return the text of every page."""
    made: dict[Path, str] = {}
    for name in SCRIPTS:
        made.update(importlib.import_module(name).pages())
    return made


def main() -> None:
    """Write all pages, and remove those that are made no more."""
    made = pages()
    for path in (ROOT / "docs").rglob("*"):
        if is_made(path) and path.is_file() and path not in made:
            path.unlink()
    for path, text in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
