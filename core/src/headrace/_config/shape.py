"""The shape of a configuration: which keys belong to which node, to ``[global]``, ``[define]``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace._config.document import Document, Written
from headrace._config.nodekeys import GLOBAL_KEYS

if TYPE_CHECKING:
    from headrace._config.problems import Problems

__all__ = ["MAIN", "Shape", "read_shape"]

MAIN = "main"
"""The name of the only node of a configuration without tables."""

_NODE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = ("global", "define")


@dataclass
class Shape:
    """A configuration by its parts; every value as written.

    Attributes:
        nodes: Per node, in file order, its keys.
        globals: The keys of ``[global]``, and of the top level beside tables.
        definitions: The keys of ``[define]``.
    """

    nodes: dict[str, dict[str, Written]] = field(default_factory=dict)
    globals: dict[str, Written] = field(default_factory=dict)
    definitions: dict[str, Written] = field(default_factory=dict)


def read_shape(document: Document, problems: Problems) -> Shape:
    """Sort the keys of ``document`` by the part of the configuration they belong to."""
    shape = Shape()
    for name, part in (("global", shape.globals), ("define", shape.definitions)):
        table = document.top.get(name, {})
        if isinstance(table, dict):
            part.update(table)
        else:
            problems.add(
                "type", f"expected a table, got {table.value!r}", file=table.file, path=name
            )
    rest = {key: value for key, value in document.top.items() if key not in _RESERVED}
    if "backend" in rest and isinstance(rest["backend"], Written):
        _one_node(rest, shape, problems)
    else:
        _several_nodes(rest, shape, problems)
    if not shape.nodes and not len(problems):
        problems.add(
            "no_node",
            "the configuration has no node",
            file=document.file,
            hint='Write backend = "..." at the top, or a table per node that has a backend.',
        )
    return shape


def _one_node(
    rest: dict[str, Written | dict[str, Written]], shape: Shape, problems: Problems
) -> None:
    node: dict[str, Written] = {}
    for key, value in rest.items():
        if isinstance(value, Written):
            (shape.globals if key in GLOBAL_KEYS else node)[key] = value
        elif "backend" in value:
            problems.add(
                "two_shapes",
                f"the table [{key}] has a backend, and so has the top level",
                file=value["backend"].file,
                path=f"{key}.backend",
                hint="Move the keys of the top level into a table of their own.",
            )
        elif value:
            first = next(iter(value.values()))
            table = {name: written.value for name, written in value.items()}
            node[key] = Written(table, first.base, first.file)
    shape.nodes[MAIN] = node


def _several_nodes(
    rest: dict[str, Written | dict[str, Written]], shape: Shape, problems: Problems
) -> None:
    for key, value in rest.items():
        if isinstance(value, Written):
            if key in shape.globals:
                problems.add(
                    "twice",
                    f"{key!r} stands at the top level and in [global]",
                    file=value.file,
                    path=key,
                )
            shape.globals.setdefault(key, value)
        elif _NODE_NAME.fullmatch(key) and key.isascii():
            shape.nodes[key] = value
        else:
            problems.add(
                "node_name",
                f"{key!r} is no name for a node: a letter, then letters, digits, '_' and '-'",
                path=key,
            )
