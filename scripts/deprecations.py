"""What is deprecated, found in the sources: since when, until when, what takes its place, and what is due for removal.

python scripts/deprecations.py    list all; exit 1 when one is due, or does not say these three

A deprecation is a call of ``warnings.warn`` with ``DeprecationWarning``, whose text reads "... is deprecated since 0.2 and
goes in 0.4: use ...", or, where no code can warn (a key of ``stats()``), an entry under *Deprecated* in the changelog, whose section
says since when.
"""

from __future__ import annotations

import ast
import re
import sys
from typing import NamedTuple

from distributions import ROOT, folders, project

SAYS = re.compile(
    r"is deprecated since (?P<since>\d+(\.\d+)+) and goes in (?P<until>\d+(\.\d+)+): use (?P<instead>.+)"
)


class Deprecation(NamedTuple):
    """One deprecation.

    Attributes:
        place: File and line.
        text: What the warning says.
        problem: Why it may not stay like this; "" if it may.
    """

    place: str
    text: str
    problem: str


def found_in(source: str, place: str, version: str) -> list[Deprecation]:
    """Return the deprecations in the text of a module.

    Args:
        source: The text.
        place: The name of its file.
        version: The version that the distribution has now.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("warn"):
            continue
        given = [*node.args, *(one.value for one in node.keywords)]
        if "DeprecationWarning" not in map(ast.unparse, given):
            continue
        text = _text(given[0])
        found.append(Deprecation(f"{place}:{node.lineno}", text, _problem(text, version)))
    return found


def found_in_changelog(text: str, place: str, version: str) -> list[Deprecation]:
    """Return the deprecations in the text of a changelog.

    Args:
        text: The text.
        place: The name of its file.
        version: The version that the distribution has now.
    """
    found = []
    since = ""
    kind = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            since = line.split()[1]
        elif line.startswith("### "):
            kind = line[4:]
        elif line.startswith("- ") and kind == "Deprecated":
            entry = " ".join(text.splitlines()[number - 1 :]).partition(" - ")[0].partition(" #")[0]
            said = re.fullmatch(
                r"- (?P<what>.+) goes in (?P<until>\d+(?:\.\d+)+): use (?P<instead>.+)",
                entry.strip(),
            )
            texts = (
                f"is deprecated since {since} and goes in {said['until']}: use {said['instead']}"
                if said
                else ""
            )
            problem = _problem(texts, version) if said else 'it does not say "goes in Y: use Z"'
            found.append(Deprecation(f"{place}:{number}", entry[2:], problem))
    return found


def _text(node: ast.expr) -> str:
    """Return a text as it is written, with `...` for what a format puts into it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one) for one in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "..."


def _problem(text: str, version: str) -> str:
    said = SAYS.search(text)
    if said is None:
        return 'it does not say "is deprecated since X and goes in Y: use Z"'
    since, until, now = map(_numbers, (said["since"], said["until"], version))
    if until <= now:
        return f"its removal is due: it goes in {said['until']}, and this is {version}"
    return "" if until[:2] > since[:2] else "one second number lies between the two, at least"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def all_found() -> list[Deprecation]:
    """Return the deprecations of all distributions."""
    changelogs = [
        one
        for folder in folders()
        if (folder / "CHANGELOG.md").is_file()
        for one in found_in_changelog(
            (folder / "CHANGELOG.md").read_text(encoding="utf-8"),
            (folder / "CHANGELOG.md").relative_to(ROOT).as_posix(),
            project(folder)["version"],
        )
    ]
    return changelogs + [
        one
        for folder in folders()
        for path in sorted((folder / "src").rglob("*.py"))
        for one in found_in(
            path.read_text(encoding="utf-8"),
            path.relative_to(ROOT).as_posix(),
            project(folder)["version"],
        )
    ]


if __name__ == "__main__":
    for one in all_found():
        print(f"{one.place}: {one.text}{f'  ({one.problem})' if one.problem else ''}")
    sys.exit(any(one.problem for one in all_found()))
