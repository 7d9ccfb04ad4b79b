"""The tree that an expression is parsed into: frozen, compared by type and value, any depth.

Two trees are equal when they are written the same, so ``1``, ``1.0``, ``true`` and ``"1"`` differ
and where a tree was written (``span``, ``text``) does not count. Nothing here recurses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, final

from headrace._expression.words import KEY, NAME, check_leaf
from headrace._expression.writer import Node, emit_value, write

if TYPE_CHECKING:
    from typing_extensions import Self

    from headrace._expression.writer import Emit

__all__ = ["EMPTY", "Args", "Call", "Span", "Value"]

Span: TypeAlias = tuple[int, int]
Value: TypeAlias = "int | float | bool | str | tuple[Value, ...] | Call | None"

_set = object.__setattr__


def _check_value(value: Value) -> None:
    """Refuse what no argument can be; a list may be nested to any depth."""
    todo: list[Value] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, tuple):
            todo.extend(item)
        elif not isinstance(item, Call):
            check_leaf(item)
        elif item.prefix is not None:
            raise ValueError(f"a value cannot have a prefix: {item.name!r}")


@final
class Args(Node):
    """What stands in one pair of parentheses.

    Attributes:
        positional: The values without a key, in order. A list is a tuple.
        named: The ``(key, value)`` pairs, in order.
        spans: Where each argument stands in the text, positional ones first, keys included;
            empty for one that was not parsed.
        span: Where the whole stands, parentheses included, or None.
    """

    __slots__ = ("named", "positional", "span", "spans")

    positional: tuple[Value, ...]
    named: tuple[tuple[str, Value], ...]
    spans: tuple[Span, ...]
    span: Span | None

    def __init__(
        self,
        positional: tuple[Value, ...] = (),
        named: tuple[tuple[str, Value], ...] = (),
        *,
        spans: tuple[Span, ...] = (),
        span: Span | None = None,
    ) -> None:
        positional, named = tuple(positional), tuple((key, value) for key, value in named)
        for value in (*positional, *(value for _, value in named)):
            _check_value(value)
        for key, _ in named:
            if not KEY.fullmatch(key):
                raise ValueError(f"expected letters, digits and '_' as a key, got {key!r}")
        if len({key for key, _ in named}) != len(named):
            raise ValueError("a key stands twice")
        if spans and len(spans) != len(positional) + len(named):
            raise ValueError("spans and arguments differ in number")
        self.fill(positional, named, tuple(spans), span)

    def fill(
        self,
        positional: tuple[Value, ...],
        named: tuple[tuple[str, Value], ...],
        spans: tuple[Span, ...],
        span: Span | None,
    ) -> Self:
        """Set the attributes without a check; the parser has checked them."""
        _set(self, "positional", positional)
        _set(self, "named", named)
        _set(self, "spans", spans)
        _set(self, "span", span)
        return self

    @property
    def mapping(self) -> dict[str, Value]:
        """The named arguments as a new dict."""
        return dict(self.named)

    def span_of(self, which: int | str) -> Span | None:
        """Give the place of an argument by index, positional ones first, or of a named one by key."""
        if isinstance(which, str):
            which = len(self.positional) + [key for key, _ in self.named].index(which)
        return self.spans[which] if self.spans else None

    def replace(self, **changes: Any) -> Args:
        """Give a copy with some attributes changed."""
        for name in changes.keys() & {"positional", "named"}:
            if len(changes[name]) != len(getattr(self, name)):
                changes.setdefault("spans", ())
        return Args(**{**{name: getattr(self, name) for name in self.__slots__}, **changes})

    def __len__(self) -> int:
        return len(self.positional) + len(self.named)

    def emit(self, emit: Emit) -> None:
        emit("(")
        for index, value in enumerate(self.positional):
            if index:
                emit(",")
            emit_value(value, emit)
        for index, (key, value) in enumerate(self.named):
            emit(f",{key}=" if index or self.positional else f"{key}=")
            emit_value(value, emit)
        emit(")")

    def __repr__(self) -> str:
        return f"<Args {write(self)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (f"A{self}", "args")


EMPTY = Args()
"""The arguments of a name without parentheses."""


@final
class Call(Node):
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

    __slots__ = ("args", "name", "name_span", "phases", "prefix", "span", "text")

    name: str
    args: Args
    phases: tuple[tuple[Call, ...], ...]
    prefix: Args | None
    span: Span | None
    name_span: Span | None
    text: str | None

    def __init__(
        self,
        name: str,
        args: Args = EMPTY,
        phases: tuple[tuple[Call, ...], ...] = (),
        *,
        prefix: Args | None = None,
        span: Span | None = None,
        name_span: Span | None = None,
        text: str | None = None,
    ) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name")
        for part in (args, prefix):
            if part is not None and not isinstance(part, Args):
                raise TypeError(f"args and prefix are Args, not {type(part).__name__}")
        if prefix is not None and not len(prefix):
            raise ValueError("a prefix is not empty; None stands for no prefix")
        phases = tuple(tuple(phase) for phase in phases)
        if not all(phases):
            raise ValueError("a phase is not empty; () stands for no bracket")
        if not all(isinstance(child, Call) for phase in phases for child in phase):
            raise TypeError("phases are tuples of Call")
        self.fill(name, args, phases, prefix, span, name_span, text)

    def fill(
        self,
        name: str,
        args: Args,
        phases: tuple[tuple[Call, ...], ...],
        prefix: Args | None,
        span: Span | None,
        name_span: Span | None,
        text: str | None,
    ) -> Self:
        """Set the attributes without a check; the parser has checked them."""
        _set(self, "name", name)
        _set(self, "args", args)
        _set(self, "phases", phases)
        _set(self, "prefix", prefix)
        _set(self, "span", span)
        _set(self, "name_span", name_span)
        _set(self, "text", text)
        return self

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
        return Call(**{**{name: getattr(self, name) for name in self.__slots__}, **changes})

    def emit(self, emit: Emit) -> None:
        if self.prefix is not None:
            emit(self.prefix)
        emit(self.name)
        if len(self.args):
            emit(self.args)
        for index, phase in enumerate(self.phases):
            emit(";" if index else "[")
            for position, child in enumerate(phase):
                if position:
                    emit(",")
                emit(child)
        if self.phases:
            emit("]")

    def reads_as_word(self) -> bool:
        return not len(self.args) and not self.phases

    def __repr__(self) -> str:
        return f"parse({write(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (str(self), None)


def _restore(text: str, attribute: str | None) -> Any:
    """Make a pickled tree again from its text; its spans point into that text."""
    from headrace._expression.parser import parse

    tree = parse(text)
    return tree if attribute is None else getattr(tree, attribute)
