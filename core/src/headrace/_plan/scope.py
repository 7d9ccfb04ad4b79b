"""What surrounds a name: the text it was written in, and what stands around it while it is planned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace._config.problems import MAX_DEPTH
from headrace._expression.tree import Args, Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import Backend
    from headrace._config.document import Written
    from headrace._plan.element import Named, Place, Prefix


Phases = tuple[tuple[Call, ...], ...]
"""What stands in a bracket, by phase."""


@dataclass(eq=False)
class DefinitionUse:
    """One use of a definition: the args of ``Z(a=1)`` hold for every backend of Z that has them.

    Attributes:
        call: Where it was written.
        values: The args, by key.
        used: Keys that some backend of the definition has.
        asked: All keys that backends of the definition have.
    """

    call: Call
    values: dict[str, Any]
    used: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Source:
    """The text that a name was written in; every `Call` of a configuration has its ``source``.

    Attributes:
        path: The keys that lead to the text, ``main.backend`` or ``define.Z``.
        file: The file that holds it, None for a dict.
        base: The folder that relative paths in it start from, as text.
        origin: What its args are: ``inline``, or ``definition`` where they are defaults.
        expanding: The definitions that have led to the text, outermost first.
        uses: Their uses.
    """

    path: str
    file: str | None = None
    base: str = "."
    origin: str = "inline"
    expanding: tuple[str, ...] = ()
    uses: tuple[DefinitionUse, ...] = ()

    @classmethod
    def of(cls, written: Written, path: str) -> Source:
        """Give the source of a text of the configuration."""
        return cls(path, written.file, str(written.base))


def place_of(call: Call, argument: int | str | None = None) -> Place:
    """Give the place of a name, or of one of its args, for a problem."""
    span = call.name_span or call.span
    if argument is not None:
        span = call.args.span_of(argument) or span
    return {"file": call.source.file, "path": call.source.path, "span": span, "text": call.text}


@dataclass(frozen=True, eq=False)
class Scope:
    """Where the planner stands.

    Attributes:
        frames: The instances of the enclosing ``IoC``s, outermost first.
        depth: How deep the nesting is.
        entry: Whether ``Register`` may stand here: in ``init`` and ``node_entrypoint``.
        named: Whether this element gets a name, so that it need not be callable as it is.
        parent: The class of what this element stands in, where that is what calls it.
        slot: The open slot of an expression that is looked at by itself: it may lack its bracket.
        reflecting: The parameters that are being reflected.
        lenient: Whether options and instances may be missing: an expression by itself.
    """

    frames: tuple[dict[str, Named], ...] = ()
    depth: int = 0
    entry: bool = False
    named: bool = False
    parent: type[Backend] | None = None
    slot: Call | None = None
    reflecting: tuple[str, ...] = ()
    lenient: bool = False

    def within(self, **changes: Any) -> Scope:
        """Give the scope one level deeper, with changes; what concerns one element is dropped."""
        return replace(self, **{"depth": self.depth + 1, "named": False, "parent": None, **changes})

    def lookup(self, name: str) -> Named | None:
        """Give the instance of an enclosing ``IoC`` that ``name`` stands for, or None."""
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        return None


# The bracket of a definition's use goes to the open slot, the innermost last name of its text.


def open_slot(tree: Call) -> Call:
    """Give the innermost last name of an expression."""
    while tree.phases:
        tree = tree.phases[-1][-1]
    return tree


def with_bracket(tree: Call, phases: Phases) -> Call:
    """Give an expression with ``phases`` in the bracket of its open slot."""
    outer = []
    while tree.phases:
        outer.append(tree)
        tree = tree.phases[-1][-1]
    tree = tree.replace(phases=phases)
    for call in reversed(outer):
        *first, last = call.phases
        tree = call.replace(phases=(*first, (*last[:-1], tree)))
    return tree


def use_behind(call: Call) -> Call | None:
    """Give the use of a definition from which a name in its text has its bracket, or None."""
    uses = (use.call for use in call.source.uses)
    return next((use for use in uses if call.phases and use.phases is call.phases), None)


# Nesting. A name that ``joins`` adds no level where it stands directly in another such name.


def too_deep(tree: Call, joins: Callable[[Call], bool]) -> Call | None:
    """Give a name that is nested too deep, lists and expressions in args included; None for none."""
    todo: list[tuple[Any, int, Call]] = [(tree, 0, tree)]
    while todo:
        item, depth, place = todo.pop()
        if depth > MAX_DEPTH:
            return place
        if isinstance(item, tuple):
            todo.extend((part, depth + 1, place) for part in item)
        elif isinstance(item, Call):
            inside = joins(item)
            todo.extend(
                (child, depth if inside and joins(child) else depth + 1, child)
                for child in item.children
            )
            for args in filter(None, (item.args, item.prefix)):
                values = (*args.positional, *(value for _, value in args.named))
                todo.extend((value, depth + 1, item) for value in values)
    return None


def joined(phases: Phases, joins: Callable[[Call], bool]) -> Phases:
    """Put what stands in names that ``joins`` in their place, to any depth, without recursion."""
    result = []
    for phase in phases:
        flat: list[Call] = []
        todo = list(reversed(phase))
        while todo:
            call = todo.pop()
            if joins(call):
                todo.extend(reversed(call.phases[0]))
            else:
                flat.append(call)
        result.append(tuple(flat))
    return tuple(result)


# Values of args.


def prefix_values(prefix: Args | None) -> Prefix:
    """Give a prefix as a container reads it."""
    if prefix is None:
        return (), {}
    positional = tuple(plain_value(value) for value in prefix.positional)
    return positional, {key: plain_value(value) for key, value in prefix.named}


def plain_value(value: Any) -> Any:
    """Give a value of an expression as options read it: an expression is its text."""
    if isinstance(value, Call):
        return str(value)
    if isinstance(value, tuple):
        return [plain_value(part) for part in value]
    return value
