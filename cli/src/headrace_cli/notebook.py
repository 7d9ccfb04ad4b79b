"""What a notebook shows of pipelines, configurations and statistics: plain HTML, without a script or the network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import headrace
from headrace_cli.graph import mermaid

if TYPE_CHECKING:
    from collections.abc import Iterable


def html_of(about: dict[str, Any] | headrace.Pipeline | headrace.PipelineConfig) -> str:
    """Return the graph of a pipeline, or of its configuration, for Mermaid below its text; or ``stats()`` as tables."""
    if isinstance(about, dict):
        return _tables(about)
    config = about.config if isinstance(about, headrace.Pipeline) else about
    graph = mermaid(headrace.explain(config))
    return f"<p><code>{escape(repr(about))}</code></p>\n<pre>{escape(graph)}</pre>"


def _tables(stats: dict[str, Any]) -> str:
    """Return statistics as tables: one of the nodes, one of their instances."""
    nodes = stats.get("nodes", {})
    if not nodes:
        return f"<pre>{escape(repr(stats))}</pre>"
    return _node_table(nodes) + _instance_table(nodes)


def _table(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table; texts are escaped, numbers are rounded to what is of use."""

    def cells(kind: str, row: Iterable[Any]) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(_text(cell))}</{kind}>" for cell in row) + "</tr>"

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
    return _table((*heading, *times), rows)


def _instance_table(nodes: dict[str, Any]) -> str:
    heading = ("node", "instance", "device", "batches", "errors", "busy s", "utilisation")
    keys = ("index", "device", "batches", "errors", "busy_s", "utilisation")
    rows = [
        (name, *("" if part[key] is None else part[key] for key in keys))
        for name, node in nodes.items()
        for part in node["instances"]
    ]
    return _table(heading, rows)
