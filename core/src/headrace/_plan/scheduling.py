"""Where Batching, InstanceDispatcher, DagDispatcher and Process may stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._plan.processes import check_process
from headrace.words._wiring import Wiring
from headrace.words.batching import Batching, InstanceDispatcher
from headrace.words.dag import DagDispatcher
from headrace.words.process import Process

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._plan.element import Element, Named
    from headrace._plan.layer import Layer
    from headrace._plan.resolver import Resolver
    from headrace._plan.scope import Scope

__all__ = [
    "check_batching",
    "check_dispatcher",
    "check_one_batching",
    "check_used",
    "check_walker",
    "door_of",
]


def door_of(element: Element) -> Element:
    """Follow the wiring words to what is called in the end."""
    while True:
        words = issubclass(element.cls, Wiring) and element.cls.word not in ("list", "instances")
        if words and element.named is None and element.children:
            element = element.children[-1]
        elif element.named is not None and not element.children and element.named.element:
            element = element.named.element
        else:
            return element


def check_dispatcher(resolver: Resolver, element: Element, scope: Scope) -> bool:
    """Check that an ``InstanceDispatcher`` stands in ``Batching[...]``."""
    if element.cls is not InstanceDispatcher or scope.batched or scope.named:
        return True
    resolver.add(
        "scheduling",
        "InstanceDispatcher stands in Batching[InstanceDispatcher] only",
        element.call,
        scope,
    )
    return False


def check_walker(resolver: Resolver, element: Element, scope: Scope) -> bool:
    """Check that no node walks the graph it stands in, and no process reaches out of itself."""
    if element.cls is Process:
        return check_process(resolver, element, scope)
    if element.cls is not DagDispatcher or resolver.known_node is None or scope.lenient:
        return True
    resolver.add(
        "circle",
        f"DagDispatcher walks through all nodes, so node {resolver.node!r} would call itself",
        element.call,
        scope,
        hint="Write it in entrypoint; from inside a node, Forward[node.x] calls another one.",
    )
    return False


def check_batching(resolver: Resolver, element: Element, scope: Scope) -> bool:
    """Check that a ``Batching`` stands where a scheduler can, over something to schedule."""
    if element.cls is not Batching or scope.lenient:
        return True
    if not scope.entry:
        resolver.add(
            "scheduling",
            "Batching belongs in init or node_entrypoint, not in what is built per instance",
            element.call,
            scope,
        )
        return False
    instances = f"{resolver.node}.0" in resolver.pipeline.registered
    for child in element.children:
        if child.cls is InstanceDispatcher and not instances:
            resolver.add(
                "scheduling",
                "InstanceDispatcher finds no instances: InstancesRegister[...] comes before it",
                child.call,
                scope,
            )
            return False
    return True


def check_used(resolver: Resolver, names: Iterable[Named], scope: Scope) -> None:
    """Report instances of the words of scheduling that no expression makes use of."""
    for named in names:
        element = named.element
        if element is None or named.used or element.named is not None or element.children:
            continue
        if element.cls is Batching or element.cls is InstanceDispatcher:
            resolver.add(
                "scheduling",
                f"{named.name} ends in no Batching[InstanceDispatcher] and no Batching[X]",
                element.call,
                scope,
            )


def check_one_batching(
    resolver: Resolver, roots: list[Element], door: Element, layer: Layer
) -> bool:
    """Check that the only ``Batching`` of a node is the one it is called through."""
    found = [e for root in roots for e in root.walk() if e.cls is Batching and e.children]
    wrong = [element for element in found if element is not door]
    for element in wrong:
        resolver.problems.add(
            "scheduling",
            "a node has one Batching, the one that it is called through",
            file=layer.file,
            path=layer.path,
            span=element.call.name_span,
            text=element.call.text,
        )
    return not wrong
