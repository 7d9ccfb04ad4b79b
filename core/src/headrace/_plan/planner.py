"""Giving every name of a configuration its meaning, and reporting all that is wrong with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from headrace._config.nodekeys import GlobalKeys, NodeKeys
from headrace._config.problems import Problems, key_place
from headrace._expression import read_expression
from headrace._plan.doubts import report_overruled
from headrace._plan.element import Named, PipelinePlan
from headrace._plan.keys import check_keys
from headrace._plan.layer import Layer
from headrace._plan.links import check_links, read_links
from headrace._plan.named import plan_probes
from headrace._plan.nodes import NodePlanner
from headrace._plan.parameters import Parameters, report_unknown_globals, written_key
from headrace._plan.reads import check_keys_read
from headrace._plan.reposts import check_front, check_reposts, with_calls
from headrace._plan.resolver import Resolver
from headrace._plan.scope import Scope
from headrace._plan.threads import give_threads
from headrace._plan.wiring import why_not_callable
from headrace.errors import ConfigError, SetupError

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._config.shape import Shape
    from headrace._expression import Call
    from headrace._plan.element import Element, NodePlan, ProbePlan

__all__ = ["Files", "Pipeline", "plan_expression", "plan_pipeline"]

Files = tuple[tuple[str, dict[str, type[Any]]], ...]


class Pipeline:
    """Plans the nodes of one configuration; each when it is first named, else in file order.

    Attributes:
        shape: The configuration.
        problems: Where what is wrong goes.
        resolver: Gives the names in expressions their meaning.
        registered: What the names of registered instances mean.
        nodes: The nodes that are planned.
        parameters: The keys of all nodes.
        used_globals: The global keys that some node has.
        allow_import: Whether code that the configuration names may be imported.
    """

    def __init__(
        self,
        shape: Shape,
        files: Files,
        problems: Problems,
        *,
        all_names: bool = True,
        allow_import: bool = True,
    ) -> None:
        self.shape = shape
        self.problems = problems
        self.allow_import = allow_import
        self.resolver = Resolver(self, files, problems, all_names=all_names)
        self.registered: dict[str, Named] = {}
        self.nodes: dict[str, NodePlan] = {}
        self.parameters: list[Parameters] = []
        self.used_globals: set[str] = set()
        self._files = files
        self._begun: set[str] = set()
        self._planning: list[str] = []
        self._homes = self._registered_names()

    def plan(self) -> PipelinePlan:
        """Plan everything."""
        for name in self.shape.nodes:
            if name not in self._begun:
                self.node(name)
        entrypoint, threads, probes = self._front()
        shared = self.shape.globals
        links = {
            name: read_links(name, table, shared, self.problems)
            for name, table in self.shape.nodes.items()
        }
        is_graph = check_links(links, self.problems)
        links = with_calls(links, self.nodes)
        doubts = Problems()
        if is_graph and len(self.nodes) == len(self.shape.nodes):
            check_reposts(links, self.nodes, self.problems)
            check_keys_read(links, self.nodes, self.problems, doubts)
            if entrypoint is not None:
                check_front(entrypoint, links, self.nodes, self.problems)
        self.resolver.definitions.check_all(self)
        for parameters in self.parameters:
            parameters.report_unknown(self.problems)
        if self.shape.nodes:
            report_unknown_globals(self.shape.globals, self.parameters, self.problems)
        report_overruled(self.shape, self.parameters, doubts)
        return PipelinePlan(
            self.nodes,
            list(self.shape.nodes),
            entrypoint,
            threads,
            self.registered,
            self._files,
            self.late,
            links,
            probes,
            doubts=tuple(doubts),
        )

    def _front(self) -> tuple[Element | None, int | None, tuple[ProbePlan, ...]]:
        """Plan the front, the thread budget and the probes: the keys of the whole pipeline."""
        table = self.shape.globals
        keys, _ = check_keys(GlobalKeys, {}, table, "global", self.problems)
        parameters = Parameters("global", {}, table, self.used_globals)
        self.parameters.append(parameters)
        self.resolver.enter("global", None, parameters)
        found, element = parameters.key("entrypoint"), None
        if found is not None:
            element = self.expression(found.written, found.layer.path, None)
        if found is not None and element is not None:
            self.check_called(element, found.layer)
            give_threads(element)
        probes = plan_probes(self.resolver, table)
        self.resolver.leave("global")
        return element, keys.threads, probes

    def node(self, name: str) -> None:
        """Plan one node; a name that it should register and does not is known as wrong."""
        self._begun.add(name)
        self._planning.append(name)
        NodePlanner(self, name).plan()
        self._planning.pop()
        if name not in self.nodes:
            self.spoil(f"node.{name}", name)

    # Registered instances.

    def _registered_names(self) -> dict[str, str]:
        """Find the names that ``Register(name)[X]`` of each node will register."""
        homes: dict[str, str] = {}
        for name, table in self.shape.nodes.items():
            read: set[str] = set()
            todo: list[Call] = []
            for key in ("init", "node_entrypoint"):
                found = written_key(key, name, table, self.shape.globals)
                if found is not None:
                    todo += _parsed_quietly(found.written.value, name)
            while todo:
                call = todo.pop()
                todo.extend(call.children)
                if call.part == "Register" and len(call.args):
                    values = (*call.args.positional, *(v for _, v in call.args.named))
                    homes.setdefault(str(values[0]), name)
                definition = self.shape.definitions.get(call.name)
                if definition is not None and call.name not in read:
                    read.add(call.name)
                    todo += _parsed_quietly(definition.value, name)
        return homes

    def named(self, name: str) -> Named | None:
        """Give the registered instance called ``name``, planning the node that registers it."""
        if name not in self.registered:
            home = self._home(name)
            if home is not None and home not in self._begun:
                self.node(home)
        return self.registered.get(name)

    def instances(self) -> list[str]:
        """Give the names of all instances that are registered, or will be."""
        nodes = [f"node.{name}" for name in self.shape.nodes]
        return list(dict.fromkeys([*self.registered, *nodes]))

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
        return home if home in self._planning else None

    def chain_to(self, node: str) -> list[str]:
        """Give the nodes that are being planned from ``node`` on, and ``node`` again."""
        return [*self._planning[self._planning.index(node) :], node]

    def register(self, named: Named, place: dict[str, Any]) -> None:
        """Make an instance known to the whole pipeline."""
        known = self.registered.get(named.name)
        if known is not None and known.element is not None:
            self.problems.add("twice", f"{named.name!r} is registered twice", **place)
        self.registered[named.name] = named

    def spoil(self, name: str, node: str) -> None:
        """Let a name that could not be registered be known as wrong."""
        self.registered.setdefault(name, Named(name, None, True, node))

    def spoil_node(self, node: str, instance_num: int) -> None:
        """Let all names that a node registers by itself be known as wrong."""
        for name in (f"node.{node}", *(f"{node}.{index}" for index in range(instance_num))):
            self.spoil(name, node)

    def file_of(self, node: str) -> str | None:
        """Give the file that holds a node, None for a dict."""
        files = [written.file for written in self.shape.nodes.get(node, {}).values()]
        return files[-1] if files else self.shape.file

    # Expressions.

    def expression(
        self, written: Written, path: str, node: str | None, *, entry: bool = False
    ) -> Element | None:
        """Plan the expression under a key of the node that the resolver has entered."""
        call = self.read(written, path, node)
        if call is None:
            return None
        layer = Layer.of(written, path)
        return self.resolver.plan(call, Scope(layer, entry=entry, wraps=True))

    def read(self, written: Written, path: str, node: str | None) -> Call | None:
        """Parse an expression and replace its placeholders; None when it is wrong."""
        call = self._parsed(written, path, node)
        if call is None:
            self.resolver.parameters.incomplete = True
        return call

    def _parsed(self, written: Written, path: str, node: str | None) -> Call | None:
        key = path.rpartition(".")[2]
        place = key_place(written.file, path, key, written.value)
        if not isinstance(written.value, str):
            self.problems.add("type", f"{key} is a text, an expression", **place)
            return None
        try:
            call = read_expression(written.value, node_name=node, environ=os.environ)
        except ConfigError as error:
            self.problems.extend(error.problems, file=written.file, path=path)
            return None
        layer = Layer(path, written.file)
        call = self._without_prefix(call, layer)
        return call if self.resolver.fits(call, layer) else None

    def _without_prefix(self, call: Call, layer: Layer) -> Call:
        """Refuse a prefix before the outermost name."""
        if call.prefix is None:
            return call
        self.problems.add(
            "prefix",
            "nobody understands the prefix of the outermost name",
            file=layer.file,
            path=layer.path,
            span=call.prefix.span,
            text=call.text,
            hint="A prefix belongs to a child in [ ].",
        )
        return call.replace(prefix=None)

    def check_called(self, element: Element, layer: Layer) -> bool:
        """Check that what a node or the pipeline is called through can be called."""
        why = why_not_callable(element)
        if why is None:
            return True
        self.problems.add(
            "not_callable",
            f"{element.name} {why} and cannot be called",
            file=layer.file,
            path=layer.path,
            span=element.call.name_span,
            text=element.call.text,
        )
        return False

    # What is built late.

    def late(self, text: str, node: str | None, frames: tuple[dict[str, Named], ...]) -> Element:
        """Plan an expression that a backend asks for while the pipeline is built.

        Raises:
            ConfigError: It is wrong.
        """
        problems = Problems()
        other = Pipeline(self.shape, self._files, problems, allow_import=self.allow_import)
        other.registered, other.nodes = dict(self.registered), dict(self.nodes)
        other._begun = set(self.shape.nodes)
        table = self.shape.nodes.get(node, {}) if node is not None else {}
        parameters = Parameters(node or "global", table, self.shape.globals, set())
        keys = self.nodes[node].keys if node is not None else None
        other.resolver.enter(node or "global", keys, parameters)
        layer = Layer(f"{node or 'global'}: built in init")
        element = None
        call = read_expression(text, node_name=node, environ=os.environ)
        call = other._without_prefix(call, layer)
        if other.resolver.fits(call, layer):
            element = other.resolver.plan(call, Scope(layer, frames=frames))
        if element is not None:
            other.check_called(element, layer)
        problems.raise_if_any()
        if element is None:
            raise SetupError(f"nothing can be built from {text!r}")
        if any(one.target is not None for one in element.walk()):
            raise SetupError(
                f"{text!r} is built in init and has a Repost, of which the graph cannot know",
                hint="Write it in the configuration.",
            )
        return element


def _parsed_quietly(text: Any, node: str) -> list[Call]:
    """Read an expression, or nothing: what is wrong is reported when its node is planned."""
    try:
        return [read_expression(text, node_name=node, environ=os.environ)]
    except (ConfigError, TypeError):
        return []


def plan_pipeline(
    shape: Shape,
    files: Files,
    problems: Problems,
    *,
    all_names: bool = True,
    allow_import: bool = True,
) -> PipelinePlan:
    """Plan all nodes of a configuration; what is wrong goes to ``problems``.

    Args:
        shape: The configuration.
        files: The files that it imports, and what each has registered.
        problems: Where problems go.
        all_names: False when an import has failed, so that unknown names are no problem of theirs.
        allow_import: Whether code that the configuration names may be imported.
    """
    return Pipeline(shape, files, problems, all_names=all_names, allow_import=allow_import).plan()


def plan_expression(text: str, files: Files, problems: Problems) -> Element | None:
    """Plan one expression by itself, as ``explain`` does: options may be missing."""
    from headrace._config.shape import Shape

    pipeline = Pipeline(Shape(), files, problems)
    pipeline.resolver.enter("main", NodeKeys(), Parameters("main", {}, {}, set()))
    call = read_expression(text, node_name="main", environ=os.environ)
    layer = Layer("expression")
    if not pipeline.resolver.fits(call, layer):
        return None
    scope = Scope(layer, lenient=True, open_slot=True, wraps=True, entry=True, named=True)
    element = pipeline.resolver.plan(call, scope)
    if element is not None:
        give_threads(element)
    return element
