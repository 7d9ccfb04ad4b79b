"""What the planner carries down an expression: the names in scope, and what stands around."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace._expression import Call
    from headrace._plan.element import Named
    from headrace._plan.layer import Layer

__all__ = ["Graft", "Scope"]


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
        batched: Whether this element stands in ``Batching[...]``.
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
    batched: bool = False
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
            "batched": False,
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
