"""The tree that an expression is parsed into: frozen, compared by type and value, any depth.

Two trees are equal when they are written the same, so ``1``, ``1.0``, ``true`` and ``"1"`` differ
and where a tree was written (``span``, ``text``) does not count. Nothing here recurses.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

from headrace._expression.templates import Template
from headrace._expression.words import spell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self


Span: TypeAlias = tuple[int, int]
Value: TypeAlias = "int | float | bool | str | tuple[Value, ...] | Call | None"


class _Node:
    """What `Call` and `Args` share: equal when written the same, and never copied."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return _written(self)


@final
@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Args(_Node):
    """What stands in one pair of parentheses.

    Attributes:
        positional: The values without a key, in order. A list is a tuple.
        named: The ``(key, value)`` pairs, in order.
        spans: Where each argument stands in the text, positional ones first, keys included;
            empty for one that was not parsed.
        span: Where the whole stands, parentheses included, or None.
    """

    positional: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()
    spans: tuple[Span, ...] = field(default=(), kw_only=True)
    span: Span | None = field(default=None, kw_only=True)

    def span_of(self, which: int | str) -> Span | None:
        """Give the place of an argument by index, positional ones first, or of a named one by key."""
        if isinstance(which, str):
            which = len(self.positional) + [key for key, _ in self.named].index(which)
        return self.spans[which] if self.spans else None

    def __len__(self) -> int:
        return len(self.positional) + len(self.named)

    def __repr__(self) -> str:
        return f"<Args {self}>"


EMPTY = Args()
"""The arguments of a name without parentheses."""


@final
@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Call(_Node):
    """A name with its prefix, options and bracket: one element of an expression.

    Attributes:
        name: The name as written, a plugin's qualifier included.
        args: The options; empty when absent.
        phases: What stands in ``[ ]``, cut at ``;`` and then at ``,``; empty without a bracket.
        prefix: The arguments in front of the name, or None.
        span: Where the element stands in ``text``, prefix included, or None.
        name_span: Where the name stands, or None.
        text: The whole text that the element was parsed from, or None.
    """

    name: str
    args: Args = EMPTY
    phases: tuple[tuple[Call, ...], ...] = ()
    prefix: Args | None = field(default=None, kw_only=True)
    span: Span | None = field(default=None, kw_only=True)
    name_span: Span | None = field(default=None, kw_only=True)
    text: str | None = field(default=None, kw_only=True)

    @property
    def plugin(self) -> str | None:
        """The qualifier in front of the name, ``cv`` in ``cv:ResizeMat``, or None."""
        return self.name[: -len(self.part) - 1] if len(self.part) < len(self.name) else None

    @property
    def part(self) -> str:
        """The name without the qualifier of a plugin."""
        depth = 0
        for offset, character in enumerate(self.name):
            depth += (character == "{") - (character == "}")
            if character == ":" and not depth:
                return self.name[offset + 1 :]
        return self.name

    @property
    def children(self) -> tuple[Call, ...]:
        """What stands in ``[ ]``, all phases one after the other."""
        return tuple(child for phase in self.phases for child in phase)

    def replace(self, **changes: Any) -> Call:
        """Give a copy with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def __repr__(self) -> str:
        return f"parse({str(self)!r})"


# The canonical text: no blanks, quotes only where they are needed.


def _written(root: Any) -> str:
    out: list[str] = []
    todo: list[Any] = [root]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            out.append(item)
        else:
            todo += reversed(_pieces(item))
    return "".join(out)


def _pieces(item: Any) -> list[Any]:
    """Give texts, and lists, args and calls that are still to be written, in order."""
    if isinstance(item, tuple):
        return ["[", *_joined(",", map(_value_pieces, item)), "]"]
    if isinstance(item, Args):
        values = [_value_pieces(value) for value in item.positional]
        values += [[f"{key}=", *_value_pieces(value)] for key, value in item.named]
        return ["(", *_joined(",", values), ")"]
    pieces = [item.name] if item.prefix is None else [item.prefix, item.name]
    if len(item.args):
        pieces.append(item.args)
    if item.phases:
        phases = [_joined(",", ([child] for child in phase)) for phase in item.phases]
        pieces += ["[", *_joined(";", phases), "]"]
    return pieces


def _joined(mark: str, parts: Iterable[list[Any]]) -> list[Any]:
    return [piece for part in parts for piece in (mark, *part)][1:]


def _value_pieces(value: Any) -> list[Any]:
    if isinstance(value, Call):
        reads_as_word = not len(value.args) and not value.phases
        return [value, "()"] if reads_as_word else [value]
    if isinstance(value, (tuple, Template)):
        return [value]
    return [spell(value)]
