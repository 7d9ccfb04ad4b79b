"""Collecting problems, so that all are reported together, each with its line of a file.

The TOML parser gives values without their places. So, once there is a problem, a file is searched
for the lines that begin a table or a key, which needs no second parser: a value stands between its
key and the next such line.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise
from pathlib import PurePath
from typing import Any

from headrace._language.contract.texts import read_text
from headrace._texts import nearest, repr_of
from headrace.errors import ConfigError, Problem

_BARE = re.compile(r"[A-Za-z0-9_-]+")
SUGGESTED = 100
"""How many problems of a configuration may get a suggestion."""

_LONGEST = 60
"""How many characters of a value an error shows."""


_LEAST_SECRET = 4
"""A value of an environment variable with fewer characters is no secret, and part of many words."""


class Environment(dict[str, str]):
    """The environment as one configuration reads it.

    It holds the placeholder of each variable that is named, by its value.
    """

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a variable."""
        value = os.environ.get(name, default)
        if value is not None and len(value) >= _LEAST_SECRET:
            self[value] = f"${{{name}}}"
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the values out of a pickle."""
        return Environment, ()

    def hide(self, problem: Problem) -> Problem:
        """Return a problem with placeholders in place of values.

        These may be secrets, and errors are logged.
        """

        def mask(text: str) -> str:
            for value in sorted(self, key=len, reverse=True):
                text = text.replace(value, self[value])
            return text

        texts = {key: getattr(problem, key) for key in ("message", "hint", "text")}
        masked: dict[str, Any] = {key: text and mask(text) for key, text in texts.items()}
        if problem.text and problem.span:
            masked["span"] = tuple(len(mask(problem.text[:at])) for at in problem.span)
        return replace(problem, **masked)


class Problems:
    """The problems found so far, which show no value of ``environ``.

    A problem that is reported twice for the same place counts once.

    Of two equal problems the one that has a suggestion is kept.
    """

    def __init__(self, environ: Environment | None = None) -> None:
        self._found: dict[tuple[object, ...], Problem] = {}
        self.environ = Environment() if environ is None else environ

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found.values())

    def add(self, code: str, message: str, **place: Any) -> None:
        """Add one problem.

        Its place, ``suggestion`` and ``hint`` are those of `headrace.errors.Problem`.
        """
        self._take(Problem(code, message, **place))

    def add_all(self, problems: Iterable[Problem], **place: Any) -> None:
        """Add other problems, with ``file`` and ``path`` where they have none."""
        for problem in problems:
            missing = {key: at for key, at in place.items() if not getattr(problem, key)}
            self._take(replace(problem, **missing) if missing else problem)

    def _take(self, problem: Problem) -> None:
        problem = self.environ.hide(problem) if self.environ else problem
        place = (problem.file, problem.path, problem.span, problem.text)
        same = (problem.code, problem.message, *place)
        known = self._found.setdefault(same, problem)
        if known.suggestion is None and problem.suggestion is not None:
            self._found[same] = problem

    def nearest(self, name: str, known: Iterable[str]) -> str | None:
        """Return the known name most like a wrong one. None once there are many problems.

        Each comparison takes time, and a user with a hundred problems corrects the first ones
        first.
        """
        return nearest(name, known) if len(self) < SUGGESTED else None

    def raise_if_any(self) -> None:
        """Raise one error with all problems, if there are any.

        Raises:
            ConfigError: There is a problem.
        """
        if self._found:
            raise ConfigError(with_lines(self))


def key_place(
    file: str | None, path: str, key: str, value: Any, *, at_key: bool = False
) -> dict[str, Any]:
    """Return the place of a key for a problem.

    That is its line as TOML has it, and the wrong part of that line.

    Args:
        file: The file that holds the key, None for a dict.
        path: The keys that lead to it, and itself.
        key: The key.
        value: Its value.
        at_key: Whether the key is wrong, and not its value.
    """
    name = key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
    text = f"{name} = {format_value(value)}"
    span = (0, len(name)) if at_key else (len(name) + 3, len(text))
    return {"file": file, "path": path, "text": text, "span": span}


def format_value(value: Any) -> str:
    """Write a value in one short line, as TOML or close to it, even if its ``repr`` raises."""
    try:
        # A list of 10,000 names may have a problem with each. No part is white space alone.
        parts = json.JSONEncoder(ensure_ascii=False, default=_repr_of).iterencode(value)
        text = "".join(islice(parts, _LONGEST + 1))
    except Exception:  # noqa: BLE001 - a user's repr may raise, and an integer have too many digits
        text = repr_of(value)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _repr_of(value: Any) -> str:
    return str(value) if isinstance(value, PurePath) else repr(value)


_PART = r"""(?:"[^"\n]*"|'[^'\n]*'|[\w-]+)"""
_NAME = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_PLACES = re.compile(
    rf"^[ \t]*(?:\[\[?[ \t]*(?P<table>{_NAME})[ \t]*\]\]?[ \t]*(?:#.*)?$|(?P<key>{_NAME})[ \t]*=)"
    r"|\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}",
    re.MULTILINE,
)
"""The beginning of a table or of a key, or a text of several lines, which holds neither."""

