"""What the planner carries down an expression: its text, the names in scope, what stands around."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace._expression.tree import Args, Call

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._config.document import Written
    from headrace._plan.element import Named, Prefix


Phases = tuple[tuple["Call", ...], ...]
"""What stands in a bracket, by phase."""


@dataclass(eq=False)
class ScopedArgs:
    """The args written on a definition: ``a=1`` in ``Z(a=1)``, for every backend of Z that has it.

    Attributes:
        call: Where they were written.
        layer: The text they were written in.
        values: By key.
        used: Keys that some backend of the definition has.
        asked: All keys that backends of the definition have.
    """

    call: Call
    layer: Layer
    values: dict[str, Any]
    used: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Layer:
    """The text that an element was written in.

    Attributes:
        path: The keys that lead to the text, ``main.backend`` or ``define.Z``.
        file: The file that holds it, None for a dict.
        base: The folder that relative paths in it start from, as text.
        depth: 0 for what the user wrote, 1 inside a definition, 2 inside one used there, ...
        scoped: Args on the definitions around, outermost first.
    """

    path: str
    file: str | None = None
    base: str = "."
    depth: int = 0
    scoped: tuple[ScopedArgs, ...] = ()

    @classmethod
    def of(cls, written: Written, path: str) -> Layer:
        """Give the layer of a text of the configuration."""
        return cls(path, written.file, str(written.base))

    def place(self, call: Call, argument: int | str | None = None) -> dict[str, Any]:
        """Give the place of an element of this text, or of one of its args, for a problem."""
        span = call.name_span or call.span
        if argument is not None:
            span = call.args.span_of(argument) or span
        return {"file": self.file, "path": self.path, "span": span, "text": call.text}


@dataclass(frozen=True, eq=False)
class Graft:
    """A bracket on its way to the open slot of a definition.

    Attributes:
        call: The use of the definition, ``Z[...]``.
        scope: The scope it was written in.
    """

    call: Call
    scope: Scope


@dataclass(frozen=True, eq=False)
class Scope:
    """Where the planner stands.

    Attributes:
        layer: The text it reads.
        frames: The instances of the enclosing ``IoC``s, outermost first.
        depth: How deep the nesting is.
        entry: Whether ``Register`` may stand here: in ``init`` and ``node_entrypoint``.
        named: Whether this element gets a name, so that it need not be callable as it is.
        parent: The class of what this element stands in, where that is what calls it.
        wraps: Whether the outermost ``Reflect`` of an instance may still come.
        graft: A bracket on its way to the open slot.
        open_slot: Whether this is the open slot of an expression that is checked by itself.
        expanding: The definitions that are being expanded.
        reflecting: The parameters that are being reflected.
        lenient: Whether options and instances may be missing: an expression by itself.
    """

    layer: Layer
    frames: tuple[dict[str, Named], ...] = ()
    depth: int = 0
    entry: bool = False
    named: bool = False
    parent: type[Backend] | None = None
    wraps: bool = False
    graft: Graft | None = None
    open_slot: bool = False
    expanding: tuple[str, ...] = ()
    reflecting: tuple[str, ...] = ()
    lenient: bool = False

    def within(self, *, last: bool = False, **changes: Any) -> Scope:
        """Give the scope one level deeper, with changes; what concerns one element is dropped.

        Args:
            last: Whether this is the last element of a bracket: what is on its way to the open
                slot goes there.
            changes: Attributes that differ.
        """
        plain: dict[str, Any] = {
            "depth": self.depth + 1,
            "named": False,
            "parent": None,
            "graft": self.graft if last else None,
            "open_slot": self.open_slot and last,
        }
        return replace(self, **{**plain, **changes})

    def same(self, **changes: Any) -> Scope:
        """Give the scope with changes, on the same level."""
        return replace(self, **changes)

    def lookup(self, name: str) -> Named | None:
        """Give the instance of an enclosing ``IoC`` that ``name`` stands for, or None."""
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        return None


@dataclass(frozen=True, eq=False)
class Bracket:
    """What stands in the bracket of an element.

    Attributes:
        phases: The expressions, by phase; none without a bracket.
        scope: The scope in which it was written.
    """

    phases: Phases
    scope: Scope

    @property
    def children(self) -> list[Call]:
        """All expressions in it."""
        return [child for phase in self.phases for child in phase]

    def within(self, child: Call, **changes: Any) -> Scope:
        """Give the scope of one of the children, with changes."""
        last = bool(self.phases) and child is self.phases[-1][-1]
        return self.scope.within(last=last, **changes)


def bracket_of(call: Call, scope: Scope) -> Bracket:
    """Give what stands in the bracket of ``call``.

    The bracket of a definition's use goes to the innermost last name, which has none.
    """
    if call.phases or scope.graft is None:
        return Bracket(call.phases, scope)
    graft = scope.graft
    inner = graft.scope.same(
        depth=max(scope.depth, graft.scope.depth),
        frames=scope.frames,
        entry=scope.entry,
        wraps=scope.wraps,
    )
    return Bracket(graft.call.phases, inner)


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
