"""Prints the folders and files of tests that a change can reach, one on each line. Nothing where it can reach all.

With ``--changed`` it prints the paths that have changed.

A change is what differs from the commit at which this branch has left ``main``, with files that git does not know yet. A change in
one or more plugins, or in documents, reaches:

- the tests of these plugins;
- each file of tests that names such a plugin, a backend of it, or a document that does;
- each file in ``tests/`` that names no plugin and no document, since it may look at all of them.

Every other change reaches all tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from distributions import ROOT, project

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["changed", "reached"]

_MAINS = ("origin/HEAD", "origin/main", "main")
_DOCUMENT = re.compile(r"[\w./-]+\.md\b")
_ALL_DOCUMENTS = re.compile(r"\*\.md\b|\bprose\b")
_OWN = "README.md"
"""In the tests of a distribution, its own."""


def changed() -> list[str]:
    """Return the paths that this branch and its folder change."""
    base = next((found for one in _MAINS if (found := _git("merge-base", "HEAD", one))), ["HEAD"])
    return [
        *_git("diff", "--name-only", *base),
        *_git("ls-files", "--others", "--exclude-standard"),
    ]


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def reached(paths: list[str]) -> list[str]:
    """Return the tests that a change of these paths can reach; none stands for all."""
    plugins = {file.parent.name: file.parent for file in ROOT.glob("plugins/*/pyproject.toml")}
    parts = [PurePosixPath(path).parts for path in paths]
    touched = sorted({one[1] for one in parts if one[0] == "plugins" and one[1] in plugins})
    own = tuple(f"plugins/{name}/" for name in touched)
    documents = {PurePosixPath(path).name for path in paths if path.endswith(".md")}
    if not paths or any(not path.startswith(own) and not path.endswith(".md") for path in paths):
        return []
    names = _any_of(plugins[name] for name in touched)
    every = _any_of(plugins.values())
    found = [f"{folder}tests" for folder in own]
    for path in _git("ls-files", "*/tests/test_*.py", "tests/test_*.py"):
        if path.startswith(own):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        follows = {
            one for one in _DOCUMENT.findall(text) if one != _OWN or path.startswith("tests/")
        }
        looks_at_all = path.startswith("tests/") and not follows and not every.search(text)
        looks_at_all |= bool(documents) and _ALL_DOCUMENTS.search(text) is not None
        if (
            looks_at_all
            or documents.intersection(PurePosixPath(one).name for one in follows)
            or any(names.search(one) for one in (text, *map(_text_of, sorted(follows))))
        ):
            found.append(path)
    return found


def _any_of(folders: Iterable[Path]) -> re.Pattern[str]:
    """Return a pattern of the names by which tests use plugins: their own, and those of their backends."""
    names = {"(?!)"}  # which nothing has
    for folder in folders:
        about = project(folder)
        points = about.get("entry-points", {}).get("headrace.backends", {})
        names |= {about["name"], about["name"].replace("-", "_"), f"plugins/{folder.name}", *points}
    return re.compile(rf"\b(?:{'|'.join(sorted(names))})\b")


def _text_of(document: str) -> str:
    """Return the text of a document of the repository, or of the folder ``docs``."""
    found = [one for one in (ROOT / document, ROOT / "docs" / document) if one.is_file()]
    return "\n".join(one.read_text(encoding="utf-8") for one in found)


if __name__ == "__main__":
    only_changed = "--changed" in sys.argv[1:]
    print("\n".join(changed() if only_changed else reached(changed())), end="")
