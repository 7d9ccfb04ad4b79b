"""What a notebook shows of pipelines, configurations and statistics: plain HTML, without a script or the network.

The drawing of a graph is that of headrace-cli. It is imported when a notebook asks for it, and where it is not installed the
text of the object is shown.
"""

from __future__ import annotations

import importlib
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Statistics", "graph_html", "table_html"]

_DRAWING = "headrace_cli.graph"


class Statistics(dict[str, Any]):
    """The dict that ``stats()`` returns, which a notebook shows as tables."""

    def _repr_html_(self) -> str:
        nodes = self.get("nodes", {})
        return (
            _node_table(nodes) + _instance_table(nodes)
            if nodes
            else f"<pre>{escape(repr(self))}</pre>"
        )


def graph_html(about: object, explained: Callable[[], Any]) -> str:
    """Return the drawn graph of a pipeline below its text; the text alone where nothing can draw it.

    Args:
        about: The object that is shown.
        explained: Returns what `headrace.explain` says of it.
    """
    text = f"<p><code>{escape(repr(about))}</code></p>"
    try:
        drawing: Any = importlib.import_module(_DRAWING)
    except ImportError:
        return text
    return f"{text}\n{drawing.svg(explained())}"


def table_html(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table; texts are escaped, numbers are rounded to what is of use."""

    def cells(kind: str, row: Iterable[Any]) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(_text(one))}</{kind}>" for one in row) + "</tr>"

    return f"<table>{cells('th', heading)}{''.join(cells('td', row) for row in rows)}</table>"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _node_table(nodes: dict[str, Any]) -> str:
    heading = ("node", "waiting", "submitted", "ok", "failed", "cancelled", "batches", "batch size")
    times = ("queue ms p50", "p99", "forward ms p50", "p99")
    rows = []
    for name, node in nodes.items():
        counts = (node["waiting"], node["submitted"], node["ok"], sum(node["failed"].values()))
        batches = (node["cancelled"], node["batches"], node["batch_size"]["mean"])
        waited, ran = node["queue_ms"], node["forward_ms"]
        rows.append((name, *counts, *batches, waited["p50"], waited["p99"], ran["p50"], ran["p99"]))
    return table_html((*heading, *times), rows)


def _instance_table(nodes: dict[str, Any]) -> str:
    heading = ("node", "instance", "device", "batches", "errors", "busy s", "utilisation")
    keys = ("index", "device", "batches", "errors", "busy_s", "utilisation")
    rows = [
        (name, *("" if one[key] is None else one[key] for key in keys))
        for name, node in nodes.items()
        for one in node["instances"]
    ]
    return table_html(heading, rows)
