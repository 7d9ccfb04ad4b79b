"""Giving every name of a configuration its meaning, and reporting all that is wrong with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from headrace._config.nodekeys import COME_LATER, NODE_KEYS, GlobalKeys, NodeKeys
from headrace._expression import parse, substitute
from headrace._plan.element import Element, Named, NodePlan, PipelinePlan
from headrace._plan.keys import check_keys
from headrace._plan.parameters import Parameters, report_unknown_globals
from headrace._plan.resolver import Resolver
from headrace._plan.scope import Layer, Scope
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._config.problems import Problems
    from headrace._config.shape import Shape
    from headrace._expression import Call

__all__ = ["DEFAULT_INIT", "plan_expression", "plan_pipeline"]

DEFAULT_INIT = (
    "InstancesRegister[Reflect[backend]]",
    "Register[DI[Batching,InstanceDispatcher]]",
)
"""The two elements of the first phase of a node that configures neither of its entry keys."""

DEFAULT_NODE = f"IoC[{','.join(DEFAULT_INIT)};Forward[node.{{node_name}}]]"
"""The expression of a node."""

_DEFAULT_FRONT = "Forward[node.{node_name}]"
"""The expression of a node that has an ``init`` of its own."""

Files = tuple[tuple[str, dict[str, type[Any]]], ...]


class Pipeline:
    """Plans the nodes of one configuration; each when it is first named, else in file order."""

    def __init__(self, shape: Shape, files: Files, problems: Problems) -> None:
        self.shape = shape
        self.problems = problems
        self.resolver = Resolver(self, files, problems)
        self.registered: dict[str, Named] = {}
        self.nodes: dict[str, NodePlan] = {}
        self.parameters: list[Parameters] = []
        self._begun: list[str] = []
        self._used_globals: set[str] = set()
        self._homes = self._registered_names()

    def plan(self) -> PipelinePlan:
        self.resolver.definitions.check_all(self)
        for name in self.shape.nodes:
            self.node(name)
        front = self._front()
        for parameters in self.parameters:
            parameters.report_unknown(self.problems)
        if self.parameters:
            report_unknown_globals(self.shape.globals, self.parameters, self.problems)
        return PipelinePlan(
            self.nodes,
            list(self.shape.nodes),
            *front,
            registered=self.registered,
            files=self.resolver.files,
        )

    def _front(self) -> tuple[Element | None, int | None]:
        table = {k: w for k, w in self.shape.globals.items() if k in GlobalKeys.model_fields}
        keys, _ = check_keys(GlobalKeys, {}, table, "global", self.problems)
        if keys is None:
            return None, None
        element = None
        if keys.entrypoint is not None:
            parameters = Parameters("global", {}, self.shape.globals, self._used_globals)
            self.parameters.append(parameters)
            element = self._expression(
                self.shape.globals["entrypoint"], "global.entrypoint", None, parameters
            )
        return element, keys.threads

    # Nodes.

    def _registered_names(self) -> dict[str, str]:
        """Find the names that ``Register(name)[X]`` of each node will register."""
        homes: dict[str, str] = {}
        for name, table in self.shape.nodes.items():
            for key in ("init", "node_entrypoint"):
                written = table.get(key)
                if written is None or not isinstance(written.value, str):
                    continue
                try:
                    todo = [parse(written.value)]
                except ConfigError:
                    continue  # it is reported when the node is planned
                while todo:
                    call = todo.pop()
                    todo.extend(call.children)
                    if call.part == "Register" and call.args.positional:
                        homes.setdefault(str(call.args.positional[0]), name)
        return homes

    def named(self, name: str) -> Named | None:
        """Give the registered instance called ``name``, planning the node that registers it."""
        if name not in self.registered:
            home = self._home(name)
            if home is not None and home not in self._begun:
                self.node(home)
        return self.registered.get(name)

    def _home(self, name: str) -> str | None:
        if name in self._homes:
            return self._homes[name]
        if name.startswith("node."):
            name = name.removeprefix("node.")
        else:
            name, dot, index = name.rpartition(".")
            if not dot or not index.isdigit():
                return None
        return name if name in self.shape.nodes else None

    def being_planned(self, name: str) -> str | None:
        """Give the node that would register ``name`` if it is being planned right now."""
        home = self._home(name)
        return home if home in self._begun and home not in self.nodes else None

    def register(self, named: Named, place: dict[str, Any]) -> None:
        """Make an instance known to the whole pipeline."""
        if named.name in self.registered:
            self.problems.add("twice", f"{named.name!r} is registered twice", **place)
        self.registered[named.name] = named

    def node(self, name: str) -> None:
        """Plan one node."""
        self._begun.append(name)
        table = self.shape.nodes[name]
        for key in table:
            if key in COME_LATER:
                self.problems.add(
                    "not_in_this_version",
                    f"the key {key!r} has a meaning that this version does not have",
                    file=table[key].file,
                    path=f"{name}.{key}",
                    hint=COME_LATER[key],
                )
        parameters = Parameters(name, table, self.shape.globals, self._used_globals)
        self.parameters.append(parameters)
        keys, origins = check_keys(NodeKeys, table, self.shape.globals, name, self.problems)
        if keys is None:
            return
        self.resolver.enter(name, keys, parameters)
        init = self._key(table, "init", name, parameters, entry=True)
        entry = self._entry(table, keys, name, parameters)
        self.resolver.leave(name)
        if entry is None or (keys.init is not None and init is None):
            return
        plan = NodePlan(name, keys, origins, entry, init)
        registered = self.registered.get(f"node.{name}")
        plan.door = registered.element if registered is not None else entry
        first = self.registered.get(f"{name}.0")
        if first is not None:
            plan.instance, plan.instance_num = first.element, keys.instance_num
        elif registered is None:
            self.registered[f"node.{name}"] = Named(f"node.{name}", entry, True, name)
        self.nodes[name] = plan

    def _entry(
        self, table: dict[str, Written], keys: NodeKeys, name: str, parameters: Parameters
    ) -> Element | None:
        if keys.node_entrypoint is not None:
            return self._key(table, "node_entrypoint", name, parameters, entry=True)
        text = DEFAULT_NODE if keys.init is None else _DEFAULT_FRONT
        layer = Layer(f"{name}.node_entrypoint")
        call = substitute(parse(text), node_name=name, environ={})
        return self.resolver.plan(call, Scope(layer, entry=True, wraps=True))

    def _key(
        self,
        table: dict[str, Written],
        key: str,
        name: str,
        parameters: Parameters,
        *,
        entry: bool = False,
    ) -> Element | None:
        written = table.get(key, self.shape.globals.get(key))
        if written is None or written.value is None:
            return None
        where = f"{name}.{key}" if key in table else f"global.{key}"
        return self._expression(written, where, name, parameters, entry=entry)

    def _expression(
        self,
        written: Written,
        path: str,
        node: str | None,
        parameters: Parameters,
        *,
        entry: bool = False,
    ) -> Element | None:
        call = self.read(written, path, node)
        if call is None:
            return None
        if node is None:
            self.resolver.enter("global", None, parameters)
        layer = Layer(path, written.file, str(written.base))
        return self.resolver.plan(call, Scope(layer, entry=entry, wraps=True))

    def read(self, written: Written, path: str, node: str | None) -> Call | None:
        """Parse an expression and replace its placeholders; None when it is wrong."""
        if not isinstance(written.value, str):
            self.problems.add(
                "type",
                f"expected an expression, got {written.value!r}",
                file=written.file,
                path=path,
            )
            return None
        try:
            call = substitute(parse(written.value), node_name=node, environ=os.environ)
        except ConfigError as error:
            self.problems.extend(error.problems, file=written.file, path=path)
            return None
        if call.prefix is not None:
            self.problems.add(
                "prefix",
                "nobody understands the prefix of the outermost name",
                file=written.file,
                path=path,
                span=call.prefix.span,
                text=call.text,
            )
            return None
        return call


def plan_pipeline(shape: Shape, files: Files, problems: Problems) -> PipelinePlan:
    """Plan all nodes of a configuration; what is wrong goes to ``problems``."""
    return Pipeline(shape, files, problems).plan()


def plan_expression(text: str, files: Files, problems: Problems) -> Element | None:
    """Plan one expression by itself, as ``explain`` does: options may be missing."""
    from headrace._config.shape import Shape

    call = parse(text)
    pipeline = Pipeline(Shape(), files, problems)
    parameters = Parameters("main", {}, {}, set())
    pipeline.resolver.enter("main", NodeKeys(), parameters)
    return pipeline.resolver.plan(call, Scope(Layer("expression"), lenient=True, wraps=True))


assert set(COME_LATER).isdisjoint(NODE_KEYS)  # noqa: S101 - the two tables are kept by hand
