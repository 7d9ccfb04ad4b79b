"""What the parser keeps of an expression while it is read: drafts, and brackets still open."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from headrace._expression.tree import EMPTY

if TYPE_CHECKING:
    from headrace._expression.tree import Args, Call, Span, Value

__all__ = ["Draft", "Open", "OpenArgs", "OpenBracket", "OpenList"]


class Draft:
    """A `Call` in the making."""

    __slots__ = ("args", "name", "name_span", "phases", "prefix", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.name = ""
        self.name_span: Span = (start, start)
        self.args = EMPTY
        self.prefix: Args | None = None
        self.phases: tuple[tuple[Call, ...], ...] = ()


class OpenArgs:
    """A ``(`` that is not closed yet; ``key`` belongs to the value that is being read."""

    __slots__ = ("at", "key", "keys", "named", "owner", "positional", "prefix", "spans", "start")
    closer = ")"
    wants = "',' or ')'"

    def __init__(self, at: int, owner: Draft, *, prefix: bool) -> None:
        self.at = at
        self.owner = owner
        self.prefix = prefix
        self.positional: list[Value] = []
        self.named: list[tuple[str, Value]] = []
        self.spans: list[Span] = []
        self.keys: dict[str, int] = {}
        self.key: str | None = None
        self.start = at


class OpenList:
    """A ``[`` of a list that is not closed yet."""

    __slots__ = ("at", "values")
    closer = "]"
    wants = "',' or ']'"

    def __init__(self, at: int) -> None:
        self.at = at
        self.values: list[Value] = []


class OpenBracket:
    """A ``[`` behind a name that is not closed yet."""

    __slots__ = ("at", "done", "owner", "phase")
    closer = "]"
    wants = "',', ';' or ']'"

    def __init__(self, at: int, owner: Draft) -> None:
        self.at = at
        self.owner = owner
        self.done: list[tuple[Call, ...]] = []
        self.phase: list[Call] = []


Open: TypeAlias = OpenArgs | OpenList | OpenBracket
