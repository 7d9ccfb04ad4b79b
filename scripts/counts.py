"""Count what there is to stand for: lines of code, distributions, commands, options and words.

python scripts/counts.py

A line counts where code stands on it: blank lines, comments and docstrings do not. Commands, their options and words
are those of `public_names.json`, which a test keeps true. A group is a command too, and ``--x/--no-x`` is one option.
"""

from __future__ import annotations

import ast
import functools
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from distributions import ROOT, folders

__all__ = ["halves", "lines_below", "lines_of", "public", "rooms"]

_NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)
_HAVE_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def lines_of(path: Path) -> int:
    """Return how many lines of a file hold code."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _HAVE_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def _below(folder: Path) -> list[Path]:
    return [one for one in sorted(folder.rglob("*.py")) if "{{" not in str(one)]


def lines_below(folder: Path) -> int:
    """Return how many lines of code stand below a folder."""
    return sum(map(lines_of, _below(folder)))


CORE = ROOT / "core" / "src" / "headrace"
KERNEL = ("_run", "_pickling", "_problem", "_texts", "blueprint", "errors", "keys")
"""The rooms of core that are the kernel, which runs. All others are the language, which composes."""


def rooms() -> dict[str, int]:
    """Return the lines of code of each room of core: a folder, one in ``_language``, or a module beside them."""
    lines = Counter[str]()
    for path in _below(CORE):
        parts = path.relative_to(CORE).with_suffix("").parts
        lines["/".join(parts[: 2 if parts[0] == "_language" else 1])] += lines_of(path)
    return dict(lines)


def halves() -> dict[str, int]:
    """Return the lines of code of the two halves of core."""
    lines = Counter[str]()
    for room, count in rooms().items():
        lines["kernel" if room in KERNEL else "language"] += count
    return dict(lines)


def public() -> dict[str, int]:
    """Return how many distributions, commands, options of commands, and words there are."""
    names = json.loads((ROOT / "scripts" / "public_names.json").read_text(encoding="utf-8"))
    commands = _commands(names["commands"])
    options = [
        name
        for taken in commands
        for name in taken
        if name.startswith("--") and name.replace("--no-", "--", 1) not in taken.keys() - {name}
    ]
    return {
        "distributions": len(folders()),
        "commands": len(commands),
        "options of commands": len(options),
        "words": len(names["backends"]),
    }


def _commands(names: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each command takes, and each one below it."""
    found = [one for one in names.values() if isinstance(one, dict)]
    return found + [inner for one in found for inner in _commands(one)]


def main() -> None:
    """Print all counts, the largest first."""
    core, shown = (
        rooms(),
        {str(one.relative_to(ROOT)): lines_below(one / "src") for one in folders()},
    )
    for title, counts in (("core", core), ("halves of core", halves()), ("all sources", shown)):
        print(f"{title}: {sum(counts.values())} lines of code")
        for name, count in sorted(counts.items(), key=lambda one: -one[1]):
            print(f"  {count:6} {name}")
    print(f"tests of core: {lines_below(ROOT / 'core' / 'tests')} lines of code")
    for name, count in public().items():
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
