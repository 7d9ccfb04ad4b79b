"""Register, InstancesRegister and List: what is built in ``init`` and ``node_entrypoint``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._plan.element import Named
from headrace.words._wiring import Wiring

if TYPE_CHECKING:
    from headrace._plan.brackets import Phases
    from headrace._plan.element import Element
    from headrace._plan.resolver import Resolver
    from headrace._plan.scope import Scope

__all__ = ["plan_instances", "plan_list", "plan_register", "register_nothing", "registers"]


def registers(element: Element) -> bool:
    """Tell whether an element is there for what it registers, not for its own name."""
    return (
        element.named is None
        and issubclass(element.cls, Wiring)
        and element.cls.word in ("register", "instances", "list")
    )


def _may_stand(resolver: Resolver, element: Element, scope: Scope) -> bool:
    if scope.entry:
        return True
    resolver.add(
        "place",
        f"{element.name} belongs in init or node_entrypoint, not in what is built per instance",
        element.call,
        scope,
    )
    return False


def _register(
    resolver: Resolver,
    element: Element,
    name: str,
    child: Element | None,
    scope: Scope,
    index: int | None = None,
) -> None:
    if scope.lenient or not scope.entry:
        return
    layer, call = scope.layer, element.call
    place: dict[str, Any] = {
        "file": layer.file,
        "path": layer.path,
        "span": call.name_span,
        "text": call.text,
    }
    named = Named(name, child, True, resolver.node, index)
    resolver.pipeline.register(named, place)


def register_nothing(resolver: Resolver, element: Element, scope: Scope) -> None:
    """Let the names that a wrong element would register be known, so that nobody misses them."""
    if not registers(element) or scope.lenient:
        return
    keys = resolver.keys
    resolver.pipeline.spoil_node(resolver.node, 0 if keys is None else keys.instance_num)


def plan_register(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> Element | None:
    """Plan ``Register(name)[X]``."""
    allowed = _may_stand(resolver, element, scope)
    child = resolver.plan(
        phases[0][0],
        inner.within(last=True, named=True, entry=scope.entry, wraps=scope.wraps),
    )
    wanted: Any = getattr(element.options, "name", None)
    _register(
        resolver,
        element,
        f"node.{resolver.node}" if wanted is None else str(wanted),
        child,
        scope,
    )
    if child is None or not allowed:
        return None
    element.phases = [[child]]
    element.range = child.range
    return element


def plan_instances(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> Element | None:
    """Plan ``InstancesRegister[X]``."""
    from headrace._plan.wiring import check_callable

    allowed = _may_stand(resolver, element, scope)
    child = resolver.plan(phases[0][0], inner.within(last=True, wraps=scope.wraps, entry=False))
    for index in range(resolver.keys.instance_num if resolver.keys is not None else 1):
        _register(resolver, element, f"{resolver.node}.{index}", child, scope, index)
    if child is None or not allowed:
        return None
    if not check_callable(resolver, child, element, inner):
        return None
    element.phases = [[child]]
    return element


def plan_list(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> Element | None:
    """Plan ``List[a,b]``."""
    last = phases[0][-1]
    planned = [
        resolver.plan(child, inner.within(last=child is last, entry=scope.entry, wraps=scope.wraps))
        for child in phases[0]
    ]
    if None in planned:
        return None
    element.phases = [[child for child in planned if child is not None]]
    return element
