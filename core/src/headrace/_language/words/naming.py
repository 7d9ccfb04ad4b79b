"""The words that stand for a node or a parameter by name: Forward and Reflect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._language.contract.groups import Bracket
from headrace._language.plan.word import Use, Word
from headrace._texts import nearest

if TYPE_CHECKING:
    from headrace._language.building.elements import ElementBuilder
    from headrace._language.building.parts import BuildSite
    from headrace._language.contract.backend import Backend
    from headrace._language.expression.tree import Call
    from headrace._language.plan.element import Element
    from headrace._language.plan.planner import Planner

__all__ = ["Forward", "Reflect"]


class Forward(Word):
    """Call a registered instance. ``Forward[node.x]`` hands the requests to the node ``x``.

    Each item is a request of its own at that node, with its own outcome. The calling thread waits,
    and runs batches of the node meanwhile if it may.

    Reads:
        The inputs of the instance.
    Writes:
        The outputs of the instance.
    Batch:
        1 or more for a node, else the range of the instance.

    Raises:
        The errors of the instance.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "IoC[Upper;Forward[Upper]]"
    """

    takes = 1
    _names = 1

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Find the instance."""
        (call,), planning, scope = use.children, use.planning, use.scope
        if (named := planning.instance_named(call.name, scope)) is None:
            _report_unknown(use, call)
            return None
        if planning.reference(call.replace(prefix=None), named, scope) is None:
            return None
        use.element._settle(named=named)
        return use.element


def _report_unknown(use: Use, call: Call) -> None:
    planning, node = use.planning, f"node.{call.name}"
    if not planning.refuse_cycle(call):
        nodes = (f"node.{name}" for name in planning.shape.nodes)
        known = sorted({*planning.registered, *nodes}.union(*use.scope.frames))
        suggestion = nearest(node if node in known else call.name, known)
        message, hint = f"no instance is called {call.name!r}", f"There are: {', '.join(known)}."
        planning.add("unknown_instance", message, call, suggestion=suggestion, hint=hint)


class Wiring(Word):
    """A word of which nothing is left at run time but the last element in its bracket."""

    _wiring = True
    bracket = Bracket(keys_of_child=-1)

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build the children in order; the last one is called in place of the word."""
        return [building.element(child, at) for child in element.children][-1]


class Reflect(Wiring):
    """Build the expression in a parameter: ``Reflect[key,Default]``.

    Without the parameter it builds the default. Without a default this is an error.

    Reads:
        The inputs of the expression.
    Writes:
        The outputs of the expression.
    Batch:
        The range of the expression.

    Raises:
        The errors of the expression.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            backend = "S[Upper,Reflect[after,Identity]]"
            after = "Reverse"
    """

    takes = (1, 2)
    _names = 1

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan what stands in the parameter, or the default."""
        planning, scope = use.planning, use.scope
        name, *rest = use.children
        key = name.name
        mark = f"{planning.node}.{key}"
        if mark in scope.reflecting:
            chain = (*scope.reflecting[scope.reflecting.index(mark) :], mark)
            shown = " uses ".join(used.partition(".")[2] for used in chain)
            use.add("cycle", f"the parameter {key!r} uses itself: {shown}", name)
            return None
        values = planning.parameters  # a parameter is found as the value of an option is
        names = (use.element.name,)
        written = values.key(key) if key == "backend" else values.find(names, key)
        if written is not None:
            call = planning.read(written.value, written.source)
            reflecting = (*scope.reflecting, mark)
            child = call and use.plan(call, reflecting=reflecting)
            if child is not None and not use.may_call(child):
                return None
        elif rest:
            child = use.plan(rest[0])
        else:
            _report_missing(planning, name, key)
            return None
        return use.holding([child])


def _report_missing(planning: Planner, call: Call, key: str) -> None:
    message = f"node {planning.node!r} needs the key {key!r}"
    hint = f'Write {key} = "..." in the node.'
    others = [k for k in ("backend", *planning.parameters.unused_keys()) if k != key]
    suggestion = nearest(key, others)
    planning.add("missing_option", message, call, suggestion=suggestion, hint=hint)
