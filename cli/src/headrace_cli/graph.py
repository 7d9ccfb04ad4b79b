"""The graph of a pipeline as text for Mermaid or Graphviz, or as a drawing (SVG)."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Box = tuple[int, int, int, int]
"""Left, top, width and height, in pixels."""


class Edge(NamedTuple):
    """An arrow from one node to another, with its label; the arrow of a `Repost` or `Forward` is dashed."""

    source: str
    target: str
    label: str
    dashed: bool = False


def _nodes(found: dict[str, Any]) -> dict[str, str]:
    """Return the label of each node: a line with its name and special keys, and one with its expression."""
    labels = {}
    for name, node in found["nodes"].items():
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


def _edges(found: dict[str, Any]) -> list[Edge]:
    """Return the edges of ``next``, of a ``map`` that reaches further back, of `Repost` and of `Forward`."""
    nodes = found["nodes"]
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


def mermaid(found: dict[str, Any]) -> str:
    """Write a Mermaid flowchart, which many hosts show inside Markdown."""

    def quoted(text: str) -> str:
        # Mermaid reads `#quot;` as an entity, as HTML reads `&quot;`.
        escaped = escape(text, quote=False).replace('"', "&quot;").replace("#", "#35;")
        return '"' + escaped.replace("\n", "<br/>") + '"'

    names = {name: f"n{index}" for index, name in enumerate(found["nodes"])}
    lines = ["flowchart LR"]
    lines += [f"  {names[name]}[{quoted(label)}]" for name, label in _nodes(found).items()]
    for source, target, label, dashed in _edges(found):
        arrow = f"-- {quoted(label)} -->" if label else "-->"
        arrow = f"-. {quoted(label)} .->" if dashed else arrow
        lines.append(f"  {names[source]} {arrow} {names[target]}")
    return "\n".join(lines)


def dot(found: dict[str, Any]) -> str:
    """Write a graph for Graphviz."""

    def quoted(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    lines = ["digraph pipeline {", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f"  {quoted(n)} [label={quoted(label)}];" for n, label in _nodes(found).items()]
    for source, target, label, dashed in _edges(found):
        marks = f" [label={quoted(label)}{', style=dashed' if dashed else ''}]" if label else ""
        lines.append(f"  {quoted(source)} -> {quoted(target)}{marks};")
    return "\n".join([*lines, "}"])


_CHARACTER, _LINE, _GAP_X, _GAP_Y, _PAD = 7, 16, 130, 26, 10
"""Width of a character, height of a line, space between columns and rows, and padding, in pixels."""


def svg(found: dict[str, Any]) -> str:
    """Draw the nodes in columns by their distance from a root, with an arrow per edge."""
    labels, edges = _nodes(found), _edges(found)
    columns = _columns(list(labels), [edge for edge in edges if not edge.dashed])
    column_of = {name: index for index, column in enumerate(columns) for name in column}
    boxes: dict[str, Box] = {}
    x = _PAD
    height = 2 * _LINE + _PAD
    for column in columns:
        width = max(_CHARACTER * max(map(len, labels[name].split("\n"))) for name in column)
        width += 2 * _PAD
        for row, name in enumerate(column):
            boxes[name] = (x, _PAD + row * (height + _GAP_Y), width, height)
        x += width + _GAP_X
    right = max(bx + bw for bx, _, bw, _ in boxes.values()) + _PAD
    bottom = max(by + bh for _, by, _, bh in boxes.values()) + _PAD
    arrows = []
    for edge in edges:
        dip = 0
        if edge.dashed or column_of[edge.target] - column_of[edge.source] > 1:
            bottom += _GAP_Y  # the arrow passes below the boxes in between
            dip = (bottom - boxes[edge.source][1]) * 4 // 3 - _GAP_Y
        arrows.append(_arrow(boxes[edge.source], boxes[edge.target], edge, dip))
    bottom += _PAD
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right}" height="{bottom}"',
        f'  viewBox="0 0 {right} {bottom}" font-family="monospace" font-size="11">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"',
        '  markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'<rect width="{right}" height="{bottom}" fill="white"/>',
    ]
    lines += arrows
    lines += [_box(boxes[name], label) for name, label in labels.items()]
    return "\n".join([*lines, "</svg>"])


def _columns(names: list[str], edges: list[Edge]) -> list[list[str]]:
    """Put each node one column to the right of its last predecessor."""
    column_of = dict.fromkeys(names, 0)
    for _ in names:
        for edge in edges:
            column_of[edge.target] = max(column_of[edge.target], column_of[edge.source] + 1)
    columns: list[list[str]] = [[] for _ in range(max(column_of.values()) + 1)]
    for name in names:
        columns[column_of[name]].append(name)
    return columns


def _box(box: Box, label: str) -> str:
    x, y, width, height = box
    first, second = label.split("\n")
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="#eef3fa" '
        'stroke="#456"/>'
        f'<text x="{x + _PAD}" y="{y + _LINE}" font-weight="bold">{escape(first, quote=False)}</text>'
        f'<text x="{x + _PAD}" y="{y + 2 * _LINE}" fill="#444">{escape(second, quote=False)}</text>'
    )


def _arrow(source: Box, target: Box, edge: Edge, dip: int) -> str:
    """Draw an edge; its middle hangs ``dip * 3 / 4`` pixels below the line between the boxes."""
    x1, y1 = source[0] + source[2], source[1] + source[3] // 2
    x2, y2 = target[0], target[1] + target[3] // 2
    middle = (x1 + x2) // 2
    bend = _GAP_X if dip else middle - x1
    dashes = ' stroke-dasharray="4 3"' if edge.dashed else ""
    path = (
        f'<path d="M{x1} {y1} C{x1 + bend} {y1 + dip} {x2 - bend} {y2 + dip} {x2} {y2}" '
        f'fill="none" stroke="#555"{dashes} marker-end="url(#end)"/>'
    )
    if not edge.label:
        return path
    # The middle of a cubic curve lies at three quarters of the way to its control points.
    place = f'x="{middle}" y="{(y1 + y2) // 2 + dip * 3 // 4 - 4}"'
    return f'{path}<text {place} text-anchor="middle" fill="#666">{escape(edge.label, quote=False)}</text>'


FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {"svg": svg, "mermaid": mermaid, "dot": dot}
"""The formats of ``explain --graph``: each function draws the answer of `headrace.explain`."""
