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
