"""What the scripts that make a page of the documents from the code have in common."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(page: Path, text: str) -> int:
    """Write a page; with ``--check`` only compare it, and give 1 where it is not what the code says."""
    if "--check" in sys.argv[1:]:
        return 0 if page.is_file() and page.read_text(encoding="utf-8") == text else 1
    page.write_text(text, encoding="utf-8")
    print(f"wrote {page}")
    return 0


def write_or_check_all(pages: dict[Path, str], folder: Path) -> int:
    """Write an index and the pages of a folder, where no other page stays; with ``--check`` only compare them.

    Args:
        pages: The text of each page.
        folder: Holds all of them but the index.
    """
    if "--check" in sys.argv[1:]:
        return 0 if stale(pages, folder) == [] else 1
    folder.mkdir(exist_ok=True)
    for page in folder.glob("*.md"):
        if page not in pages:
            page.unlink()
    return max(write_or_check(page, text) for page, text in pages.items())


def stale(pages: dict[Path, str], folder: Path) -> list[str]:
    """Return the names of pages that are not what the code says, and of those in the folder that it has none of."""
    others = sorted(one.name for one in folder.glob("*.md") if one not in pages)
    wrong = [
        page.name
        for page, text in pages.items()
        if not page.is_file() or page.read_text(encoding="utf-8") != text
    ]
    return [*wrong, *others]
