"""Results on a terminal: a table with a row for each input, whose cells are lines that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_cli.console import columns, print_data, wrapped
from headrace_cli.printing import escaped, named_scores, opened, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_LINES = 40
"""The most lines of one result."""


class Screen:
    """Prints the rows of a table while results come. Its first column grows, to a third of the terminal at most."""

    def __init__(self) -> None:
        self._width = 0

    def print_row(self, path: str, result: Any) -> None:
        """Print a result beside the path of its input, or below a path that is too long for the column."""
        path, room = escaped(path), min(columns(), 240)
        self._width = max(self._width, min(len(path), int(room // 3)))
        indent = " " * (self._width + 2)
        start = path.ljust(self._width) + "  "
        if len(path) > self._width:
            print_data(path)
            start = indent
        lines = [*_lines(result)]
        line = "  ".join(lines)
        if isinstance(opened(result), dict) and "   " not in line:  # flat, with short values
            lines = [line] if len(line) <= room - len(indent) else lines
        left = len(lines) - _MOST_LINES
        if left > 1:
            lines[_MOST_LINES:] = [f"... and {left} lines more: --json prints all"]
        for line in lines:
            print_data(wrapped(line, indent, start))
            start = indent


def _lines(result: Any) -> Iterator[str]:
    """Yield the lines of a result: a line for each value of a dict or list, and those of a text."""
    result = opened(result)
    scores = named_scores(result)
    if isinstance(result, str):
        yield from map(escaped, (result or "(empty)").split("\n"))
    elif isinstance(result, dict) and result:
        for key, value in result.items():
            first, *others = _lines(value)
            yield f"{escaped(str(key))}: {first}" if not others else f"{escaped(str(key))}:"
            yield from (f"  {line}" for line in (first, *others) if others)
    elif len(scores) > 1:
        yield from (f"{score}  {escaped(name)}" for name, score in zip(*[iter(scores)] * 2))  # noqa: B905 - pairs
    elif isinstance(result, list) and any(isinstance(item, (dict, list)) for item in result):
        yield from (escaped(shown(item)) for item in result)
    else:
        yield escaped(str(result) if isinstance(result, (bool, float)) else shown(result))
