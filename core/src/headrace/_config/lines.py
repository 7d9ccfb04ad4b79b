"""In which line of a TOML file a key is written: the parser gives values without their places.

Only the lines that begin a table or a key are looked for, which needs no second parser. It is done when
there is something to report, so a configuration that is right costs nothing.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.errors import Problem


_PART = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
_NAME = rf"({_PART}(?:\s*\.\s*{_PART})*)"
_TABLE = re.compile(rf"\s*\[\[?\s*{_NAME}\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(rf"\s*{_NAME}\s*=")
_LONG_TEXT = re.compile(r'"""|' + "'''")

_Lines = dict[str, tuple[int, str]]
"""Per key, with those that lead to it, the number of its line (from 1) and the line."""


def with_lines(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Give problems with the line and column of the file in which each was written, if it is found."""
    files: dict[str, _Lines] = {}
    found = []
    for problem in problems:
        if problem.file is None or problem.path is None:
            found.append(problem)
            continue
        if problem.file not in files:
            files[problem.file] = _lines_of(problem.file)
        found.append(_placed(problem, problem.path, files[problem.file]))
    return tuple(found)


def _lines_of(file: str) -> _Lines:
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return {}
    found: _Lines = {}
    table, inside = "", False
    for number, line in enumerate(text.splitlines(), 1):
        if not inside and (match := _TABLE.fullmatch(line)):
            table = f"{_plain(match[1])}."
            found.setdefault(table[:-1], (number, line))
        elif not inside and (match := _KEY.match(line)):
            found.setdefault(table + _plain(match[1]), (number, line))
        inside ^= len(_LONG_TEXT.findall(line)) % 2 == 1
    return found


def _plain(name: str) -> str:
    return re.sub(r"""["'\s]""", "", name)


def _placed(problem: Problem, path: str, lines: _Lines) -> Problem:
    """Look for the key, for the same key at the top of the file, then for the table around it."""
    node, _, key = path.partition(".")
    for name in (path, key, path.rpartition(".")[0], node):
        if name in lines:
            number, line = lines[name]
            start = line.find(problem.text) if problem.text else -1
            if start < 0 or problem.span is None:
                start = len(line) - len(line.lstrip())
            else:
                start += problem.span[0]
            return replace(problem, line=number, column=start + 1)
    return problem
