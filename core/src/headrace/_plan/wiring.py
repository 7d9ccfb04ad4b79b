"""The meaning of the words that wire others together: IoC, DI, With, and names of instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._plan import reflection, registering, scheduling
from headrace._plan.element import Element, Named
from headrace._registry.registry import nearest
from headrace.words._wiring import Wiring
from headrace.words.batching import Batching
from headrace.words.queues import Queue

if TYPE_CHECKING:
    from headrace._expression import Call
    from headrace._plan.brackets import Phases
    from headrace._plan.resolver import Resolver
    from headrace._plan.scope import Scope

__all__ = ["check_callable", "plan_word", "word_of"]


def plan_word(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope, *, good: bool
) -> Element | None:
    """Plan one of the words of `headrace.words._wiring`.

    Args:
        resolver: The resolver.
        element: The word, with its options.
        phases: What stands in its bracket.
        inner: The scope in which the bracket was written.
        scope: The scope in which the word stands.
        good: Whether its options, the number of its children and their prefixes are right.
    """
    cls = element.cls
    assert issubclass(cls, Wiring)  # noqa: S101 - the caller has looked
    if not good:
        registering.register_nothing(resolver, element, scope)
    if not good or not phases:
        resolver.plan_all(phases, inner, words=cls.words)
        return element if good else None
    planned: Element | None = _MEANINGS[cls.word](resolver, element, phases, inner, scope)
    return planned


def word_of(resolver: Resolver, element: Element, child: Call, scope: Scope) -> str | None:
    """Give a child that is a word and no backend; None when it has args or a bracket."""
    if len(child.args) or child.phases:
        message = f"{element.name} takes a name here, without ( ) and [ ]"
        resolver.add("word", message, child, scope)
        return None
    if scope.graft is not None and child in element.call.children[-1:]:
        graft = scope.graft
        resolver.add(
            "arity",
            f"{graft.call.name}[...] goes to {child.name}, which takes nothing in brackets",
            graft.call,
            graft.scope,
        )
        return None
    return child.name


def check_callable(resolver: Resolver, child: Element, parent: Element, scope: Scope) -> bool:
    """Check that an element that is going to be called can be."""
    why = why_not_callable(child)
    if why is None:
        return True
    message = f"{child.name} {why}: {parent.name} cannot call it"
    hint = "It belongs in the init of a node." if child.cls is Queue else None
    resolver.add("not_callable", message, child.call, scope, hint=hint)
    return False


def why_not_callable(element: Element) -> str | None:
    """Tell why what is built from an element cannot be called; None when it can."""
    cls = scheduling.door_of(element).cls
    if issubclass(cls, Wiring) and cls.word in ("list", "instances"):
        return "only builds others"
    return "only declares a queue" if cls is Queue else None


# IoC, DI, With.


def _plan_ioc(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> Element | None:
    if len(phases[1]) != 1:
        message = "IoC has one front after ';'"
        resolver.add("arity", message, phases[1][1], inner, hint="S[...] puts several together.")
    frame: dict[str, Named] = {}
    frames = (*inner.frames, frame)
    first: list[Element] = []
    good = len(phases[1]) == 1
    for child in phases[0]:
        if child.name in frame:
            resolver.add("twice", f"{child.name!r} stands twice before ';'", child, inner)
            good = False
        below = inner.within(frames=frames, named=True, entry=scope.entry, wraps=scope.wraps)
        planned = resolver.plan(child, below)
        if planned is None:
            good = False
        else:
            first.append(planned)
        if planned is None or not registering.registers(planned):
            frame[child.name] = Named(child.name, planned)
    below = inner.within(last=True, frames=frames, entry=scope.entry, wraps=scope.wraps)
    fronts = [resolver.plan(child, below) for child in phases[1]]
    front = fronts[0]
    if front is None or not good:
        return None
    scheduling.check_used(resolver, frame.values(), inner)
    if not check_callable(resolver, front, element, inner):
        return None
    element.phases = [first, [front]]
    element.range = front.range
    return element


def _plan_di(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> Element | None:
    *outer, nested = phases[0]
    for child in reversed(outer):
        if child.phases:
            message = f"{child.name} is to depend on {nested.name}, and has a bracket of its own"
            resolver.add("arity", message, child, inner)
            resolver.plan_all(phases, inner)
            return None
        nested = child.replace(phases=((nested,),))
    return resolver.plan(
        nested,
        inner.within(
            last=True,
            named=scope.named,
            batched=scope.batched,
            entry=scope.entry,
            wraps=scope.wraps,
        ),
    )


# Instances by name.


def _plan_instance(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> Element | None:
    child = phases[0][0]
    name = word_of(resolver, element, child, inner)
    return None if name is None else _stand_for(resolver, element, name, child, inner)


def _plan_param(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> Element | None:
    child = phases[0][0]
    key = word_of(resolver, element, child, inner)
    if key is None:
        return None
    found = reflection.parameter(resolver, element, key, scope)
    if found is None:
        if scope.lenient:
            return element
        resolver.add(
            "missing_option",
            f"{element.name} needs the parameter {key!r}",
            child,
            inner,
            hint=f"Write {key} = ... in the node, with the name of an instance.",
        )
        return None
    written, layer = found
    call = resolver.pipeline.read(written, layer.path, resolver.known_node)
    if call is None:
        return None
    if len(call.args) or call.phases:
        message = f"{key!r} is to be the name of an instance"
        resolver.add("word", message, call, inner.same(layer=layer))
        return None
    return _stand_for(resolver, element, call.name, call, inner.same(layer=layer))


def _stand_for(
    resolver: Resolver, element: Element, name: str, call: Call, scope: Scope
) -> Element | None:
    named = scope.lookup(name) or resolver.pipeline.named(name)
    if named is None:
        node = resolver.pipeline.being_planned(name)
        if node is not None:
            resolver.circle(call, node, scope)
            return None
        if scope.lenient:
            return element
        known = [k for frame in scope.frames for k in frame] + resolver.pipeline.instances()
        node = f"node.{name}"
        resolver.add(
            "unknown_instance",
            f"no instance is called {name!r}",
            call,
            scope,
            suggestion=node if node in known else nearest(name, known),
            hint=f"There are: {', '.join(sorted(known))}." if known else None,
        )
        return None
    target = resolver.reference(call.replace(name=name, prefix=None), named, scope.same(graft=None))
    if target is None or named.element is None:
        return None
    element.named = named
    element.range = (1, None) if is_scheduled(named.element) else named.element.range
    return element


def _plan_repost(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> Element | None:
    child = phases[0][0]
    name = word_of(resolver, element, child, inner)
    if name is None:
        return None
    nodes = list(resolver.pipeline.shape.nodes)
    if name not in nodes and not scope.lenient:
        resolver.add(
            "graph",
            f"no node is called {name!r}",
            child,
            inner,
            suggestion=nearest(name.removeprefix("node."), nodes),
            hint=f"There are: {', '.join(nodes)}.",
        )
        return None
    layer, call = scope.layer, element.call
    place = {"file": layer.file, "path": layer.path, "span": call.name_span, "text": call.text}
    element.target = (name, place)
    return element


def is_scheduled(element: Element) -> bool:
    """Tell whether calls of an instance go through a scheduler."""
    return scheduling.door_of(element).cls is Batching


_MEANINGS: dict[str, Any] = {
    "ioc": _plan_ioc,
    "di": _plan_di,
    "with": _plan_di,
    "instance": _plan_instance,
    "param": _plan_param,
    "reflect": reflection.plan_reflect,
    "register": registering.plan_register,
    "instances": registering.plan_instances,
    "list": registering.plan_list,
    "repost": _plan_repost,
}