_Pieces = dict[str, tuple[int, int, str]]
"""By path of a key: the offset of its line, the offset of the next key's line, and the text of
the file."""


def with_lines(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return problems with line and column, where these are found in the file of the problem."""
    pieces_of = cache(_pieces_of)  # each file is read once
    return tuple(
        _with_line(problem, problem.path, pieces_of(problem.file))
        if problem.file is not None and problem.path is not None
        else problem
        for problem in problems
    )


def _pieces_of(file: str) -> _Pieces:
    try:
        text = read_text(file).replace("\r\n", "\n")
    except (OSError, ValueError):
        return {}
    if "\0" in text:  # a file that a plugin reads
        return {}
    starts: list[tuple[str, int]] = []
    table = ""
    for match in _PLACES.finditer(text):
        if header := match["table"]:
            table = f"{_plain_name(header)}."
            starts.append((table[:-1], match.start()))
        elif key := match["key"]:
            starts.append((table + _plain_name(key), match.start()))
    following = pairwise([*starts, ("", len(text))])
    pieces = [(key, (start, end, text)) for (key, start), (_, end) in following]
    # Of two tables with the same name the first one counts, and `map` stands where `map.a = ...`
    # does.
    dotted = [(key[: m.start()], where) for key, where in pieces for m in re.finditer("[.]", key)]
    return dict(reversed([*pieces, *dotted]))


def _plain_name(name: str) -> str:
    return ".".join(part.strip("\"'") for part in re.findall(_PART, name))


def _with_line(problem: Problem, path: str, pieces: _Pieces) -> Problem:
    """Give a problem the line of its key, else of that key at the top, else of its table."""
    node, _, key = path.partition(".")
    for start, end, text in (pieces[name] for name in (path, key, node) if name in pieces):
        at = _offset(problem, text[start:end]) + start
        column = at - text.rfind("\n", 0, at)
        return replace(problem, line=text.count("\n", 0, at) + 1, column=column)
    return problem


def _offset(problem: Problem, piece: str) -> int:
    """Find the text of a problem in the lines of its key, else its wrong part, else the value."""
    text, (first, last) = problem.text or "", problem.span or (0, 0)
    if text and (match := re.search(rf"(?<![\w-]){re.escape(text)}", piece)):
        return match.start() + first
    marked, begin = text[first:last].strip('"'), piece.find("=") + 1 if first else 0
    once = marked != "" and piece.count(marked, begin) == 1
    return piece.find(marked, begin) if once else len(piece) - len(piece[begin:].lstrip())


def quotient(written: Any) -> str | None:
    """Return what to write in place of a fraction such as ``1/255``, None for anything else."""
    parts = re.fullmatch(r"\s*([\d.]+)\s*/\s*([\d.]*[1-9][\d.]*)\s*", str(written))
    with suppress(ValueError):  # 1.2.3 is no number
        return parts and f"Write {float(parts[1]) / float(parts[2]):.6g}: nothing is calculated."
    return None
