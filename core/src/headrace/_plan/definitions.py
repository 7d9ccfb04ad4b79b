"""Definitions: names that stand for expressions, from the configuration and from plugins."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace._config.nodekeys import NodeKeys
from headrace._config.problems import key_place
from headrace._expression import read_expression
from headrace._expression.words import PLAIN_NAME
from headrace._plan.layer import Layer, ScopedArgs
from headrace._plan.parameters import Parameters
from headrace._plan.scope import Graft, Scope
from headrace._plan.values import plain_value
from headrace._registry import registry
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._config.problems import Problems
    from headrace._expression import Call
    from headrace._plan.element import Element
    from headrace._plan.planner import Files, Pipeline
    from headrace._plan.resolver import Resolver

__all__ = ["Definition", "Definitions", "expand"]


@dataclass(frozen=True)
class Definition:
    """One definition.

    Attributes:
        name: Its name.
        text: Its expression as written.
        layer: Where it was written.
        plugin, distribution: Who brings it; both empty for one of the configuration.
    """

    name: str
    text: str
    layer: Layer
    plugin: str = ""
    distribution: str = ""


class Definitions:
    """All definitions that a configuration may use."""

    def __init__(self, pipeline: Pipeline, files: Files, problems: Problems) -> None:
        self._problems = problems
        self._files = files
        self._known: dict[str, list[Definition]] = {}
        self._trees: dict[tuple[str, str | None], Call | None] = {}
        self.circles: set[frozenset[str]] = set()
        for name, offers in registry.definitions().items():
            self._known[name] = [
                Definition(
                    name, text, Layer(f"{name} of {r.distribution}"), r.plugin, r.distribution
                )
                for r, text in offers
            ]
        for name, written in pipeline.shape.definitions.items():
            self._add(name, written)

    def _add(self, name: str, written: Written) -> None:
        """Take one from the configuration."""
        path = f"define.{name}"
        at_key = key_place(written.file, path, name, written.value, at_key=True)
        layer = Layer.of(written, path)
        if not PLAIN_NAME.fullmatch(name) or ":" in name:
            self._problems.add("definition", f"{name!r} is no name for a definition", **at_key)
        elif not isinstance(written.value, str):
            place = key_place(written.file, path, name, written.value)
            self._problems.add("type", "a definition is a text, an expression", **place)
            self._trees[name, None] = None
            self._known[name] = [Definition(name, "", layer)]
            return
        for other in self._known.get(name, ()):
            message = f"{name!r} is defined by {other.distribution} already"
            self._problems.add("definition", message, **at_key)
        specs = registry.find(name, self._files)
        if specs:
            message = f"{name!r} is the name of a backend of {specs[0].distribution}"
            self._problems.add(
                "definition", message, hint="Choose another name for the definition.", **at_key
            )
        self._known[name] = [Definition(name, str(written.value), layer)]

    def find(self, call: Call) -> list[Definition]:
        """Give every definition that the name of ``call``, perhaps ``plugin:Name``, may mean."""
        plugin = call.plugin
        return [d for d in self._known.get(call.part, ()) if plugin is None or d.plugin == plugin]

    def names(self) -> list[str]:
        """Give all names."""
        return list(self._known)

    def tree(self, definition: Definition, node: str | None) -> Call | None:
        """Give the expression of a definition for use in a node; None when it is wrong."""
        key = (definition.layer.path, node)
        if (definition.name, None) in self._trees:
            return None  # it is no text
        if key not in self._trees:
            self._trees[key] = self._read(definition, node)
        return self._trees[key]

    def _read(self, definition: Definition, node: str | None) -> Call | None:
        file, path = definition.layer.file, definition.layer.path
        try:
            tree = read_expression(definition.text, node_name=node, environ=os.environ)
        except ConfigError as error:
            self._problems.extend(error.problems, file=file, path=path)
            return None
        if tree.prefix is not None:
            self._problems.add(
                "prefix",
                "a definition cannot begin with a prefix",
                file=file,
                path=path,
                span=tree.prefix.span,
                text=tree.text,
                hint="Write it where the definition is used.",
            )
            return tree.replace(prefix=None)
        return tree

    def check_all(self, pipeline: Pipeline) -> None:
        """Check every definition of the configuration by itself, used or not."""
        for definition in (d for offers in self._known.values() for d in offers):
            if definition.distribution:
                continue  # a plugin's definition is checked where it is used
            node = next(iter(pipeline.shape.nodes), "main")
            tree = self.tree(definition, node)
            if tree is None:
                continue
            resolver = pipeline.resolver
            resolver.enter(node, NodeKeys(), Parameters(node, {}, {}, set()))
            scope = Scope(
                replace(definition.layer, depth=1),
                entry=True,
                open_slot=True,
                lenient=True,
                named=True,
                wraps=True,
                expanding=(definition.name,),
            )
            if resolver.fits(tree, scope.layer, definition.name):
                resolver.plan(tree, scope)
            resolver.leave(node)


def expand(resolver: Resolver, call: Call, definition: Definition, scope: Scope) -> Element | None:
    """Plan what a definition stands for: its args are defaults, the bracket goes to its open slot."""
    if definition.name in scope.expanding:
        _report_circle(resolver, call, scope)
        return None
    if call.args.positional:
        resolver.add(
            "args",
            f"{call.name!r} is a definition and takes no positional args",
            call,
            scope,
            span=call.args.span_of(0) or call.name_span,
            hint="Write key=value: it goes to every backend of the definition that has the key.",
        )
    tree = resolver.definitions.tree(definition, resolver.known_node)
    if tree is None or not resolver.fits(tree, definition.layer):
        resolver.parameters.incomplete = True
        resolver.plan_all(call.phases, scope)
        return None
    scoped = ScopedArgs(
        call, scope.layer, {key: plain_value(value) for key, value in call.args.named}
    )
    layer = replace(
        definition.layer, depth=scope.layer.depth + 1, scoped=(*scope.layer.scoped, scoped)
    )
    inner = scope.within(
        layer=layer,
        # A bracket of its own goes to the open slot; one that is on its way goes on through it.
        graft=Graft(call, scope) if call.phases else scope.graft,
        open_slot=scope.open_slot and not call.phases,
        expanding=(*scope.expanding, definition.name),
        named=scope.named,
        batched=scope.batched,
    )
    unknown = resolver.unresolved
    element = resolver.plan(tree, inner)
    if resolver.unresolved == unknown:
        _report_unused(resolver, call, scoped, scope)
    if element is not None:
        element.definition = call.name
    return None if call.args.positional else element


def _report_circle(resolver: Resolver, call: Call, scope: Scope) -> None:
    """Report a definition that uses itself, once per circle."""
    start = scope.expanding.index(call.part)
    chain = scope.expanding[start:]
    resolver.unresolved += 1
    resolver.parameters.incomplete = True
    if frozenset(chain) in resolver.definitions.circles:
        return
    resolver.definitions.circles.add(frozenset(chain))
    shown = " uses ".join((*chain, call.part))
    resolver.add("circle", f"the definition {call.part!r} uses itself: {shown}", call, scope)


def _report_unused(resolver: Resolver, call: Call, scoped: ScopedArgs, scope: Scope) -> None:
    for index, (key, _) in enumerate(call.args.named, len(call.args.positional)):
        if key not in scoped.used:
            resolver.add(
                "unknown_option",
                f"no backend of the definition {call.name!r} has an option {key!r}",
                call,
                scope,
                span=call.args.span_of(index) or call.name_span,
                suggestion=resolver.problems.nearest(key, scoped.asked),
            )
