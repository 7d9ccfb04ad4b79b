"""Reflect: the expression that stands in a parameter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace._config.nodekeys import NODE_KEYS
from headrace._plan.threads import needs_thread
from headrace._registry.registry import nearest

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._expression import Call
    from headrace._plan.brackets import Phases
    from headrace._plan.element import Element
    from headrace._plan.layer import Layer
    from headrace._plan.resolver import Resolver
    from headrace._plan.scope import Scope

__all__ = ["parameter", "plan_reflect"]


def parameter(
    resolver: Resolver, element: Element, key: str, scope: Scope
) -> tuple[Written, Layer] | None:
    """Find a parameter as an option is found, by the same rule of who wins."""
    if key == "backend":
        found = resolver.parameters.key(key)
    else:
        found = resolver.parameters.find((element.name,), key, scope.layer)
    if found is None:
        return None
    return found.written, found.layer if found.call is None else replace(found.layer, written=None)


def plan_reflect(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> Element | None:
    """Plan ``Reflect[key,Default]``."""
    from headrace._plan.wiring import word_of

    key_call, *rest = phases[0]
    key = word_of(resolver, element, key_call, inner)
    if key is None:
        resolver.plan_all((tuple(rest),), inner)
        return None
    mark = f"{resolver.node}.{key}"
    if mark in scope.reflecting:
        _report_circle(resolver, key_call, key, mark, inner)
        return None
    found = parameter(resolver, element, key, scope)
    if found is None and not rest:
        if scope.lenient:
            return element
        _report_missing(resolver, key_call, key, inner)
        return None
    child = _plan_found(resolver, element, found, mark, rest, inner, scope)
    if child is None:
        return None
    element.phases = [[child]]
    element.range = child.range
    element.own_thread = scope.wraps and needs_thread(child)
    return element


def _plan_found(
    resolver: Resolver,
    element: Element,
    found: tuple[Written, Layer] | None,
    mark: str,
    rest: list[Call],
    inner: Scope,
    scope: Scope,
) -> Element | None:
    """Plan what stands in the parameter, or the default."""
    from headrace._plan.wiring import check_callable

    entry = scope.entry and not mark.endswith(".backend")
    named = scope.named
    if found is None:
        below = inner.within(last=True, entry=entry, wraps=False, named=named)
        return resolver.plan(rest[0], below)
    written, layer = found
    call = resolver.pipeline.read(written, layer.path, resolver.known_node)
    if call is None:
        resolver.unresolved += 1
        return None
    below = inner.within(
        layer=layer,
        entry=entry,
        wraps=False,
        named=named,
        reflecting=(*scope.reflecting, mark),
        expanding=(),
    )
    child = resolver.plan(call, below)
    if child is not None and not entry and not check_callable(resolver, child, element, below):
        return None
    return child


def _report_circle(resolver: Resolver, call: Call, key: str, mark: str, scope: Scope) -> None:
    chain = (*scope.reflecting[scope.reflecting.index(mark) :], mark)
    shown = " uses ".join(name.partition(".")[2] for name in chain)
    resolver.add("circle", f"the parameter {key!r} uses itself: {shown}", call, scope)


def _report_missing(resolver: Resolver, call: Call, key: str, scope: Scope) -> None:
    message = f"node {resolver.node!r} needs the key {key!r}"
    hint = f'Write {key} = "..." in the node.'
    if any(nearest(name, NODE_KEYS) == key for name in resolver.parameters.unused()):
        return  # it is misspelt, which is reported
    if key == "backend" and not scope.layer.file and scope.layer.written is None:
        file = resolver.pipeline.file_of(resolver.node)
        resolver.problems.add("missing_option", message, file=file, path=resolver.node, hint=hint)
    else:
        resolver.add("missing_option", message, call, scope, hint=hint)
