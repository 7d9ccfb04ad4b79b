"""Definitions: names that stand for expressions, from the configuration and from plugins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace._config.problems import MAX_DEPTH, Problems, key_place
from headrace._expression.parser import read_expression
from headrace._expression.tree import PLAIN_NAME
from headrace._plan.scope import Layer
from headrace._registry.hooks import definitions
from headrace._registry.registry import registry
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace._config.document import Written
    from headrace._expression.tree import Call


Files = tuple[tuple[str, dict[str, type[Any]]], ...]
"""The files that a configuration imports, and what each has registered."""

MAX_ELEMENTS = 10_000
"""Most elements that an expression may become through definitions and parameters."""


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
    """All definitions that a configuration may use.

    Attributes:
        cycles: Those that use each other, as far as it is reported.
    """

    def __init__(self, written: Mapping[str, Written], files: Files, problems: Problems) -> None:
        self._problems = problems
        self._files = files
        self._known: dict[str, list[Definition]] = {}
        self._trees: dict[tuple[str, str | None], Call | None] = {}
        self._sizes: dict[tuple[str, str | None], int] = {}
        self.cycles: set[frozenset[str]] = set()
        for name, offers in definitions().items():
            self._known[name] = [
                Definition(
                    name, text, Layer(f"{name} of {r.distribution}"), r.plugin, r.distribution
                )
                for r, text in offers
            ]
        for name, one in written.items():
            self._add(name, one)

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

    def own(self) -> Iterator[Definition]:
        """Give those of the configuration; one of a plugin is checked where it is used."""
        return (d for offers in self._known.values() for d in offers if not d.distribution)

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

    # Definitions that double each other, b = "S[a,a]", c = "S[b,b]", are short to write and become
    # more elements than any memory holds. So the elements are counted before any is made.

    def why_too_large(self, call: Call, node: str | None, definition: str = "") -> str | None:
        """Say why an expression becomes too large, None when it does not.

        Args:
            call: The expression.
            node: The node that it is used in.
            definition: The definition that it is, if it is one.

        Returns:
            A sentence; empty where it is told of a definition that is used.
        """
        count, largest = self._count(call, node, (definition,) if definition else ())
        if count <= MAX_ELEMENTS or largest is None:
            return None
        if not largest.distribution and self._size(largest, node, ()) > MAX_ELEMENTS:
            return ""
        what = f"the definition {definition!r}" if definition else "the expression"
        return (
            f"{what} becomes more than {MAX_ELEMENTS} elements when its definitions are put in, most "
            f"of them through {largest.name!r}"
        )

    def _count(
        self, call: Call, node: str | None, using: tuple[str, ...]
    ) -> tuple[int, Definition | None]:
        """Count the elements of an expression in ``using``; give the largest definition in it too."""
        count, largest, most = 0, None, 0
        todo = [call]
        while todo:
            one = todo.pop()
            todo.extend(one.children)
            found = self.find(one)
            # A cycle, and what is nested too deep, is reported where it is put in.
            if not found or found[-1].name in using or len(using) > MAX_DEPTH:
                count += 1
                continue
            size = self._size(found[-1], node, using)
            count += size
            if size > most:
                largest, most = found[-1], size
        return count, largest

    def _size(self, definition: Definition, node: str | None, using: tuple[str, ...]) -> int:
        key = (definition.layer.path, node)
        if key not in self._sizes:
            tree = self.tree(definition, node)
            more = (*using, definition.name)
            self._sizes[key] = 1 if tree is None else self._count(tree, node, more)[0]
        return self._sizes[key]
