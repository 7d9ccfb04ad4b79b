"""The meaning of the wiring words, and of containers that choose a branch before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._config.document import Written
from headrace._config.problems import Problems
from headrace._containers.choice import Fallback, ModelLoader
from headrace._containers.scheduling import Batching, InstanceDispatcher
from headrace._containers.wiring import Wiring
from headrace._plan.element import Element, Named
from headrace._plan.options import plain_value
from headrace._plan.scope import Layer
from headrace._registry.registry import nearest

if TYPE_CHECKING:
    from headrace._expression import Call
    from headrace._plan.resolver import Resolver
    from headrace._plan.scope import Scope

__all__ = ["check_scheduling", "choose_branches", "plan_word"]


def plan_word(resolver: Resolver, element: Element, scope: Scope) -> Element | None:
    """Plan one of the words of `headrace._containers.wiring`."""
    cls = element.cls
    assert issubclass(cls, Wiring)  # noqa: S101 - the caller has looked
    bracket = resolver._bracket(element.call, scope)
    phases, inner = bracket if bracket is not None else ((), scope)
    if element.options is None or not resolver._check_arity(element, phases, scope):
        return None
    if any(resolver.prefix(element, child, inner) is None for phase in phases for child in phase):
        return None
    return _MEANINGS[cls.word](resolver, element, phases, inner, scope)


def _word(resolver: Resolver, element: Element, child: Call, scope: Scope) -> str | None:
    """Give a child that is a word and no backend; None when it has args or a bracket."""
    if len(child.args) or child.phases:
        resolver.add(
            "word",
            f"{element.name} takes a name here, without ( ) and [ ]",
            child,
            scope,
        )
        return None
    return child.name


# IoC, DI, With.


def _plan_ioc(
    resolver: Resolver, element: Element, phases: Any, inner: Scope, scope: Scope
) -> Element | None:
    if len(phases[1]) != 1:
        resolver.add("arity", "IoC has one front after ';'", phases[1][1], inner)
        return None
    frame: dict[str, Named] = {}
    frames = (*inner.frames, frame)
    first: list[Element] = []
    good = True
    for child in phases[0]:
        if child.name in frame:
            resolver.add("twice", f"{child.name!r} stands twice before ';'", child, inner)
            good = False
        below = inner.within(frames=frames, named=True, entry=scope.entry, wraps=scope.wraps)
        planned = resolver.plan(child, below)
        if planned is None:
            good = False
            continue
        first.append(planned)
        if not _registers(planned):
            frame[child.name] = Named(child.name, planned)
    below = inner.within(
        frames=frames,
        entry=scope.entry,
        wraps=scope.wraps,
        graft=scope.graft if inner is scope else None,
    )
    front = resolver.plan(phases[1][0], below)
    if front is None or not good:
        return None
    element.phases = [first, [front]]
    element.range = front.range
    return element


def _registers(element: Element) -> bool:
    """Tell whether an element of a first phase is there for what it registers, not for its name."""
    return issubclass(element.cls, Wiring) and element.cls.word in (
        "register",
        "instances",
        "list",
    )


def _plan_di(
    resolver: Resolver, element: Element, phases: Any, inner: Scope, scope: Scope
) -> Element | None:
    *outer, nested = phases[0]
    for child in reversed(outer):
        if child.phases:
            resolver.add(
                "arity",
                f"{child.name} is to depend on {nested.name}, and has a bracket of its own",
                child,
                inner,
            )
            return None
        nested = child.replace(phases=((nested,),))
    graft = scope.graft if inner is scope else None
    return resolver.plan(
        nested, inner.within(graft=graft, named=scope.named, entry=scope.entry, wraps=scope.wraps)
    )


# Instances by name.


def _plan_instance(
    resolver: Resolver, element: Element, phases: Any, inner: Scope, scope: Scope
) -> Element | None:
    child = phases[0][0]
    name = _word(resolver, element, child, inner)
    return None if name is None else _stand_for(resolver, element, name, child, inner)


def _plan_param(
    resolver: Resolver, element: Element, phases: Any, inner: Scope, scope: Scope
) -> Element | None:
    key = _word(resolver, element, phases[0][0], inner)
    if key is None:
        return None
    found = _parameter(resolver, element, key, scope)
    if found is None:
        resolver.add(
            "missing_option",
            f"{element.name} needs the parameter {key!r}",
            phases[0][0],
            inner,
            hint=f"Write {key} = ... in the node, with the name of an instance.",
        )
        return None
    written, _ = found
    return _stand_for(resolver, element, str(written.value), phases[0][0], inner)


def _stand_for(
    resolver: Resolver, element: Element, name: str, call: Call, scope: Scope
) -> Element | None:
    named = scope.lookup(name) or resolver.pipeline.named(name)
    if named is None:
        node = resolver.pipeline.being_planned(name)
        if node is not None:
            resolver.circle(call, node, scope)
            return None
        known = [k for frame in scope.frames for k in frame] + list(resolver.pipeline.registered)
        resolver.add(
            "unknown_instance",
            f"no instance is called {name!r}",
            call,
            scope,
            suggestion=nearest(name, known),
            hint=f"There are: {', '.join(sorted(known))}." if known else None,
        )
        return None
    target = resolver.reference(call.replace(name=name, prefix=None), named, scope.same(graft=None))
    if target is None:
        return None
    element.named = named
    element.range = (1, None) if _is_scheduled(named.element) else named.element.range
    return element


def _is_scheduled(element: Element) -> bool:
    """Tell whether calls of an instance go through a scheduler."""
    while element.children and issubclass(element.cls, Wiring):
        element = element.children[-1]
    return element.cls is Batching


# Reflect.


def _parameter(
    resolver: Resolver, element: Element, key: str, scope: Scope
) -> tuple[Written, Layer] | None:
    """Find a parameter as an option is found, by the same rule of who wins."""
    inline = definition = None
    for scoped in scope.layer.scoped:
        if key in scoped.values:
            scoped.used.add(key)
            value = plain_value(scoped.values[key])
            layer = Layer(scoped.layer.path, scoped.layer.file, scoped.layer.base)
            found = Written(value, _path(scoped.layer.base), scoped.layer.file), layer
            if scoped.layer.depth == 0:
                inline = inline or found
            else:
                definition = definition or found
    if key == "backend":
        written = resolver.parameters.backend()
        return None if written is None else (written[1], _layer(written))
    parameter = resolver.parameters.find((element.name,), key)
    if inline is not None:
        return inline
    if parameter is not None:
        return parameter[1], _layer(parameter)
    return definition


def _path(text: str) -> Any:
    from pathlib import Path

    return Path(text)


def _layer(found: tuple[str, Written, str]) -> Layer:
    _, written, path = found
    return Layer(path, written.file, str(written.base))


def _plan_reflect(
    resolver: Resolver, element: Element, phases: Any, inner: Scope, scope: Scope
) -> Element | None:
    key_call, *rest = phases[0]
    key = _word(resolver, element, key_call, inner)
    if key is None:
        return None
    mark = f"{resolver.node}.{key}"
    if mark in scope.reflecting:
        chain = " uses ".join((*scope.reflecting, mark))
        resolver.add("circle", f"the parameter {key!r} uses itself: {chain}", key_call, inner)
        return None
    found = _parameter(resolver, element, key, scope)
    below = inner.within(
        entry=False,
        wraps=False,
        named=scope.named,
        graft=scope.graft if inner is scope else None,
    )
    if found is None and not rest:
        resolver.add(
            "missing_option",
            f"node {resolver.node!r} needs the key {key!r}",
            key_call,
            inner,
            **({"span": None, "text": None, "path": resolver.node} if key == "backend" else {}),
            hint=f'Write {key} = "..." in the node.',
        )
        return None
    if found is not None:
        written, layer = found
        call = resolver.pipeline.read(written, layer.path, resolver.node)
        if call is None:
            return None
        child = resolver.plan(call, below.same(layer=layer, reflecting=(*scope.reflecting, mark)))
    else:
        child = resolver.plan(rest[0].replace(prefix=None), below)
    if child is None:
        return None
    element.phases = [[child]]
    element.range = child.range
    element.own_thread = scope.wraps and _needs_thread(child)
    return element


def _needs_thread(element: Element) -> bool:
    """Tell whether a backend below owns its thread and stands in no BackgroundThread."""
    from headrace._containers.background import BackgroundThread

    if element.named is not None or element.own_thread or element.cls is BackgroundThread:
        return False
    return element.cls.owns_thread or any(_needs_thread(child) for child in element.children)


# Register, InstancesRegister, List.


def _in_entry(resolver: Resolver, element: Element, scope: Scope) -> bool:
    if scope.entry:
        return True
    resolver.add(
        "place",
        f"{element.name} belongs in init or node_entrypoint, not in an expression that is copied",
        element.call,
        scope,
    )
    return False


def _plan_register(
    resolver: Resolver, element: Element, phases: Any, inner: Scope, scope: Scope
) -> Element | None:
    if not _in_entry(resolver, element, scope):
        return None
    child = _registered_child(resolver, phases[0][0], inner, scope)
    if child is None:
        return None
    wanted: Any = getattr(element.options, "name", None)
    name = f"node.{resolver.node}" if wanted is None else str(wanted)
    element.phases = [[child]]
    element.range = child.range
    if not scope.lenient:
        named = Named(name, child, True, resolver.node)
        resolver.pipeline.register(named, _place(element.call, inner))
    return element


def _plan_instances(
    resolver: Resolver, element: Element, phases: Any, inner: Scope, scope: Scope
) -> Element | None:
    if not _in_entry(resolver, element, scope):
        return None
    child = _registered_child(resolver, phases[0][0], inner, scope)
    if child is None or resolver.keys is None:
        return None
    element.phases = [[child]]
    if not scope.lenient:
        for index in range(resolver.keys.instance_num):
            name = f"{resolver.node}.{index}"
            named = Named(name, child, True, resolver.node, index)
            resolver.pipeline.register(named, _place(element.call, inner))
    return element


def _registered_child(resolver: Resolver, call: Call, inner: Scope, scope: Scope) -> Element | None:
    graft = scope.graft if inner is scope else None
    child = resolver.plan(
        call, inner.within(named=True, entry=scope.entry, wraps=scope.wraps, graft=graft)
    )
    if child is not None and _needs_thread(child):
        child.own_thread = True
    return child


def _plan_list(
    resolver: Resolver, element: Element, phases: Any, inner: Scope, scope: Scope
) -> Element | None:
    planned = []
    for child in phases[0]:
        graft = scope.graft if inner is scope and child is phases[0][-1] else None
        below = inner.within(named=True, entry=scope.entry, wraps=scope.wraps, graft=graft)
        planned.append(resolver.plan(child, below))
    if None in planned:
        return None
    element.phases = [[child for child in planned if child is not None]]
    return element


def _place(call: Call, scope: Scope) -> dict[str, Any]:
    layer = scope.layer
    return {"file": layer.file, "path": layer.path, "span": call.name_span, "text": call.text}


_MEANINGS: dict[str, Any] = {
    "ioc": _plan_ioc,
    "di": _plan_di,
    "with": _plan_di,
    "instance": _plan_instance,
    "param": _plan_param,
    "reflect": _plan_reflect,
    "register": _plan_register,
    "instances": _plan_instances,
    "list": _plan_list,
}


# Containers that choose.

_UNAVAILABLE = ("unknown_backend", "missing_plugin", "plugin", "missing_dependency")
"""Beginnings of the codes of problems that make `Fallback` try the next."""


def plan_branch(resolver: Resolver, element: Element, child: Call, scope: Scope) -> Element | None:
    """Plan a branch that need not be buildable here; why it is not goes into ``unavailable``."""
    outer, resolver.problems = resolver.problems, Problems()
    try:
        planned = resolver.plan(child, scope)
        found = list(resolver.problems)
    finally:
        resolver.problems = outer
    if element.cls is ModelLoader:
        if planned is None or found:
            element.unavailable[child.name] = "; ".join(p.message for p in found)
        return planned if not found else None
    hard = [p for p in found if not p.code.startswith(_UNAVAILABLE)]
    if hard:
        outer.extend(hard)
    elif found:
        element.unavailable[child.name] = "; ".join(p.message for p in found)
    return planned if not found else None


def choose_branches(resolver: Resolver, element: Element, scope: Scope) -> Element | None:
    """Check a container that chooses among its children, once they are planned."""
    if element.cls is Batching:
        return check_scheduling(resolver, element, scope)
    if element.cls is Fallback and not element.children and not scope.lenient:
        reasons = "; ".join(f"{k}: {v}" for k, v in element.unavailable.items())
        resolver.add(
            "fallback", f"nothing in Fallback can be built here: {reasons}", element.call, scope
        )
        return None
    return element


def suffix_branch(
    resolver: Resolver, element: Element, children: tuple[Call, ...], scope: Scope
) -> Call | None:
    """Give the child of a ``ModelLoader`` whose prefix ends the option ``model``."""
    suffixes: list[str] = []
    for child in children:
        flags = [str(v) for v in child.prefix.positional] if child.prefix is not None else []
        if len(flags) != 1:
            resolver.add(
                "prefix", f"a branch of {element.name} begins with a suffix: (.onnx)A", child, scope
            )
            return None
        suffixes += flags
    model = str(getattr(element.options, "model", ""))
    for suffix, child in zip(suffixes, children, strict=True):
        if model.lower().endswith(suffix.lower()):
            return child
    resolver.add(
        "suffix",
        f"{element.name} has no branch for the model {model!r}: it has {', '.join(suffixes)}",
        element.call,
        scope,
    )
    return None


def check_scheduling(resolver: Resolver, element: Element, scope: Scope) -> Element | None:
    """Check that a ``Batching`` stands where a scheduler can, over something to schedule."""
    if not scope.entry and not scope.lenient:
        resolver.add(
            "scheduling",
            "Batching belongs in init or node_entrypoint, not in an expression that is copied",
            element.call,
            scope,
        )
        return None
    for child in element.children:
        if child.cls is InstanceDispatcher and f"{resolver.node}.0" not in (
            resolver.pipeline.registered
        ):
            if scope.lenient:
                continue
            resolver.add(
                "scheduling",
                "InstanceDispatcher finds no instances: InstancesRegister[...] comes before it",
                child.call,
                scope,
            )
            return None
    return element
