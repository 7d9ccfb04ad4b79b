"""The graph of a pipeline as text for Mermaid or Graphviz."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Edge(NamedTuple):
    """An arrow from one node to another, with its label; the arrow of a `Repost` or `Forward` is dashed."""

    source: str
    target: str
    label: str
    dashed: bool = False


def _nodes(plan: dict[str, Any]) -> dict[str, str]:
    """Return the label of each node: a line with its name and special keys, and one with its expression."""
    labels = {}
    for name, node in plan["nodes"].items():
        links = node["links"]
        marks = [
            *([f"{node['instance_num']} instances"] if node["instance_num"] > 1 else []),
            *(["or"] if links.get("or") else []),
            *([f"each {links['each']}"] if links.get("each") else []),
        ]
        labels[name] = f"{name}{' (' + ', '.join(marks) + ')' if marks else ''}\n{_short(node)}"
    return labels


def _short(node: dict[str, Any]) -> str:
    text = str(node["expression"])
    return text if len(text) <= 48 else f"{text[:47]}…"


def _edges(plan: dict[str, Any]) -> list[Edge]:
    """Return the edges of ``next``, of a ``map`` that reaches further back, of `Repost` and of `Forward`."""
    nodes = plan["nodes"]
    edges: list[Edge] = []
    for name, node in nodes.items():
        edges += [Edge(name, to, _label(nodes[to], name)) for to in node["next"]]
        sources = node["links"].get("map", {})
        edges += [Edge(s, name, _label(node, s)) for s in sources if name not in nodes[s]["next"]]
    for name, node in nodes.items():
        edges += [Edge(name, to, "Repost", dashed=True) for to in node["links"].get("reposts", ())]
        trees = [node[key] for key in ("tree", "init") if key in node]
        called = [to for to in _called(trees) if to in nodes and to != name]
        edges += [Edge(name, to, "Forward", dashed=True) for to in dict.fromkeys(called)]
    return edges


def _called(trees: list[dict[str, Any]]) -> Iterator[str]:
    """Return the nodes that elements of expressions call, in the order of writing."""
    for tree in trees:
        if tree.get("instance", "").startswith("node."):
            yield tree["instance"].removeprefix("node.")
        yield from _called(tree["children"])


def _label(node: dict[str, Any], source: str) -> str:
    """Return the keys that a ``map`` takes from a node, as ``result:data,color:color``."""
    pairs = node["links"].get("map", {}).get(source, {})
    targets = {key: to if isinstance(to, list) else [to] for key, to in pairs.items()}
    return ", ".join(f"{key}:{target}" for key, to in targets.items() for target in to)


def mermaid(plan: dict[str, Any]) -> str:
    """Write a Mermaid flowchart, which many hosts show inside Markdown."""

    def quoted(text: str) -> str:
        # Mermaid reads `#quot;` as an entity, as HTML reads `&quot;`.
        escaped = escape(text, quote=False).replace('"', "&quot;").replace("#", "#35;")
        return '"' + escaped.replace("\n", "<br/>") + '"'

    names = {name: f"n{index}" for index, name in enumerate(plan["nodes"])}
    lines = ["flowchart LR"]
    lines += [f"  {names[name]}[{quoted(label)}]" for name, label in _nodes(plan).items()]
    for source, target, label, dashed in _edges(plan):
        arrow = f"-- {quoted(label)} -->" if label else "-->"
        arrow = f"-. {quoted(label)} .->" if dashed else arrow
        lines.append(f"  {names[source]} {arrow} {names[target]}")
    return "\n".join(lines)


def dot(plan: dict[str, Any]) -> str:
    """Write a graph for Graphviz."""

    def quoted(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    lines = ["digraph pipeline {", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f"  {quoted(n)} [label={quoted(label)}];" for n, label in _nodes(plan).items()]
    for source, target, label, dashed in _edges(plan):
        marks = f" [label={quoted(label)}{', style=dashed' if dashed else ''}]" if label else ""
        lines.append(f"  {quoted(source)} -> {quoted(target)}{marks};")
    return "\n".join([*lines, "}"])


FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {"mermaid": mermaid, "dot": dot}
"""The formats of ``explain --graph``: each function writes the answer of `headrace.explain`."""
