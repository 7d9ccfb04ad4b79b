"""What runs when an expression is called: the elements in it, and those of what it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._plan.element import Element, NodePlan

__all__ = ["doors", "elements_run", "nodes_named", "roots_of"]


def doors(nodes: Mapping[str, NodePlan], name: str) -> list[str]:
    """Give a node and, while it is a second door, the node behind it; the last is no door."""
    found = [name]
    while (behind := nodes[found[-1]].door_to) is not None and behind in nodes:
        found.append(behind)
    return found


def roots_of(node: NodePlan) -> list[Element]:
    """Give the expressions of a node."""
    return [node.entry, *([node.init] if node.init is not None else [])]


def nodes_named(roots: Iterable[Element]) -> list[str]:
    """Give the nodes of which some instance is named in expressions, ``Forward[node.x]`` or other."""
    named = (element.named for root in roots for element in root.walk())
    return list(dict.fromkeys(n.node for n in named if n is not None and n.node is not None))


def elements_run(nodes: Mapping[str, NodePlan], roots: Iterable[Element]) -> list[Element]:
    """Give all elements that a call of ``roots`` may run, those of named instances and nodes too.

    Everything that stands in a node counts, also what only its ``init`` builds.
    """
    found: dict[int, Element] = {}
    todo = list(roots)
    while todo:
        element = todo.pop()
        if id(element) in found:
            continue
        found[id(element)] = element
        todo += element.children
        if element.named is not None:
            if element.named.element is not None:
                todo.append(element.named.element)
            node = nodes.get(element.named.node or "")
            todo += roots_of(node) if node is not None else []
    return list(found.values())
