"""Pictures of measurements, by matplotlib: PNG, SVG or PDF by the suffix, or one HTML page."""

from __future__ import annotations

import html
import io
import os
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_observe.extras import library
from headrace_observe.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Panel", "check_plot", "frontier_panel", "load_panels", "plot"]

SUFFIXES = (".png", ".svg", ".pdf", ".html")


@dataclass
class Panel:
    """One set of axes.

    Attributes:
        x, y: The labels of the axes, with units.
        lines: The points of each line, by its label.
        dots: The points of each scatter, by its label.
        log_x: Whether the x axis is logarithmic.
    """

    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    dots: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    log_x: bool = False


def check_plot(path: str | os.PathLike[str] | None) -> None:
    """Refuse a plot that cannot be made, before anything is measured.

    Raises:
        InputError: The suffix of the file names no known format.
        MissingDependencyError: matplotlib is not installed: the extra ``[plot]``.
    """
    if path is None:
        return
    if Path(path).suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    _matplotlib()


def _matplotlib() -> Any:
    """Import matplotlib's figures; their list of fonts goes into a folder that is gone again, not into the user's home."""
    if "matplotlib" in sys.modules or "MPLCONFIGDIR" in os.environ:
        return library("matplotlib.figure", "plot", "a plot")
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        os.environ["MPLCONFIGDIR"] = folder
        try:
            return library("matplotlib.figure", "plot", "a plot")
        finally:
            del os.environ["MPLCONFIGDIR"]


def _drawn(panels: Sequence[Panel], title: str, clocks: Iterable[str] = ()) -> Any:
    figure = _matplotlib().Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    figure.suptitle(title)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for label, points in panel.lines.items():
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
        for label, points in panel.dots.items():
            axes.scatter(*zip(*points, strict=True), label=label, color="0.65", zorder=1)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        if panel.log_x:
            axes.set_xscale("log")
        axes.set_ylim(0, 1.2 * axes.get_ylim()[1])  # with room for the legend
        axes.grid(visible=True, alpha=0.3)
        if panel.lines or panel.dots:
            axes.legend(framealpha=0.5)
    wide = 90 * len(panels)
    lines = [textwrap.fill(f"The clock: {clock}.", wide) for clock in dict.fromkeys(clocks)]
    if lines:
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize="x-small", color="0.3")
    return figure


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def plot(
    path: str | os.PathLike[str], panels: Sequence[Panel], title: str, clocks: Iterable[str]
) -> None:
    """Draw panels side by side into a file, which appears only once it is whole.

    Args:
        path: The file.
        panels: The panels.
        title: The text above the panels.
        clocks: What the clocks of the figures cover. Written below them, equal ones once.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    figure = _drawn(panels, title, clocks)
    if Path(path).suffix.lower() == ".html":
        page = (
            f'<!doctype html><html lang="en"><meta charset="utf-8">'
            f"<title>{html.escape(title)}</title><body>{_svg(figure)}</body></html>\n"
        )
        write_whole(path, lambda part: part.write_text(page, "utf-8", "xmlcharrefreplace"))
        return
    kind = Path(path).suffix[1:] or "png"
    write_whole(path, lambda part: figure.savefig(part, dpi=120, format=kind))


def load_panels(rows: Iterable[tuple[str, dict[str, Any]]]) -> list[Panel]:
    """Return panels of throughput and latency over the load, for closed loops and for open loops.

    Args:
        rows: Points, as `Point.to_dict` gives them, each after the name of its configuration.
    """
    panels: list[Panel] = []
    points = list(rows)
    axes = {"clients": ("closed",), "arrivals per second": ("open", "arrivals")}
    for called, kinds in axes.items():
        throughput, latency = Panel(called, "requests per second"), Panel(called, "latency, ms")
        for name, point in points:
            if point["load"]["kind"] not in kinds or point["latency_ms"]["p50"] is None:
                continue
            x = _place(point)
            throughput.lines.setdefault(name, []).append((x, point["throughput_rps"]))
            for percent in ("p50", "p99"):
                y = point["latency_ms"][percent]
                latency.lines.setdefault(f"{name}, {percent}", []).append((x, y))
        if throughput.lines:
            panels += [throughput, latency]
    return panels


def _place(point: dict[str, Any]) -> float:
    """Return the load of a point as a number: clients, or arrivals per second.

    A file of arrivals has no rate, so the rate of its answers is used.
    """
    load = point["load"]
    if "clients" in load or "rate" in load:
        return float(load["clients"] if "clients" in load else load["rate"])
    answered: int = point["ok"] + sum(point["failed"].values())
    return answered / float(point["seconds"])


def frontier_panel(document: dict[str, Any]) -> Panel:
    """Return a panel with throughput over p99 of every trial, and the frontier as a line.

    Args:
        document: The document that ``headrace tune --json`` prints.
    """
    panel = Panel("p99, ms", "requests per second")
    for trial in document["trials"]:
        point = trial["point"]
        if point is None or point["latency_ms"]["p99"] is None:
            continue
        place = (point["latency_ms"]["p99"], point["throughput_rps"])
        panel.dots.setdefault("tried", []).append(place)
        if trial["frontier"]:
            panel.lines.setdefault("frontier", []).append(place)
    return panel
