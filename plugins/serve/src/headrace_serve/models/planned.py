"""What a built pipeline and its plan say about the nodes at which requests enter and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError

if TYPE_CHECKING:
    from headrace import Pipeline
    from headrace.plan import Plan

__all__ = ["described"]


def described(pipe: Pipeline, plan: Plan) -> tuple[Any, list[Any]]:
    """Return the descriptions of the node at which requests enter, and of those at which they end.

    Each says under ``each`` whether the node runs once per element.

    Raises:
        SetupError: There are several nodes at which requests may enter, and clients cannot choose one.
    """
    if len(plan.roots) > 1:
        text = (
            f"the pipeline has several nodes at which requests may enter: {', '.join(plan.roots)}"
        )
        raise SetupError(text, hint="Serve a configuration for each.")
    nodes = pipe.describe()["nodes"]
    reached, todo = {*plan.roots}, [*plan.roots]
    while todo:
        links = plan.nodes[todo.pop()].links
        new = {*links.next, *links.reposts} - reached
        reached |= new
        todo += new
    for name, node in plan.nodes.items():
        nodes[name]["each"] = node.links.each is not None
    ends = [name for name, node in plan.nodes.items() if name in reached and not node.next]
    return nodes[plan.roots[0]], [nodes[name] for name in ends]
