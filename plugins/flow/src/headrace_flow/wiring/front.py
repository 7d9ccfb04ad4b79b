"""The expression before all nodes, ``entrypoint``, as nodes and links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_flow.wiring.trees import (
    WAITING,
    Configuration,
    first,
    in_order,
    in_words_of_core,
    refused,
    walk,
    with_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

BEFORE, AFTER = "entrypoint", "exit"
"""The names of the nodes that stand before and after all others."""


def translate_front(config: Configuration, front: Any) -> None:
    """Translate an ``entrypoint`` into a node before the first one, one after the last one, and the ends of nodes.

    Raises:
        ConfigError: No table can say it.
    """
    nodes = dict(config.nodes)
    if first(front, ("DagDispatcher",)) is None:
        _add_caller(config, front, nodes)
        return
    before, walked, after = _parts(front)
    ends = [name for name, table in nodes.items() if not _next(table)]
    if walked.part == "Restart":
        if after:
            text = "Restart ends the last node, so nothing comes after it"
            raise refused(
                after[0], text, "Write it into a node that the last one leads to by next."
            )
        for name in ends:
            _append(config, name, with_nodes(walked, nodes))
    if after:
        _one(after[0], ends, "last", "write it into each")
        _add(config, AFTER, after)
        nodes[ends[0]]["next"] = AFTER
    if before:
        reached = {node for table in nodes.values() for node in _next(table)}
        roots = [name for name in nodes if name not in reached]
        _one(before[0], roots, "first", "write it into each")
        _add(config, BEFORE, before, next=roots[0])


def _parts(front: Any) -> tuple[Sequence[Any], Any, Sequence[Any]]:
    """Return what stands before the walk through the graph, the walk with what restarts it, and what stands after it."""
    if front.prefix is None and front.name == "DagDispatcher" and not front.phases:
        return (), front, ()
    if front.part == "Restart" and [child.part for child in front.children] == ["DagDispatcher"]:
        return (), front, ()
    inside = [child for child in front.children if first(child, ("DagDispatcher",)) is not None]
    if front.part not in ("S", "Sequential") or len(inside) != 1:
        word = first(front, ("DagDispatcher",))
        text = "DagDispatcher stands in a branch, and no table says what comes next there"
        hint = "Write DagDispatcher in S or in Restart, or a first node with the condition, linked by next."
        raise refused(word, text, hint)
    place = front.children.index(inside[0])
    before, walked, after = _parts(inside[0])
    return (*front.children[:place], *before), walked, (*after, *front.children[place + 1 :])


def _add_caller(config: Configuration, front: Any, nodes: dict[str, Any]) -> None:
    """Add a first node that calls others, and waits for them."""
    for name, table in nodes.items():
        if _next(table):
            text = f"the entrypoint does not walk the graph, so nothing comes after {name!r}"
            raise refused(
                front, text, "Put DagDispatcher where the walk is to begin, or leave out next."
            )
    called = {part.name for part in walk(front)}
    if front.part == "Forward" and len(nodes) == 1 and f"node.{next(iter(nodes))}" in called:
        return
    _add(config, BEFORE, (front,), instance_num=WAITING)


def _add(config: Configuration, name: str, elements: Sequence[Any], **keys: Any) -> None:
    """Add a node, in front of all others unless it comes last."""
    if name in config.tables:
        text = f"the entrypoint becomes a node {name!r}, and there is one of that name"
        raise refused(elements[0], text, "Give that node another name.")
    tree = in_words_of_core(config, "global", in_order(elements[0], tuple(elements)))
    others = dict(config.tables)
    new = {name: {"backend": tree, **keys}}
    config.tables.clear()
    config.tables.update({**others, **new} if name == AFTER else {**new, **others})


def _append(config: Configuration, node: str, element: Any) -> None:
    """Let an element run after all others of a node."""
    backend = config.tables[node].get("backend")
    if backend is None or isinstance(backend, str):
        backend = config.parse(node, "backend")
    if backend is not None:
        config.tables[node]["backend"] = in_order(element, (backend, element))


def _one(at: Any, names: Sequence[str], which: str, instead: str) -> None:
    if len(names) != 1:
        text = f"{at.part} stands beside DagDispatcher, and there are several {which} nodes: {', '.join(names)}"
        raise refused(at, text, f"Lead them to one node by next, or {instead}.")


def _next(table: dict[str, Any]) -> list[str]:
    """Return the nodes after a node, as its key ``next`` names them."""
    value = table.get("next") or ()
    names = value.split(",") if isinstance(value, str) else value
    return [str(name).strip() for name in names]
