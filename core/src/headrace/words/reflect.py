"""Reflect: the expression that stands in a parameter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace._config.nodekeys import NODE_KEYS
from headrace._plan.scope import Bracket, Layer, Scope
from headrace._plan.word import Use, needs_thread
from headrace._problem import nearest
from headrace.words.ioc import Wiring

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._expression import Call
    from headrace._plan.element import Element
    from headrace._plan.planning import Planning

__all__ = ["Reflect"]


class Reflect(Wiring):
    """Build the expression that stands in a parameter: ``Reflect[key,Default]``.

    Without the parameter the default is built; without a default that is an error.

    Reads:
        What the expression reads.
    Writes:
        What the expression writes.
    Batch:
        The range of the expression.

    Raises:
        What the expression raises.
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
        name, *rest = use.bracket.children
        key = use.name(name)
        if key is None:
            planning.plan_all(Bracket((tuple(rest),), use.bracket.scope))
            return None
        mark = f"{planning.node}.{key}"
        if mark in scope.reflecting:
            chain = (*scope.reflecting[scope.reflecting.index(mark) :], mark)
            shown = " uses ".join(one.partition(".")[2] for one in chain)
            use.add("circle", f"the parameter {key!r} uses itself: {shown}", name)
            return None
        entry = scope.entry and key != "backend"
        found = parameter(use, key)
        if found is not None:
            child = _plan_found(use, found, mark, use.bracket.scope.same(entry=entry))
        elif rest:
            child = use.plan(rest[0], entry=entry, wraps=False, named=scope.named)
        elif scope.lenient:
            return use.element
        else:
            _report_missing(planning, name, key, use.bracket.scope)
            return None
        if child is None:
            return None
        use.element.parameter = key
        use.element.phases = [[child]]
        use.element.own_thread = scope.wraps and needs_thread(child)
        return use.element


def parameter(use: Use, key: str) -> tuple[Written, Layer] | None:
    """Find a parameter as an option is found, by the same rule of who wins."""
    parameters = use.planning.parameters
    if key == "backend":
        found = parameters.key(key)
    else:
        found = parameters.find((use.element.name,), key, use.scope.layer)
    if found is None:
        return None
    return found.written, found.layer if found.call is None else replace(found.layer, written=None)


def _plan_found(use: Use, found: tuple[Written, Layer], mark: str, scope: Scope) -> Element | None:
    """Plan what stands in the parameter."""
    planning, (written, layer) = use.planning, found
    call = planning.read(written, layer.path)
    if call is None:
        planning.unresolved += 1
        return None
    below = scope.within(
        layer=layer,
        wraps=False,
        named=scope.named,
        reflecting=(*scope.reflecting, mark),
        expanding=(),
    )
    child = planning.plan(call, below)
    good = child is None or below.entry or use.may_call(child, below)
    return child if good else None


def _report_missing(planning: Planning, call: Call, key: str, scope: Scope) -> None:
    if any(nearest(name, NODE_KEYS) == key for name in planning.parameters.unused()):
        return  # it is misspelt, which is reported
    message = f"node {planning.node!r} needs the key {key!r}"
    hint = f'Write {key} = "..." in the node.'
    if key == "backend" and not scope.layer.file and scope.layer.written is None:
        file = planning.file_of(planning.node)
        planning.problems.add("missing_option", message, file=file, path=planning.node, hint=hint)
    else:
        planning.add("missing_option", message, call, scope, hint=hint)
