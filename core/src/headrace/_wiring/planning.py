"""Planning nodes that say how their instances are made and called, and names that stand for instances.

The functions answer a `Planner`, which loads this module when it meets the first such node or name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._plan.declared import states_range
from headrace._plan.element import Element, Named, NodePlan, Source, elements_of, place_of
from headrace._plan.links import cycle_of
from headrace._plan.parameters import value_written
from headrace._plan.planning import Scope, parse_quietly
from headrace._plan.word import (
    callee_of,
    core_word,
    needs_thread,
    runs_elsewhere,
    way_to_called,
    why_not_callable,
    word_of,
)
from headrace._registry.registry import registry
from headrace._running.route import closure
from headrace._wiring.building import build_use
from headrace._wiring.words import check_used

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._expression.tree import Call
    from headrace._plan.planner import Planner

_FRONT = "Forward[node.{node_name}]"
"""The expression of a node whose ``init`` registers what it is called through."""

_AROUND = 3
"""How many levels of what a plugin gives may stand around ``backend`` without counting as nesting."""


def homes(planner: Planner) -> dict[str, str]:
    """Find the names of their own under which nodes will register instances, each with its node."""
    shape, homes = planner.shape, dict[str, str]()
    for node in shape.nodes:
        read, todo = set(), [("init", True), ("node_entrypoint", True)]
        while todo:
            name, is_key = mark = todo.pop()
            if mark in read:
                continue
            read.add(mark)
            text = value_written(name, node, shape) if is_key else shape.definitions.get(name)
            calls = [] if text is None else parse_quietly(text.value, node)
            for call in calls:  # and those in it
                calls += call.children
                word = core_word(call.name)
                if word._registers_names and call.args:
                    homes.setdefault(str(call.args.values[0]), node)
                todo.append((call.name, False))
                todo += [(one.name, True) for one in call.children[: word._names]]  # `Reflect`
    return homes


# One node.


def roots(planner: Planner) -> tuple[Element | None, Element | None]:
    """Plan ``init`` of the present node of the planner, and the expression of the whole node."""
    backend, init = planner.parameters.key("backend"), planner.at_key("init")
    if init is None and planner.parameters.key("init") is not None:
        planner.register_wrong()
    whole = _entrypoint(planner)
    if whole is None and backend is not None:
        # What is wrong there has hidden what is wrong in `backend`, and perhaps instances that it names.
        planner.plan_expression_at(backend.value, backend.source, Scope(lenient=True))
    return init, whole


def _entrypoint(planner: Planner) -> Element | None:
    """Plan the expression of the whole node, which the user or a plugin gives; else that of its instances."""
    name, init = f"node.{planner.node}", planner.parameters.key("init")
    if planner.parameters.key("node_entrypoint") is not None:
        return planner.at_key("node_entrypoint")
    made = planner.registered.keys() & {name, f"{planner.node}.0"}
    if init is not None and (made or planner.parameters.key("backend") is None):
        if name not in made:
            what = f"init registers nothing as {name!r}, through which the node is called"
            hint = "Add Register[...] to it, or write a node_entrypoint."
            planner.problems.add("unknown_instance", what, hint=hint, **init.place())
            return None
        source = Source(f"{planner.node}.node_entrypoint")
        return planner.plan_expression_at(_FRONT, source, Scope())
    hooked = [one for one in registry.plugins() if one.hooks["node_entrypoint"] is not None]
    if len(hooked) > 1:
        what = (
            f"{' and '.join(one.distribution for one in hooked)} both set the expression of a node"
        )
        hint = "Disable one of them with HEADRACE_PLUGINS."
        planner.problems.add("plugin", what, hint=hint)
        return None
    if not hooked:
        return planner.instances()
    source = Source(f"node_entrypoint of {hooked[0].distribution}", origin="definition")
    text = hooked[0].hooks["node_entrypoint"]
    return planner.plan_expression_at(text, source, Scope(depth=-_AROUND, may_register=True))


def callee(planner: Planner, plan: NodePlan) -> Element | None:
    """Find the element through which the node is called; None where that is wrong, which is reported."""
    name = f"node.{plan.name}"
    named = planner.registered.setdefault(name, Named(name, plan.entrypoint, plan.name))
    if named.element is None:
        return None
    named.set_depth(plan.roots)
    own = (one for one in planner.registered.values() if one.node == plan.name)
    check_used(planner, (one for one in own if one.index is None))
    way = [named.element] if named.queued else way_to_called(named.element)
    *before, callee = way
    for other in (element.named for element in way):
        # Its queue and instances would be those of the other node, and its own keys mean nothing.
        if other and other.name == f"node.{other.node}" and other.node != plan.name:
            what = f"node {plan.name!r} is called through node {other.node!r}, past its own queue"
            hint = f'Write backend = "Forward[{other.name}]" and no init or node_entrypoint.'
            planner.add("alias", what, named.element.call, hint=hint)
    for element in elements_of(plan.roots):
        if word_of(element.cls)._gathers and element.children and element is not callee:
            what = f"a node has one {element.cls.__name__}, the one that it is called through"
            planner.add("scheduling", what, element.call)
    entrypoint = callee_of(plan.entrypoint)
    plan.bypassed = (
        not named.queued and entrypoint is not callee and why_not_callable(entrypoint) is None
    )
    gathers = word_of(callee.cls)._gathers and callee.children
    with_thread = next((one for one in before if one.own_thread), callee)
    plan.runs = plan.instance or (callee.children[0] if gathers else with_thread)
    return callee


# Names of instances.


def use(planner: Planner, element: Element, named: Named, target: Element, scope: Scope) -> bool:
    """Plan the bracket of a name that stands for the instance ``target``; False where what it depends on is wrong."""
    call, children = element.call, element.call.children
    named.build = build_use
    if not children:
        if target.is_bare and not (scope.gets_name or call is scope.slot):
            message = f"{call.name!r} needs what it depends on: {call.name}[...]"
            planner.add("dependency", message, call)
    elif not target.is_bare or len(children) != 1:
        if target.is_bare:
            planner.add("arity", f"{call.name!r} depends on one child", call)
        elif not planner.refuse_bracket(call):
            message = f"{call.name!r} is an instance here and takes nothing in brackets"
            hint = "Only an instance of a class with forward_with_dep, built without one, does."
            planner.add("arity", message, call, hint=hint)
        planner.plan_all(children, scope)
    else:
        if (child := planner.plan(children[0], scope.within(parent=target.cls))) is None:
            return False
        element.phases = [[child]]
        if not states_range(target.cls):
            element.range = child.range
    return True


def give_threads_to_named(root: Element) -> None:
    """Put a thread around each instance of an ``IoC`` that needs one, where another thread inside it calls it."""
    threads = [one for one in root.walk() if word_of(one.cls)._threaded or runs_elsewhere(one)]
    for thread in threads:
        todo = list(thread.walk())
        made = set(map(id, todo))
        for one in todo:
            if one.named is None or one.named.registered or id(one.named.element) in made:
                continue
            if (instance := one.named.element) is not None and needs_thread(instance):
                instance.own_thread = True
                threads += [instance, *filter(runs_elsewhere, root.walk())]
            elif instance is not None and not instance.own_thread:
                made.add(id(instance))
                todo += instance.walk()


def check_waits(planner: Planner, entrypoint: Element | None) -> None:
    """Report nodes and instances that may wait for each other for ever, since each lets in one caller at a time."""
    nodes = planner.nodes
    nearest = _waits(nodes, entrypoint, None)
    ways = {key: closure([key], lambda one: nearest.get(one, ())) for key in nearest}
    around = {key for key in ways if any(key in ways.get(one, ()) for one in nearest[key])}
    waits = _waits(nodes, entrypoint, around) if around else {}
    if (cycle := cycle_of({key: list(others) for key, others in waits.items()})) is not None:
        names = [repr(key if isinstance(key, str) else key.name) for key in reversed(cycle)]
        what = f"{' calls '.join(names)}, each lets in one caller at a time, and they may wait for each other"
        hint = (
            "Call them in one order everywhere, and in one thread where one stands inside itself."
        )
        planner.problems.add("cycle", what, hint=hint, **place_of(waits[cycle[-1]][cycle[-2]]))


def _waits(
    nodes: Mapping[str, NodePlan], entrypoint: Element | None, among: set[Any] | None
) -> dict[Any, dict[Any, Call]]:
    """Give, for all that lets in one caller at a time, what may be waited for inside it, and where.

    These are the nodes (``node.x``), the registered instances by name, and the elements of an ``IoC`` that have a
    thread. The thread that is inside one of them may enter it again. Of the ways through them, whose number grows
    fast, those are told apart that lead through other keys of ``among``. None: each is seen inside the nearest alone.
    """
    found: dict[Any, dict[Any, Call]] = {}
    own = ((node.runs, {f"node.{name}": name}, name) for name, node in nodes.items())
    todo: list[tuple[Element, dict[Any, Any], Any]] = [*own]
    todo += [(entrypoint, {}, "")] if entrypoint is not None else []
    seen = set()
    while todo:
        element, held, thread = todo.pop()
        if (state := (id(element), *held.items(), thread)) in seen:
            continue
        seen.add(state)
        thread = id(element) if _has_thread(element) else thread
        below, named = list(element.children), element.named
        while named is not None and (made := named.element) is not None:
            queued = _has_queue(named)
            key: Any = named.name if named.registered else made
            if named.index is not None or queued:
                key = f"node.{named.node}"
            alone = named.registered or _has_thread(made)
            again = among is not None and held.get(key) == thread
            if alone and not (queued and made.named) and not again:
                for one in held:
                    found.setdefault(one, {})[key] = element.call
            thread = id(made) if _has_thread(made) else thread
            below += [] if queued else made.children
            if alone and not queued and (among is None or key in among):
                held = {key: thread} if among is None else {**held, key: thread}
            named = made.named
        todo += [(one, held, thread) for one in below]
    return found


def _has_thread(element: Element) -> bool:
    return element.own_thread or word_of(element.cls)._threaded


def _has_queue(named: Named) -> bool:
    """Tell whether calls of an instance wait in the queue of a node."""
    way = [] if named.element is None else way_to_called(named.element)
    inner = (one.named for one in way if one.named is not None)
    gathers = any(word_of(one.cls)._gathers for one in way)
    return named.queued or gathers or any(one.queued for one in inner)
