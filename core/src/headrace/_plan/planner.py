"""Planning all nodes of a configuration, and reporting all that is wrong with it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace._config.nodekeys import GlobalKeys, NodeKeys
from headrace._config.problems import Problems
from headrace._config.shape import Shape
from headrace._expression.parser import read_expression
from headrace._plan.element import Element, Named, PipelinePlan, ProbePlan
from headrace._plan.graph import check_front, check_keys_read, check_reposts, with_calls
from headrace._plan.links import check_links, read_links
from headrace._plan.named import plan_probes
from headrace._plan.nodes import NodePlanner
from headrace._plan.options import check_keys
from headrace._plan.parameters import (
    Parameters,
    report_overruled,
    report_unknown_globals,
    written_key,
)
from headrace._plan.resolver import Resolver
from headrace._plan.scope import Layer, Scope
from headrace._plan.word import core_word, give_threads
from headrace.errors import ConfigError, SetupError

if TYPE_CHECKING:
    from headrace._expression.tree import Call
    from headrace._plan.definitions import Files


class Planner(Resolver):
    """Plans the nodes of one configuration; each when it is first named, else in file order."""

    def pipeline(self) -> PipelinePlan:
        """Plan everything."""
        self._homes = self._registered_names()
        for name in self.shape.nodes:
            if name not in self._begun:
                self.plan_node(name)
        entrypoint, keys, probes = self._front()
        shared = self.shape.globals
        links = {
            name: read_links(name, table, shared, self.problems)
            for name, table in self.shape.nodes.items()
        }
        is_graph = check_links(links, self.problems)
        links = with_calls(links, self.nodes)
        warnings = Problems()
        if is_graph and len(self.nodes) == len(self.shape.nodes):
            check_reposts(links, self.nodes, self.problems)
            check_keys_read(links, self.nodes, self.problems, warnings)
            if entrypoint is not None:
                check_front(entrypoint, links, self.nodes, self.problems)
        self._check_definitions()
        for parameters in self.all_parameters:
            parameters.report_unknown(self.problems)
        if self.shape.nodes:
            report_unknown_globals(self.shape.globals, self.all_parameters, self.problems)
        report_overruled(self.all_parameters, warnings)
        return PipelinePlan(
            self.nodes,
            list(self.shape.nodes),
            entrypoint,
            keys.threads,
            self.registered,
            self.files,
            self.late,
            links,
            probes,
            keys.timings,
            warnings=tuple(warnings),
        )

    def _front(self) -> tuple[Element | None, GlobalKeys, tuple[ProbePlan, ...]]:
        """Plan the front and the probes, and read the other keys of the whole pipeline."""
        table = self.shape.globals
        keys, _ = check_keys(GlobalKeys, {}, table, "global", self.problems)
        parameters = Parameters("global", {}, table, self.used_globals)
        self.all_parameters.append(parameters)
        self.enter("global", None, parameters)
        found = parameters.key("entrypoint")
        element = None if found is None else self.expression(found)
        if found is not None and element is not None:
            self.check_called(element, found.layer)
            give_threads(element)
        probes = plan_probes(self, table)
        self.leave("global")
        return element, keys, probes

    def plan_node(self, name: str) -> None:
        """Plan one node; a name that it should register and does not is known as wrong."""
        self._begun.append(name)
        self._unfinished.append(name)
        NodePlanner(self, name).plan()
        self._unfinished.pop()
        if name not in self.nodes:
            self.register_wrong(name, 0)

    def _registered_names(self) -> dict[str, str]:
        """Find the names that the texts of the nodes say they will register, and which node does."""
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
                registered = core_word(call.name)._registers(call)
                if registered is not None:
                    homes.setdefault(registered, name)
                definition = self.shape.definitions.get(call.name)
                if definition is not None and call.name not in read:
                    read.add(call.name)
                    todo += _parsed_quietly(definition.value, name)
        return homes

    def _check_definitions(self) -> None:
        """Check every definition of the configuration by itself, used or not."""
        node = next(iter(self.shape.nodes), "main")
        for definition in self.definitions.own():
            tree = self.definitions.tree(definition, node)
            if tree is None:
                continue
            self.enter(node, NodeKeys(), Parameters(node, {}, {}, set()))
            layer = replace(definition.layer, depth=1)
            if self.fits(tree, layer, definition.name):
                self.plan(tree, _by_itself(layer, expanding=(definition.name,)))
            self.leave(node)

    # What is built late.

    def late(self, text: str, node: str | None, frames: tuple[dict[str, Named], ...]) -> Element:
        """Plan an expression that a backend asks for while the pipeline is built.

        Raises:
            ConfigError: It is wrong.
        """
        other = Planner(self.shape, self.files, Problems(), allow_import=self.allow_import)
        other.registered, other.nodes = dict(self.registered), dict(self.nodes)
        other._begun = list(self.shape.nodes)
        table = self.shape.nodes.get(node, {}) if node is not None else {}
        parameters = Parameters(node or "global", table, self.shape.globals, set())
        keys = self.nodes[node].keys if node is not None else None
        other.enter(node or "global", keys, parameters)
        layer = Layer(f"{node or 'global'}: built in init")
        element = None
        call = read_expression(text, node_name=node, environ=os.environ)
        call = other.without_prefix(call, layer)
        if other.fits(call, layer):
            element = other.plan(call, Scope(layer, frames=frames))
        if element is not None:
            other.check_called(element, layer)
        other.problems.raise_if_any()
        if element is None:
            raise SetupError(f"nothing can be built from {text!r}")
        if any(one.target is not None for one in element.walk()):
            raise SetupError(
                f"{text!r} is built in init and has a Repost, of which the graph cannot know",
                hint="Write it in the configuration.",
            )
        return element


def _by_itself(layer: Layer, **more: Any) -> Scope:
    """Give the scope of an expression that is looked at by itself: options may be missing."""
    return Scope(layer, lenient=True, open_slot=True, wraps=True, entry=True, named=True, **more)


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
    planner = Planner(shape, files, problems, all_names=all_names, allow_import=allow_import)
    return planner.pipeline()


def plan_expression(text: str, files: Files, problems: Problems) -> Element | None:
    """Plan one expression by itself, as ``explain`` does: options may be missing."""
    planner = Planner(Shape(), files, problems)
    planner.enter("main", NodeKeys(), Parameters("main", {}, {}, set()))
    call = read_expression(text, node_name="main", environ=os.environ)
    layer = Layer("expression")
    if not planner.fits(call, layer):
        return None
    element = planner.plan(call, _by_itself(layer))
    if element is not None:
        give_threads(element)
    return element
