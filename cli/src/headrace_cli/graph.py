"""The graph of a pipeline as text for Mermaid or Graphviz, or as a drawing (SVG)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMATS"]

Edge = tuple[str, str, str]
"""From, to, and what the edge says."""


def _nodes(found: dict[str, Any]) -> dict[str, str]:
    """Give a label of two lines per node: its name with what is special, and its expression."""
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
    """Give the edges of ``next``, and those of a ``map`` that reach further back."""
    edges: list[tuple[str, str]] = []
    for name, node in found["nodes"].items():
        edges += [(name, following) for following in node["next"]]
        sources = node["links"].get("map", {})
        edges += [(s, name) for s in sources if name not in found["nodes"][s]["next"]]
    return [(source, target, _says(found, target, source)) for source, target in edges]


def _reposts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Give from which node to which a walk may go on by `Repost`."""
    nodes = found["nodes"].items()
    return [(name, to) for name, node in nodes for to in node["links"].get("reposts", ())]


def _says(found: dict[str, Any], node: str, source: str) -> str:
    pairs = found["nodes"][node]["links"].get("map", {}).get(source, {})
    targets = {key: to if isinstance(to, list) else [to] for key, to in pairs.items()}
    return ", ".join(f"{key}:{target}" for key, to in targets.items() for target in to)


def mermaid(found: dict[str, Any]) -> str:
    """Write a Mermaid flowchart, as Markdown of many hosts shows it."""

    def quoted(text: str) -> str:
        return '"' + escape(text, {'"': "&quot;"}).replace("\n", "<br/>") + '"'

    lines = ["flowchart LR"]
    names = {name: f"n{index}" for index, name in enumerate(found["nodes"])}
    for name, label in _nodes(found).items():
        lines.append(f"  {names[name]}[{quoted(label)}]")
    for source, target, says in _edges(found):
        arrow = f"-- {quoted(says)} -->" if says else "-->"
        lines.append(f"  {names[source]} {arrow} {names[target]}")
    for source, target in _reposts(found):
        lines.append(f'  {names[source]} -. "Repost" .-> {names[target]}')
    return "\n".join(lines)


def dot(found: dict[str, Any]) -> str:
    """Write a graph for Graphviz."""

    def quoted(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    lines = ["digraph pipeline {", "  rankdir=LR;", "  node [shape=box];"]
    for name, label in _nodes(found).items():
        lines.append(f"  {quoted(name)} [label={quoted(label)}];")
    for source, target, says in _edges(found):
        label = f" [label={quoted(says)}]" if says else ""
        lines.append(f"  {quoted(source)} -> {quoted(target)}{label};")
    for source, target in _reposts(found):
        lines.append(f"  {quoted(source)} -> {quoted(target)} [label=Repost, style=dashed];")
    return "\n".join([*lines, "}"])


_CHARACTER, _LINE, _GAP_X, _GAP_Y, _PAD = 7, 16, 130, 26, 10
"""Width of a character, height of a line, space between columns and rows, and padding, in pixels."""


def svg(found: dict[str, Any]) -> str:
    """Draw the nodes in columns by their distance from a root, with an arrow per edge."""
    labels, edges = _nodes(found), _edges(found)
    columns = _columns(list(labels), edges)
    boxes: dict[str, tuple[int, int, int, int]] = {}
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
    depth = {name: index for index, column in enumerate(columns) for name in column}
    arrows = []
    for source, target, says in edges:
        dip = 0
        if depth[target] - depth[source] > 1:  # below what stands between
            bottom += _GAP_Y
            dip = (bottom - boxes[source][1]) * 4 // 3 - _GAP_Y
        arrows.append(_arrow(boxes[source], boxes[target], says, dip))
    for source, target in _reposts(found):
        bottom += _GAP_Y
        dip = (bottom - boxes[source][1]) * 4 // 3 - _GAP_Y
        arrows.append(_arrow(boxes[source], boxes[target], "Repost", dip, dashed=True))
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
    """Put each node one column right of the last that comes before it."""
    depth = dict.fromkeys(names, 0)
    for _ in names:
        for source, target, _says_what in edges:
            depth[target] = max(depth[target], depth[source] + 1)
    columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name in names:
        columns[depth[name]].append(name)
    return columns


def _box(box: tuple[int, int, int, int], label: str) -> str:
    x, y, width, height = box
    first, second = label.split("\n")
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="#eef3fa" '
        'stroke="#456"/>'
        f'<text x="{x + _PAD}" y="{y + _LINE}" font-weight="bold">{escape(first)}</text>'
        f'<text x="{x + _PAD}" y="{y + 2 * _LINE}" fill="#444">{escape(second)}</text>'
    )


def _arrow(
    source: tuple[int, int, int, int],
    target: tuple[int, int, int, int],
    says: str,
    dip: int,
    *,
    dashed: bool = False,
) -> str:
    x1, y1 = source[0] + source[2], source[1] + source[3] // 2
    x2, y2 = target[0], target[1] + target[3] // 2
    middle = (x1 + x2) // 2
    bend = _GAP_X if dip else middle - x1
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    path = (
        f'<path d="M{x1} {y1} C{x1 + bend} {y1 + dip} {x2 - bend} {y2 + dip} {x2} {y2}" '
        f'fill="none" stroke="#555"{dashes} marker-end="url(#end)"/>'
    )
    if not says:
        return path
    # A cubic curve comes three quarters of the way to its control points.
    place = f'x="{middle}" y="{(y1 + y2) // 2 + dip * 3 // 4 - 4}"'
    return f'{path}<text {place} text-anchor="middle" fill="#666">{escape(says)}</text>'


FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {"svg": svg, "mermaid": mermaid, "dot": dot}
"""The pictures of ``explain --graph``, each from what `headrace.explain` gives."""
