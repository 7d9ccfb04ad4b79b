"""What a built pipeline and its plan say about the node at which requests enter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_serve.models.signature import entries_and_ends

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace import Pipeline
    from headrace.plan import Node, Plan

__all__ = ["described", "entry_node", "queue_size"]


def described(pipe: Pipeline, plan: Plan) -> dict[str, Any]:
    """Return the description of a pipeline, completed from its plan.

    Each node says under ``each`` whether it runs once per element.

    Raises:
        SetupError: There are several nodes at which requests may enter, and clients cannot choose one.
    """
    found = pipe.describe()
    for name, node in plan.nodes.items():
        found["nodes"][name]["each"] = node.links.each is not None
        found["nodes"][name]["calls"] = list(node.links.calls)
    entries = entries_and_ends(found["nodes"])[0]
    if len(entries) > 1:
        what = f"the pipeline has several nodes at which requests may enter: {', '.join(entries)}"
        raise SetupError(what, hint="Serve a configuration for each.")
    return found


def entry_node(
    nodes: Mapping[str, Node], described: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return name and keys of the node at which requests enter; of several the first one's name, and no keys."""
    first, *others = entries_and_ends(described["nodes"])[0] or nodes
    return first, {} if others else {k: one.value for k, one in nodes[first].keys.items()}


def queue_size(keys: dict[str, Any]) -> int | None:
    """Return the ``queue_size`` of the entry node; None if there are several."""
    return int(keys["queue_size"]) if keys else None
