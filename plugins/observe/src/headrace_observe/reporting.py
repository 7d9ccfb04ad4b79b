"""Makes one HTML page, readable offline, from documents of ``bench``, ``simulate``, ``tune`` and ``trace``."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_observe.figures import latency_ms
from headrace_observe.plots import Panel, as_svg, frontier_panel, load_panels
from headrace_observe.rows import HEADINGS, load_name, result, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["as_page"]

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
    "svg{max-width:100%;height:auto}.best{background:#e8f4e8}"
)


def as_page(documents: Iterable[tuple[str, Any]], draw: Callable[[dict[str, Any]], str]) -> str:
    """Return the text of the page.

    Args:
        documents: The name of each file and the document in it.
        draw: Draws the graph of a configuration as ``<svg>``, from the result of ``headrace.explain``.

    Raises:
        InputError: A document is of none of these commands.
        MissingDependencyError: matplotlib is not installed: the extra ``[plot]``.
    """
    parts = []
    for name, document in documents:
        parts.append(f"<h2>{html.escape(name)}</h2>")
        try:
            parts += _section(name, document, draw)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{name}: it is incomplete, or of another version: {type(error).__name__}: {error}"
            ) from error
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headrace report</title>'
        f"<style>{_STYLE}</style></head><body><h1>Headrace report</h1>{''.join(parts)}</body></html>\n"
    )


def _section(name: str, document: Any, draw: Callable[[dict[str, Any]], str]) -> list[str]:
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind in ("bench", "simulate"):
        parts = _loads(document, draw)
    elif kind == "tune":
        parts = _tuning(document, draw)
    elif isinstance(document, dict) and "traceEvents" in document:
        return _trace(document)
    else:
        printed = isinstance(document, dict) and "trace" in document  # by `headrace trace --json`
        raise InputError(
            f"{name}: no report can be made of it: expected "
            "the JSON of headrace bench, simulate or tune, or the file that headrace trace writes",
            hint=f"Name the trace itself: {document['trace']}" if printed else None,
        )
    if document["interrupted"]:
        parts.insert(0, "<p>Interrupted: these are the figures until then.</p>")
    if "environment" in document:
        about = document["environment"]
        rows = [(key, str(value)) for key, value in about.items() if key != "versions"]
        rows += list(about["versions"].items())
        parts += ["<h3>Environment</h3>", _table(("of", "is"), rows)]
    return parts


def _loads(document: dict[str, Any], draw: Callable[[dict[str, Any]], str]) -> list[str]:
    parts, named = [], []
    for one in document["configurations"]:
        points = one["points"]
        named += [(one["config"], point) for point in points]
        parts.append(f"<h3>{html.escape(one['config'])}</h3>")
        if "explain" in one:
            parts.append(draw(one["explain"]))
        parts.append(_table(HEADINGS, [row(point) for point in points]))
        spread = Panel("latency, ms", "requests", log_x=True)
        for point in points:
            bins = point["latency_histogram"]
            if bins["counts"]:
                pairs = list(zip(bins["edges_ms"], bins["counts"], strict=False))
                spread.lines[load_name(point["load"])] = pairs
        if spread.lines:
            parts.append(as_svg([spread], "latencies"))
    if panels := load_panels(named):
        parts += ["<h3>Over the load</h3>", as_svg(panels, document["kind"])]
    clocks = dict.fromkeys(point["clock"] for _, point in named)
    return parts + [f"<p>The clock: {html.escape(clock)}.</p>" for clock in clocks]


def _tuning(document: dict[str, Any], draw: Callable[[dict[str, Any]], str]) -> list[str]:
    parts = [f"<p>Goal: {html.escape(document['goal'])}.</p>"]
    if "explain" in document:
        parts.append(draw(document["explain"]))
    panel = frontier_panel(document)
    if panel.dots:
        parts.append(as_svg([panel], "frontier"))
    rows, best = [], None
    for number, trial in enumerate(document["trials"]):
        cells = [str(value) for value in trial["values"].values()]
        point = trial["point"]
        cells += ["-"] * len(HEADINGS) if point is None else row(point)
        cells.append(result(trial))
        best = number if trial["best"] else best
        rows.append(cells)
    parts.append(_table([*document["space"], *HEADINGS, "result"], rows, best))
    clocks = dict.fromkeys(t["point"]["clock"] for t in document["trials"] if t["point"])
    return parts + [f"<p>The clock: {html.escape(clock)}.</p>" for clock in clocks]


def _trace(document: dict[str, Any]) -> list[str]:
    """Sum up the slices of a trace by kind and name; times in the file are in microseconds."""
    processes = {
        event["pid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    found: dict[tuple[str, str, str], list[float]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            where = str(processes.get(event["pid"], event["pid"]))
            key = (where, event.get("cat", ""), event["name"])
            found.setdefault(key, []).append(event["dur"] / 1e6)
    rows = []
    for (where, kind, name), times in sorted(found.items(), key=lambda item: -sum(item[1])):
        figures = latency_ms(times)
        shown = [f"{figures[key]:.3f}" for key in ("mean", "p50", "p99", "max")]
        rows.append([where, kind, name, str(len(times)), f"{sum(times):.3f}", *shown])
    headings = (
        "track",
        "kind",
        "name",
        "count",
        "total s",
        "mean ms",
        "p50 ms",
        "p99 ms",
        "max ms",
    )
    clock = "each slice of the trace, a request from its arrival at the node to its outcome there"
    return [_table(headings, rows), f"<p>The clock: {clock}.</p>"]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], best: int | None = None) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in headings)
    body = []
    for number, cells in enumerate(rows):
        mark = ' class="best"' if number == best else ""
        body.append(f"<tr{mark}>{''.join(f'<td>{html.escape(text)}</td>' for text in cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"
