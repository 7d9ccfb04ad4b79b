"""Planning one node: its keys, its policies, its expressions, and what it is called through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace._config.document import Written
from headrace._config.nodekeys import NODE_KEYS, NodeKeys
from headrace._config.problems import key_place
from headrace._expression.parser import read_expression
from headrace._plan.declared import narrowed
from headrace._plan.element import Element, Named, NodePlan
from headrace._plan.named import plan_policies
from headrace._plan.options import check_keys
from headrace._plan.parameters import Found, Parameters
from headrace._plan.scope import Layer, Scope
from headrace._plan.word import called, check_used, core_word, give_threads, word_of
from headrace._registry.hooks import node_entrypoint
from headrace.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from headrace._plan.resolver import Resolver


DEFAULT_NODE = (
    "IoC[InstancesRegister[Reflect[backend]],Register[DI[Batching,InstanceDispatcher]];"
    "Forward[node.{node_name}]]"
)
"""The expression of a node that configures neither ``init`` nor ``node_entrypoint``."""

_DEFAULT_FRONT = "Forward[node.{node_name}]"
"""The expression of a node that has an ``init`` of its own."""

_AROUND = 3
"""How many levels of `DEFAULT_NODE` stand around ``backend``; they do not count as nesting."""

_OF_A_DOOR = ("backend", "timeout_ms")
"""The keys that a second door to another node may have."""


class NodePlanner:
    """Plans one node of a pipeline."""

    def __init__(self, planner: Resolver, name: str) -> None:
        self.planner = planner
        self.name = name
        self.problems = planner.problems
        self.table = planner.shape.nodes[name]
        shared = planner.shape.globals
        self.parameters = Parameters(name, self.table, shared, planner.used_globals)
        planner.all_parameters.append(self.parameters)
        self.keys, self.origins = check_keys(NodeKeys, self.table, shared, name, self.problems)

    def plan(self) -> None:
        """Plan it; it is put under ``planner.nodes`` when nothing in it is wrong."""
        self.planner.enter(self.name, self.keys, self.parameters)
        policies = plan_policies(self.planner, self.origins)
        door_to = self._second_door()
        init = self._key("init")
        wrong = self.parameters.key("init") is not None and init is None
        if wrong:
            self.planner.register_wrong(self.name, self.keys.instance_num)
        entry = self._entry() if door_to is None else self._key("backend")
        self.planner.leave(self.name)
        if entry is None or wrong or policies is None:
            return
        plan = NodePlan(self.name, self.keys, self.origins, entry, *policies, init)
        plan.door_to = door_to
        self.planner.enter(self.name, self.keys, self.parameters)
        if self._finish(plan):
            self.planner.nodes[self.name] = plan
        self.planner.leave(self.name)

    # Expressions.

    def _key(self, key: str) -> Element | None:
        found = self.parameters.key(key)
        if found is None:
            return None
        return self.planner.expression(found, entry=True)

    def _entry(self) -> Element | None:
        if self.parameters.key("node_entrypoint") is not None:
            return self._key("node_entrypoint")
        found = self.parameters.key("init")
        if found is not None and not self._only_prepares():
            return self._core(_DEFAULT_FRONT) if self._is_registered(found) else None
        try:
            hooked = node_entrypoint()
        except PluginError as error:
            self.problems.add(error.code, error.what, hint=error.hint)
            return None
        if hooked is None:
            return self._core(DEFAULT_NODE)
        text, distribution = hooked
        path = f"node_entrypoint of {distribution}"
        layer = Layer(path, depth=1)
        call = self.planner.read(Written(text, Path.cwd()), path)
        if call is None:
            return None
        return self.planner.plan(call, Scope(layer, entry=True, wraps=True))

    def _only_prepares(self) -> bool:
        """Tell whether ``init`` leaves the instances of ``backend`` to the default expression."""
        registered, name = self.planner.registered, self.name
        made = f"node.{name}" in registered or f"{name}.0" in registered
        return self.parameters.key("backend") is not None and not made

    def _is_registered(self, init: Found) -> bool:
        """Check that ``init`` has registered what the node is called through."""
        name = f"node.{self.name}"
        if name in self.planner.registered:
            return True
        self.problems.add(
            "unknown_instance",
            f"init registers nothing as {name!r}, through which the node is called",
            **init.place(),
            hint="Add Register[...] to it, or write a node_entrypoint.",
        )
        return False

    def _core(self, text: str) -> Element | None:
        call = read_expression(text, node_name=self.name, environ={})
        layer = Layer(f"{self.name}.node_entrypoint")
        return self.planner.plan(call, Scope(layer, depth=-_AROUND, entry=True, wraps=True))

    # The whole.

    def _finish(self, plan: NodePlan) -> bool:
        """Find what the node is called through, and check that it can be."""
        registered = self.planner.registered
        layer = self._layer()
        named = registered.get(f"node.{self.name}")
        if named is None:
            named = registered[f"node.{self.name}"] = Named(
                f"node.{self.name}", plan.entry, True, self.name
            )
        if named.element is None:
            return False
        first = registered.get(f"{self.name}.0")
        if first is not None:
            plan.instance, plan.instance_num = first.element, self.keys.instance_num
        roots = [plan.entry, *([plan.init] if plan.init is not None else [])]
        for root in roots:
            give_threads(root)
        own = [n for n in registered.values() if n.node == self.name and n.index is None]
        check_used(self.planner, own, Scope(layer))
        door = called(named.element)
        good = self._check_one_queue(roots, door, layer)
        good &= self.planner.check_called(door, layer)
        return self._check_range(plan, door) and good

    def _check_one_queue(self, roots: list[Element], door: Element, layer: Layer) -> bool:
        """Check that what gathers requests in a node is what the node is called through."""
        found = (e for root in roots for e in root.walk() if word_of(e.cls)._gathers)
        wrong = [element for element in found if element.children and element is not door]
        for element in wrong:
            message = f"a node has one {element.cls.__name__}, the one that it is called through"
            self.problems.add("scheduling", message, **layer.place(element.call))
        return not wrong

    def _layer(self) -> Layer:
        found = self.parameters.key("node_entrypoint") or self.parameters.key("init")
        if found is None:
            return Layer(self.name, self.planner.file_of(self.name))
        return Layer(found.layer.path, found.layer.file)

    def _check_range(self, plan: NodePlan, door: Element) -> bool:
        """Check that the keys of the node leave something of the range that the classes tell."""
        root = plan.instance
        if root is None:
            gathers = word_of(door.cls)._gathers and door.children
            root = door.children[0] if gathers else door
        if plan.door_to is not None:
            return True
        low, high = narrowed(root.range, self.keys)
        if high is None or low <= high:
            return True
        keys = [k for k in ("min", "max", "batch_sizes") if self.parameters.key(k) is not None]
        found = self.parameters.key(keys[-1]) if keys else None
        place = {"path": self.name} if found is None else found.place()
        shown = plan.backend.name if plan.backend is not None else root.name
        most = root.range[1]
        says = ", ".join(f"{key} = {getattr(plan.keys, key)}" for key in keys)
        self.problems.add(
            "range",
            f"no batch fits: {shown} takes {root.range[0]} to "
            f"{'any number' if most is None else most}, and the node says {says}",
            **place,
        )
        return False

    # A second door to another node.

    def _second_door(self) -> str | None:
        """Give the node that this one is another door to: its backend is ``Forward[node.x]``."""
        found = self.parameters.key("backend")
        others = ("init", "node_entrypoint")
        if found is None or any(self.parameters.key(key) is not None for key in others):
            return None
        try:
            text = str(found.written.value)
            call = read_expression(text, node_name=self.name, environ={})
        except ConfigError:
            return None  # it is reported where the backend is planned
        target = core_word(call.name)._door_to(call)
        if target is None or target not in self.planner.shape.nodes:
            return None
        for key in self.table:
            if key in NODE_KEYS and key not in _OF_A_DOOR:
                written = self.table[key]
                self.problems.add(
                    "door",
                    f"{self.name!r} is another door to {target!r} and has no {key!r} of its own",
                    **key_place(
                        written.file, f"{self.name}.{key}", key, written.value, at_key=True
                    ),
                    hint=f"Write it in {target!r}.",
                )
        return target
