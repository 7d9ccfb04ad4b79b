"""One thing that is wrong in a configuration or expression, and how it is shown."""

from __future__ import annotations

import difflib
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


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
        text: The text that ``span`` points into, usually an expression.
        hint: What to do about it, or None.
        line, column: Where ``file`` has it, both from 1, or None.
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
        """Shorten what no one can read: a name may have a million characters."""
        if len(self.message) > _LONG_WORD:
            object.__setattr__(self, "message", _shortened(self.message))

    def to_dict(self) -> dict[str, Any]:
        """Give the problem as plain data for JSON."""
        return asdict(self)

    def render(self) -> str:
        """Give the text for people: place, message, the expression with a caret, suggestion."""
        file = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        place = _shortened(": ".join(part for part in (file, self.path) if part))
        lines = [f"{place}: {self.message}" if place else self.message]
        if self.text is not None and self.span is not None:
            lines += _caret(self.text, *self.span)
        if self.suggestion is not None:
            lines.append(f"  Did you mean {self.suggestion!r}?")
        if self.hint is not None:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)


_LONG_WORD = 400
_LONG_TEXT = 4000
"""Longest word and longest text that a message shows, in characters."""


def _shortened(text: str) -> str:
    """Cut words, and then a text, that are too long to read, in their middle."""
    if len(text) > _LONG_WORD:
        text = re.sub(rf"\S{{{_LONG_WORD},}}", lambda m: f"{m[0][:60]}…{m[0][-20:]}", text)
    if len(text) > _LONG_TEXT:
        text = f"{text[: _LONG_TEXT - 400]} … {text[-300:]}"
    return text


_WINDOW = 100
"""Longest piece of an expression that an error shows, in characters."""


def _caret(text: str, start: int, end: int) -> list[str]:
    """Show the line of ``text`` that holds ``start`` with carets under [start, end)."""
    # Looked for only as far as is shown: the text may be long, and many problems stand in it.
    low, high = max(0, start - _WINDOW // 2), start + _WINDOW
    line_start = max(text.rfind("\n", low, start), text.rfind("\r", low, start)) + 1
    first = max(line_start, low)
    line_end = min(
        (i for i in (text.find("\n", start, high), text.find("\r", start, high)) if i >= 0),
        default=len(text),
    )
    last = min(line_end, first + _WINDOW)
    before = "…" if first > line_start and text[first - 1] not in "\r\n" else ""
    after = "…" if last < line_end else ""
    shown = before + "".join(c if c.isprintable() else " " for c in text[first:last]) + after
    width = max(1, min(end, last) - start)
    return [f"    {shown}", f"    {' ' * (len(before) + start - first)}{'^' * width}"]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Give the known name that is most like ``name``, or None when none is like it."""
    if len(name) > 200:
        return None  # comparing takes the square of the length
    by_lower: dict[str, str] = {}
    for one in known:
        by_lower.setdefault(one.lower(), one)
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None
