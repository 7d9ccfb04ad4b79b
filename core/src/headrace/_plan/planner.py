"""Planning all nodes of a configuration, and reporting all its problems."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace._config.problems import Problems
from headrace._config.sections import NODE_KEYS, GlobalKeys, NodeKeys, Sections
from headrace._expression.parser import read_expression
from headrace._plan.declared import narrowed, no_batch
from headrace._plan.element import Named, NodePlan, PipelinePlan, Source, elements_of
from headrace._plan.links import plan_links
from headrace._plan.options_reader import plan_policies, plan_probes
from headrace._plan.parameters import (
    Parameters,
    check_keys,
    key_of,
    report_keys,
    with_args_of,
    written_key,
)
from headrace._plan.planning import Scope, open_slot
from headrace._plan.resolver import Resolver
from headrace._plan.word import (
    called,
    check_used,
    core_word,
    give_threads_to_instances,
    way_to_called,
    why_not_callable,
    word_of,
)
from headrace._registry.registry import registry
from headrace.errors import ConfigError, PluginError, SetupError

if TYPE_CHECKING:
    from headrace._expression.tree import Call
    from headrace._plan.element import Element, NamedPlan


_INSTANCE, _FRONT = "Reflect[backend]", "Forward[node.{node_name}]"
"""The expressions of an instance, and of a node whose ``init`` registers what it is called through."""

_AROUND = 3
"""How many levels of what a plugin gives may stand around ``backend`` without counting as nesting."""

_OF_A_DOOR = ("backend", "timeout_ms")
"""The keys that a second door to another node may have."""


class Planner(Resolver):
    """Plans the nodes of one configuration, each when it is first named, else in file order."""

    def pipeline(self) -> PipelinePlan:
        """Plan everything."""
        self._homes = self._registered_names()
        for name in self.shape.nodes:
            if name not in self.all_parameters:
                self.plan_node(name)
        front, keys, probes = self._front()
        links = plan_links(self.shape, self.nodes, front, self.problems)
        self._check_definitions()
        parameters = [*self.all_parameters.values()]
        warnings = tuple(report_keys(parameters, self.shape, self.problems))
        nodes, files, allowed = self.nodes, self.files, self.refused is None
        return PipelinePlan(nodes, front, keys, files, self.late, links, probes, allowed, warnings)

    def _front(self) -> tuple[Element | None, GlobalKeys, tuple[NamedPlan, ...]]:
        """Plan the front and the probes, and read the other keys of the whole pipeline."""
        keys, _ = check_keys(GlobalKeys, "global", self.shape, self.problems)
        for key, written in self.shape.globals.items():  # also what every node has of its own
            check_keys(NodeKeys, "global", Sections(globals={key: written}), self.problems)
        parameters = self.all_parameters["global"] = Parameters("global", self.shape)
        with self.within(parameters):
            if (element := self._key("entrypoint", may_register=False)) is not None:
                self.check_called(element)
                give_threads_to_instances(element)
                self._check_outermost([element], None)
            return element, keys, plan_probes(self)

    def plan_node(self, name: str) -> None:
        """Plan one node. When it is wrong, its name is registered as wrong, so that uses are no errors."""
        # A `Fallback` may only be trying the branch that names this node: what is wrong here is wrong all the same.
        outer, self.problems = self.problems, self.reported
        self._unfinished.append(name)
        keys, origins = check_keys(NodeKeys, name, self.shape, self.problems)
        parameters = self.all_parameters[name] = Parameters(name, self.shape, keys, origins)
        before = len(self.problems)
        with self.within(parameters):
            plan = self._planned_node(keys, origins)
        self._unfinished.pop()
        if plan is not None and len(self.problems) == before:
            self.nodes[name] = plan
        else:
            self.register_wrong(name, 0)
        self.problems = outer

    def _registered_names(self) -> dict[str, str]:
        """Find the names that the nodes will register: the standard ones, and those in their texts."""
        standard = {f"node.{name}": name for name in self.shape.nodes}
        standard |= {f"{name}.": name for name in self.shape.nodes}  # stands for x.0, x.1, ...
        homes: dict[str, str] = {}
        for name in self.shape.nodes:
            read: set[str] = set()
            written = (written_key(key, name, self.shape) for key in ("init", "node_entrypoint"))
            todo = [call for one in written if one for call in _parsed_quietly(one.value, name)]
            while todo:
                call = todo.pop()
                todo.extend(call.children)
                word = core_word(call.name)
                if word._registers_names and call.args:
                    homes.setdefault(str(call.args.values[0]), name)
                definition = self.shape.definitions.get(call.name)
                texts = {call.name: definition.value} if definition is not None else {}
                for key in (one.name for one in call.children[: word._names]):  # of a `Reflect`
                    found = written_key(key, name, self.shape)
                    texts |= {f"[{key}]": found.value} if found is not None else {}
                for mark in [one for one in texts if one not in read]:
                    read.add(mark)
                    todo += _parsed_quietly(texts[mark], name)
        return {**standard, **homes}

    def _check_definitions(self) -> None:
        """Check every definition on its own, and every expression of ``[global]`` that no node takes.

        What cannot be built here is no problem of a definition that a `Fallback` has tried for that.
        """
        nodes, shared, outer = self.shape.nodes, self.shape.globals, self.problems
        self.problems = Problems()
        texts: list[tuple[Any, Source]] = []
        for name in self.shape.definitions:
            (one,) = self.definitions[name]
            texts.append((one.path, replace(one.source, origin="definition", expanding=(name,))))
        for key in ("backend", "init", "node_entrypoint"):
            if key in shared and nodes and all(key in table for table in nodes.values()):
                one_of_all = key_of("global", key, shared[key], "global")
                texts.append((one_of_all.value, one_of_all.source))
        for text, source in texts:
            with self.within(Parameters(next(iter(nodes), "main"), Sections(), NodeKeys())):
                self.by_itself(text, source)
        found, self.problems = self.problems, outer
        outer.extend(one for one in found if one not in self.excused)

    def by_itself(self, text: Any, source: Source) -> Element | None:
        """Plan an expression outside of any node: options and instances may be missing."""
        if (call := self.read(text, source)) is None:
            return None
        slot = open_slot(call)
        return self.plan(call, Scope(may_register=True, gets_name=True, slot=slot, lenient=True))

    # One node.

    def _planned_node(self, keys: NodeKeys, origins: dict[str, str]) -> NodePlan | None:
        """Plan the present node."""
        earlier = len(self.made)
        policies, found = plan_policies(self), self.parameters.key("batch_policy")
        if policies is not None and found is not None:
            keys = with_args_of(policies[0], keys, origins, found.place(), self.problems)
            self.parameters.keys = keys
        alias_of = self._second_door()
        init = self._key("init")
        if init is None and self.parameters.key("init") is not None:
            self.register_wrong(self.node, keys.instance_num)
        whole = self._entrypoint() if alias_of is None else self._key("backend")
        backend, *others = map(self.parameters.key, ("backend", "init", "node_entrypoint"))
        if whole is None and backend is not None and any(others):
            # What is wrong there has hidden what is wrong in `backend`, and perhaps instances that it names.
            self.planned(backend.value, backend.source, Scope(lenient=True))
        if whole is None or policies is None:
            return None
        plan = NodePlan(self.node, keys, origins, whole, *policies, init, alias_of)
        self._finish(plan, earlier)
        return plan

    def _key(self, key: str, *, may_register: bool = True) -> Element | None:
        """Plan the expression under a key of the present node or front; None where the key is missing.

        Args:
            key: The key.
            may_register: Whether ``Register`` may stand there.
        """
        if (found := self.parameters.key(key)) is None:
            return None
        return self.planned(found.value, found.source, Scope(may_register=may_register))

    def _entrypoint(self) -> Element | None:
        """Plan the expression of the whole node, which the user or a plugin gives; else that of its instances."""
        if self.parameters.key("node_entrypoint") is not None:
            return self._key("node_entrypoint")
        source = Source(f"{self.node}.node_entrypoint")
        init = self.parameters.key("init")
        if init is not None and not self._only_prepares():
            if (name := f"node.{self.node}") not in self.registered:
                what = f"init registers nothing as {name!r}, through which the node is called"
                hint = "Add Register[...] to it, or write a node_entrypoint."
                self.problems.add("unknown_instance", what, hint=hint, **init.place())
                return None
            return self.planned(_FRONT, source, Scope())
        try:
            hooked = registry.node_entrypoint()
        except PluginError as error:
            self.problems.add(error.code, error.what, hint=error.hint)
            return None
        if hooked is None:
            return self._instances(source)
        text, distribution = hooked
        source = Source(f"node_entrypoint of {distribution}", origin="definition")
        return self.planned(text, source, Scope(depth=-_AROUND, may_register=True))

    def _instances(self, source: Source) -> Element | None:
        """Plan an instance of ``backend``, and register ``instance_num`` of them behind the queue of the node."""
        node, keys = self.node, self.parameters.keys
        element = self.planned(_INSTANCE, source, Scope(depth=-1))
        count = 1 if keys is None else keys.instance_num
        if element is None:
            self.register_wrong(node, count)
            return None
        for index in range(count):
            self.register(Named(f"{node}.{index}", element, node, index), element.call)
        self.register(Named(f"node.{node}", element, node, queued=True), element.call)
        return element

    def _only_prepares(self) -> bool:
        """Tell whether ``init`` registers no instances, so that the default expression builds ``backend``."""
        made = self.registered.keys() & {f"node.{self.node}", f"{self.node}.0"}
        return self.parameters.key("backend") is not None and not made

    def _finish(self, plan: NodePlan, earlier: int) -> None:
        """Find the element through which the node is called, and check it; ``earlier``: the length of `made` before."""
        name = f"node.{plan.name}"
        named = self.registered.setdefault(name, Named(name, plan.entrypoint, plan.name))
        if named.element is None:
            return
        named.measure(plan.roots)
        if (first := self.registered.get(f"{plan.name}.0")) is not None:
            plan.instance = first.element
        for root in reversed(plan.roots):
            give_threads_to_instances(root)
        own = {n.name: n for n in (*self.made[earlier:], named) if n.node == plan.name}
        check_used(self, [one for one in own.values() if one.index is None])
        way = [named.element] if named.queued else way_to_called(named.element)
        *before, callee = way
        for one in (element.named for element in way if plan.alias_of is None):
            # Its queue and instances would be those of the other node, and its own keys mean nothing.
            if one is not None and one.name == f"node.{one.node}" and one.node != plan.name:
                what = f"node {plan.name!r} is called through node {one.node!r}, and has more than a second door has"
                hint = f'Write backend = "Forward[{one.name}]" and no init or node_entrypoint.'
                self.add("door", what, named.element.call, hint=hint)
        for element in elements_of(plan.roots):
            if word_of(element.cls)._gathers and element.children and element is not callee:
                what = f"a node has one {element.cls.__name__}, the one that it is called through"
                self.add("scheduling", what, element.call)
        self.check_called(callee)
        front = called(plan.entrypoint)
        plan.bypassed = not named.queued and front is not callee and why_not_callable(front) is None
        gathers = word_of(callee.cls)._gathers and callee.children
        with_thread = next((one for one in before if one.own_thread), callee)
        plan.runs = plan.instance or (callee.children[0] if gathers else with_thread)
        self._check_range(plan, plan.runs)
        self._check_outermost(plan.roots, plan.runs)

    def _check_outermost(self, roots: list[Element], runs: Element | None) -> None:
        """Check that what may only stand outermost in a node, does; nothing in ``runs`` runs before it or after it."""
        alone, inner = None, runs
        while inner is not None and inner.named is None:
            alone = inner
            word = word_of(inner.cls)
            first, last = (word._through(inner, place) for place in (0, -1))
            inner = inner.children[0] if word._threaded else last if first is last else None
        for one in elements_of(roots):
            if one.cls.outermost and one is not alone:
                what = f"{one.name} stands outermost in its node or nowhere: what it resumes runs through the node again"
                hint = "Put what comes before or after it into a node of its own, linked by next."
                self.add("word", what, one.call, hint=hint)

    def _check_range(self, plan: NodePlan, root: Element) -> None:
        """Check that some weight fits both the keys of the node and the range that the classes of ``root`` state."""
        low, high = narrowed(root.range, plan.keys)
        if plan.alias_of is not None or low <= high:
            return
        shown = (root if root.parameter is None else root.children[0]).name
        *_, last = filter(
            None, map(self.parameters.key, ("batch_policy", "min", "max", "batch_sizes"))
        )
        self.problems.add("range", no_batch(shown, root.range, plan.keys), **last.place())

    def _second_door(self) -> str | None:
        """Give the node to which this one is a second door (its backend is ``Forward[node.x]``), or None."""
        found = self.parameters.key("backend")
        others = ("init", "node_entrypoint")
        if found is None or any(self.parameters.key(key) is not None for key in others):
            return None
        for call in _parsed_quietly(found.value, self.node):
            target = core_word(call.name)._alias_of(call)
            if target in self.shape.nodes:
                self._check_keys_of_door(str(target))
                return target
        return None

    def _check_keys_of_door(self, target: str) -> None:
        table = self.shape.nodes[self.node]
        for key in (key for key in NODE_KEYS if key in table and key not in _OF_A_DOOR):
            what = f"{self.node!r} is a second door to {target!r} and has no {key!r} of its own"
            place = key_of(self.node, key, table[key], "node").place(at_key=True)
            self.problems.add("door", what, hint=f"Write it in {target!r}.", **place)

    # Expressions that backends build in their ``init``.

    def late(self, text: str, node: str | None, frames: tuple[dict[str, Named], ...]) -> Element:
        """Plan an expression that a backend asks for while the pipeline is built.

        Raises:
            ConfigError: The expression is wrong.
            SetupError: The expression has a Repost.
        """
        other = Planner(self.shape, self.files, Problems(), refused=self.refused)
        other.registered, other.nodes = dict(self.registered), dict(self.nodes)
        name = node or "global"
        keys = self.nodes[node].keys if node is not None else None
        source = Source(f"{name}: built in init")
        with other.within(Parameters(name, self.shape, keys)):
            if (element := other.planned(text, source, Scope(frames=frames))) is not None:
                other.check_called(element)
        other.problems.raise_if_any()
        assert element is not None  # noqa: S101 - without a problem there is an element
        if any(one.target is not None for one in element.walk()):
            what = f"{text!r} is built in init and has a Repost, of which the graph cannot know"
            raise SetupError(what, hint="Write it in the configuration.")
        return element


def _parsed_quietly(text: Any, node: str) -> list[Call]:
    """Parse an expression; give nothing where it is wrong, which is reported when its node is planned."""
    try:
        return [read_expression(text, node_name=node, environ=os.environ)]
    except (ConfigError, TypeError):
        return []


def plan_expression(text: str, problems: Problems) -> Element | None:
    """Plan one expression outside of any configuration, as ``explain`` does: options may be missing."""
    planner = Planner(Sections(), (), problems)
    with planner.within(Parameters("main", planner.shape, NodeKeys())):
        element = planner.by_itself(text, Source("expression"))
    if element is not None:
        give_threads_to_instances(element)
    return element
