"""The shape of a configuration: which keys belong to which node, to ``[global]``, ``[define]``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from headrace._config.document import Document, Table, Written
from headrace._config.nodekeys import GLOBAL_KEYS
from headrace._config.problems import Problems, key_place
from headrace._problem import nearest

MAIN = "main"
"""The name of the only node of a configuration without tables."""

_NODE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = ("global", "define")
_BACKEND = ("backend",)


@dataclass
class Shape:
    """A configuration by its parts; every value as written.

    Attributes:
        nodes: Per node, in file order, its keys.
        globals: The keys of ``[global]``, and of the top level beside tables.
        definitions: The keys of ``[define]``.
        single: Whether it is one node without a table of its own.
        file: The file that was asked for, None for a dict.
    """

    nodes: dict[str, dict[str, Written]] = field(default_factory=dict)
    globals: dict[str, Written] = field(default_factory=dict)
    definitions: dict[str, Written] = field(default_factory=dict)
    single: bool = False
    file: str | None = None


def read_shape(document: Document, problems: Problems) -> Shape:
    """Sort the keys of ``document`` by the part of the configuration they belong to."""
    shape = Shape(file=document.file)
    before = len(problems)
    for name, part in (("global", shape.globals), ("define", shape.definitions)):
        table = document.top.get(name)
        if isinstance(table, Table):
            part.update(table.keys)
        elif table is not None:
            problems.add(
                "type",
                f"[{name}] is a table",
                **key_place(table.file, name, name, table.value),
            )
    rest = {key: value for key, value in document.top.items() if key not in _RESERVED}
    if "backend" in rest and not isinstance(rest["backend"], Table):
        shape.single = True
        _one_node(rest, shape, problems)
    else:
        _several_nodes(rest, shape, problems)
    if not shape.nodes and len(problems) == before:
        _report_no_node(document, shape, problems)
    return shape


def _report_no_node(document: Document, shape: Shape, problems: Problems) -> None:
    like = next((key for key in shape.globals if nearest(key, _BACKEND)), None)
    place: dict[str, Any] = {"file": document.file}
    hint = 'Write backend = "..." at the top, or a table per node that has a backend.'
    if like is not None:
        written = shape.globals[like]
        path = like if like in document.top else f"global.{like}"
        place = key_place(written.file, path, like, written.value, at_key=True)
    if like == "backend":
        hint = "In [global] it is the default of nodes: write it at the top, or a table per node."
    suggestion = "backend" if like not in (None, "backend") else None
    problems.add(
        "no_node", "the configuration has no node", suggestion=suggestion, hint=hint, **place
    )


def _one_node(rest: dict[str, Written], shape: Shape, problems: Problems) -> None:
    node = shape.nodes[MAIN] = {}
    for key, value in rest.items():
        if key in GLOBAL_KEYS and not isinstance(value, Table):
            if key in shape.globals:
                _report_twice(key, value, problems)
            shape.globals[key] = value
        elif isinstance(value, Table) and "backend" in value.keys:
            written = value.keys["backend"]
            problems.add(
                "two_shapes",
                f"the table [{key}] has a backend, and so has the top level",
                **key_place(written.file, f"{key}.backend", "backend", written.value, at_key=True),
                hint="Move the keys of the top level into a table of their own.",
            )
        else:
            node[key] = value


def _several_nodes(rest: dict[str, Written], shape: Shape, problems: Problems) -> None:
    for key, value in rest.items():
        if not isinstance(value, Table):
            if key in shape.globals:
                _report_twice(key, value, problems)
            if _is_list_of_tables(value.value):
                problems.add(
                    "type",
                    f"{key!r} is a list of tables, and a node is one table",
                    hint=f"Write [{key}], with one pair of brackets.",
                    **key_place(value.file, key, key, value.value),
                )
            shape.globals.setdefault(key, value)
        elif _is_misspelt(key, value, shape, problems):
            _report_misspelt(key, value, shape, problems)
        elif _NODE_NAME.fullmatch(key):
            shape.nodes[key] = value.keys
        else:
            problems.add(
                "node_name",
                f"{key!r} is no name for a node: a letter, then letters, digits, '_' and '-'",
                file=value.file,
                path=key,
                text=f"[{key}]",
                span=(1, 1 + len(key)),
            )


def misspelt_table(name: str) -> str | None:
    """Give the reserved table that a table was probably meant to be, or None."""
    return nearest(name, _RESERVED)


def _is_misspelt(name: str, table: Table, shape: Shape, problems: Problems) -> bool:
    """Tell whether a table that cannot be a node has nearly the name of a reserved one."""
    callable_by = ("backend", "init", "node_entrypoint")
    makes_a_node = any(key in table.keys or key in shape.globals for key in callable_by)
    return not makes_a_node and problems.nearest(name, _RESERVED) is not None


def _report_misspelt(name: str, table: Table, shape: Shape, problems: Problems) -> None:
    """Report it, and read its keys as those of the table that was meant."""
    meant = misspelt_table(name)
    part, holds = shape.definitions, "names for expressions"
    if meant == "global":
        part, holds = shape.globals, "the defaults of all nodes"
    problems.add(
        "unknown_table",
        f"the table [{name}] is no node, for it has no backend",
        file=table.file,
        path=name,
        text=f"[{name}]",
        span=(1, 1 + len(name)),
        suggestion=meant,
        hint=f"Write [{meant}], which holds {holds}.",
    )
    for key, written in table.keys.items():
        part.setdefault(key, written)


def _report_twice(key: str, value: Written, problems: Problems) -> None:
    problems.add(
        "twice",
        f"{key!r} stands at the top level and in [global]",
        **key_place(value.file, key, key, value.value, at_key=True),
    )


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, dict) and "backend" in v for v in value)
