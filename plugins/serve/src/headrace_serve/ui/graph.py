"""What the live page needs to know of each model before it shows figures: its graph, and a form for its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["edges_of", "nodes_of"]


def nodes_of(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a pipeline: name, expression, number of instances, largest batch, how long it waits, queue, and how it joins.

    Args:
        plan: The answer of `headrace.explain`.
    """
    return [
        {
            "name": name,
            "expression": node["expression"],
            "instances": node["instance_num"],
            "most": node["range"][1],
            "queue_size": node["keys"]["queue_size"]["value"],
            "batching_timeout_ms": node["keys"]["batching_timeout"]["value"],
            "device": node["keys"]["device"]["value"],
            "each": node["links"].get("each"),
            "or": bool(node["links"].get("or")),
            "alias_of": node["alias_of"],
        }
        for name, node in plan["nodes"].items()
    ]


def edges_of(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the edges of a pipeline: of ``next``, of a ``map`` that reaches further back, and of `Repost`.

    Args:
        plan: The answer of `headrace.explain`.
    """
    nodes = plan["nodes"]
    edges = [
        {"from": name, "to": to, "keys": _keys(nodes[to], name)}
        for name, node in nodes.items()
        for to in node["next"]
    ]
    edges += [
        {"from": source, "to": name, "keys": _keys(node, source)}
        for name, node in nodes.items()
        for source in node["links"].get("map", {})
        if name not in nodes[source]["next"]
    ]
    edges += [
        {"from": name, "to": to, "keys": "Repost"}
        for name, node in nodes.items()
        for to in node["links"].get("reposts", ())
    ]
    return edges


def _keys(node: Mapping[str, Any], source: str) -> str:
    """Return the keys that a ``map`` takes from a node, as ``result:data``."""
    pairs = node["links"].get("map", {}).get(source, {})
    targets = {key: to if isinstance(to, list) else [to] for key, to in pairs.items()}
    return ", ".join(f"{key}:{target}" for key, to in targets.items() for target in to)
