"""`Problem`: one thing that is wrong in a configuration, and its text for people."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from headrace._texts import hide_queries, shorten


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a configuration or expression.

    Attributes:
        code: Stable name of the kind of problem, for programs.
        message: What is wrong and what was expected, in one sentence.
        file: The file that holds the place, or None for a dict or a bare expression.
        path: The keys that lead to the place, ``"node.key"``, or None.
        span: Start and end offset (in characters) inside ``text``, or None.
        suggestion: The nearest known name, or None.
        text: The text into which ``span`` points, usually an expression.
        hint: What to do about it, or None.
        line, column: The place in ``file``, both from 1, or None.
    """

    code: str
    message: str
    file: str | None = None
    path: str | None = None
    span: tuple[int, int] | None = None
    suggestion: str | None = None
    text: str | None = None
    hint: str | None = None
    line: int | None = None
    column: int | None = None

    def __post_init__(self) -> None:
        """Shorten message and hint, whose names may be long. Hide queries, which may be secrets."""
        object.__setattr__(self, "message", hide_queries(shorten(self.message)))
        object.__setattr__(self, "hint", self.hint and hide_queries(shorten(self.hint)))
        object.__setattr__(self, "text", self.text and hide_queries(self.text))

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as plain data for JSON."""
        return {**asdict(self), "span": self.span and [*self.span]}

    def render(self) -> str:
        """Return the text for people: place, message, the expression with a caret, suggestion."""
        file = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        place = shorten(": ".join(part for part in (file, self.path) if part))
        lines = [f"{place}: {self.message}" if place else self.message]
        if self.text is not None and self.span is not None:
            lines += _caret(self.text, *self.span)
        if self.suggestion is not None:
            lines.append(f"  Did you mean {self.suggestion!r}?")
        if self.hint is not None:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)


_WINDOW = 100
"""The longest piece of an expression that an error shows, in characters."""


def _caret(text: str, start: int, end: int) -> list[str]:
    """Show the line of ``text`` that holds ``start`` with carets under [start, end)."""
    # Ends of lines are looked for only within the piece that is shown: the text may be very long.
    first = start - len(re.split(r"[\r\n]", text[max(0, start - _WINDOW // 2) : start])[-1])
    piece = re.split(r"[\r\n]", text[first : first + _WINDOW])[0]
    last = first + len(piece)
    before = "…" if first and text[first - 1] not in "\r\n" else ""
    after = "…" if last < len(text) and text[last] not in "\r\n" else ""
    shown = before + "".join(c if c.isprintable() else " " for c in piece) + after
    width = max(1, min(end, last) - start)
    return [f"    {shown}", f"    {' ' * (len(before) + start - first)}{'^' * width}"]
