"""Definitions: names that stand for expressions, from the configuration and from plugins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._config.nodekeys import NodeKeys
from headrace._expression import parse, substitute
from headrace._expression.words import PLAIN_NAME
from headrace._plan.parameters import Parameters
from headrace._plan.scope import Layer, Scope
from headrace._registry import registry
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace._config.problems import Problems
    from headrace._expression import Call
    from headrace._plan.planner import Files, Pipeline

__all__ = ["Definition", "Definitions"]


@dataclass(frozen=True)
class Definition:
    """One definition.

    Attributes:
        name: Its name.
        text: Its expression as written.
        layer: Where it was written.
        source: The distribution that brings it, or ``define``.
    """

    name: str
    text: str
    layer: Layer
    source: str = "define"


class Definitions:
    """All definitions that a configuration may use."""

    def __init__(self, pipeline: Pipeline, files: Files, problems: Problems) -> None:
        self._problems = problems
        self._files = files
        self._known: dict[str, Definition] = {}
        self._trees: dict[tuple[str, str | None], Call | None] = {}
        for name, (text, source) in registry.definitions().items():
            layer = Layer(f"definition {name} of {source}")
            self._known[name] = Definition(name, text, layer, source)
        for name, written in pipeline.shape.definitions.items():
            layer = Layer(f"define.{name}", written.file, str(written.base))
            place = {"file": written.file, "path": layer.path}
            if not PLAIN_NAME.fullmatch(name):
                problems.add("definition", f"{name!r} is no name for a definition", **place)
            elif not isinstance(written.value, str):
                problems.add("type", f"expected an expression, got {written.value!r}", **place)
            elif name in self._known:
                other = self._known[name].source
                problems.add("definition", f"{name!r} is defined by {other} already", **place)
            else:
                self._known[name] = Definition(name, written.value, layer)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __getitem__(self, name: str) -> Definition:
        return self._known[name]

    def names(self) -> list[str]:
        """Give all names."""
        return list(self._known)

    def tree(self, name: str, node: str | None) -> Call | None:
        """Give the expression of a definition for use in a node; None when it is wrong."""
        key = (name, node)
        if key not in self._trees:
            self._trees[key] = self._read(self._known[name], node)
        return self._trees[key]

    def _read(self, definition: Definition, node: str | None) -> Call | None:
        place = {"file": definition.layer.file, "path": definition.layer.path}
        try:
            tree = substitute(parse(definition.text), node_name=node, environ=os.environ)
        except ConfigError as error:
            self._problems.extend(error.problems, **place)
            return None
        if tree.prefix is not None:
            self._problems.add(
                "prefix",
                "a definition cannot begin with a prefix; write it where the definition is used",
                span=tree.prefix.span,
                text=tree.text,
                **place,
            )
            return None
        return tree

    def check_all(self, pipeline: Pipeline) -> None:
        """Check every definition by itself, used or not."""
        for name, definition in self._known.items():
            place = {"file": definition.layer.file, "path": definition.layer.path}
            specs = registry.find(name, self._files)
            if specs:
                self._problems.add(
                    "definition",
                    f"{name!r} is the name of a backend of {specs[0].distribution}",
                    **place,
                )
                continue
            if definition.source != "define":
                continue  # a plugin's definition is checked where it is used
            tree = self.tree(name, "main")
            if tree is None:
                continue
            pipeline.resolver.enter("main", NodeKeys(), Parameters("main", {}, {}, set()))
            layer = Layer(definition.layer.path, definition.layer.file, definition.layer.base, 1)
            scope = Scope(
                layer, entry=True, lenient=True, named=True, wraps=True, expanding=(name,)
            )
            pipeline.resolver.plan(tree, scope)
