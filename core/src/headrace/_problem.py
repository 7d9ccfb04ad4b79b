"""One thing that is wrong in a configuration or expression, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Problem"]


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
    """

    code: str
    message: str
    file: str | None = None
    path: str | None = None
    span: tuple[int, int] | None = None
    suggestion: str | None = None
    text: str | None = None
    hint: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the problem as plain data for JSON."""
        return asdict(self)

    def render(self) -> str:
        """Give the text for people: place, message, the expression with a caret, suggestion."""
        place = ": ".join(part for part in (self.file, self.path) if part)
        lines = [f"{place}: {self.message}" if place else self.message]
        if self.text is not None and self.span is not None:
            lines += _caret(self.text, *self.span)
        if self.suggestion is not None:
            lines.append(f"  Did you mean {self.suggestion!r}?")
        if self.hint is not None:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)


_WINDOW = 100
"""Longest piece of an expression that an error shows, in characters."""


def _caret(text: str, start: int, end: int) -> list[str]:
    """Show the line of ``text`` that holds ``start`` with carets under [start, end)."""
    line_start = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    line_end = min(
        (i for i in (text.find("\n", start), text.find("\r", start)) if i >= 0), default=len(text)
    )
    first = max(line_start, start - _WINDOW // 2)
    last = min(line_end, first + _WINDOW)
    before, after = "…" if first > line_start else "", "…" if last < line_end else ""
    shown = before + "".join(c if c.isprintable() else " " for c in text[first:last]) + after
    width = max(1, min(end, last) - start)
    return [f"    {shown}", f"    {' ' * (len(before) + start - first)}{'^' * width}"]
