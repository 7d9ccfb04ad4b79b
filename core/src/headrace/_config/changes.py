"""A configuration with other keys of one node, as ``Pipeline.reload`` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace._config.document import Document, Table, read_document
from headrace._config.nodekeys import GLOBAL_KEYS, NODE_KEYS, NODE_ONLY
from headrace._config.problems import Problems, key_place
from headrace._problem import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

__all__ = ["changed"]

_FIXED = {
    **dict.fromkeys(NODE_ONLY, "The way of requests from node to node stays as it was built."),
    **dict.fromkeys(("queue_size", "queue_full"), "The queue stays, with those who wait in it."),
    **dict.fromkeys((*GLOBAL_KEYS, "probes"), "It belongs to the pipeline as a whole."),
    **dict.fromkeys(("extends", "import", "global", "define"), "It is no key of a node."),
}
"""Keys that cannot be changed, and why."""


def changed(
    document: Document,
    nodes: Sequence[str],
    node: str,
    changes: Mapping[str, Any],
    options: AbstractSet[str],
    *,
    single: bool,
) -> Document:
    """Lay changes over one node of a configuration; neither of the two is changed itself.

    Args:
        document: The configuration.
        nodes: The names of its nodes.
        node: The node.
        changes: New values of keys of the node; None takes a key away. Relative paths in them start
            from the working directory.
        options: The options that the backends of the node have.
        single: Whether the configuration is one node without a table of its own.

    Raises:
        ConfigError: There is no such node, or a key cannot be changed.
        TypeError: ``changes`` is no mapping.
    """
    if not isinstance(changes, Mapping):
        raise TypeError(f"changes are a mapping of keys to values, got {type(changes).__name__}")
    problems = Problems()
    if node not in nodes:
        problems.add(
            "unknown_node",
            f"no node is called {node!r}",
            suggestion=nearest(node, nodes) if isinstance(node, str) else None,
            hint=f"There are: {', '.join(nodes)}.",
        )
        problems.raise_if_any()
    table = document.top.get(node)
    known: Mapping[str, Any] = table.keys if isinstance(table, Table) else {}
    if single:
        known = document.top
    names = {*known, *NODE_KEYS, *options}
    written = read_document({node: dict(changes)}).top[node]
    assert isinstance(written, Table)  # noqa: S101 - a mapping was read
    for key, new in written.keys.items():
        place = key_place(None, f"{node}.{key}", key, new.value, at_key=True)
        if key in _FIXED:
            problems.add("fixed", f"reload cannot change {key!r}", **place, hint=_FIXED[key])
        elif new.value is None and not names & {key, key.rpartition("::")[2]}:
            problems.add(
                "unknown_key",
                f"node {node!r} has no key {key!r} that could be taken away",
                **place,
                suggestion=nearest(key, sorted(names)),
            )
        elif single and key == "backend" and not isinstance(new.value, str):
            place = key_place(None, f"{node}.{key}", key, new.value)
            problems.add("type", "backend is a text, an expression", **place)
    problems.raise_if_any()
    return Document(
        _laid_over(document, node, written, single=single), document.imports, document.file
    )


def _laid_over(document: Document, node: str, changes: Table, *, single: bool) -> dict[str, Any]:
    top: dict[str, Any] = dict(document.top)
    if single:
        keys = top
    else:
        table = document.top[node]
        assert isinstance(table, Table)  # noqa: S101 - every other node is a table
        keys = dict(table.keys)
        top[node] = Table(keys, table.base, table.file)
    for key, new in changes.keys.items():
        if new.value is None:
            keys.pop(key, None)
        elif single and isinstance(new.value, dict):
            inner = read_document({key: new.value}).top[key]
            keys[key] = inner
        else:
            keys[key] = new
    return top
