"""Figures as rows of a table."""

from __future__ import annotations

from typing import Any

__all__ = ["HEADINGS", "load_name", "result", "row"]

HEADINGS = (
    "load",
    "req/s",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "max ms",
    "failed",
    "mean batch",
    "CPU cores",
    "GPU %",
    "stable",
)


def load_name(load: dict[str, Any]) -> str:
    """Return a short name of a load: ``10 clients``, ``200/s``, ``arrivals.txt``."""
    if load["kind"] == "closed":
        return "1 client" if load["clients"] == 1 else f"{load['clients']} clients"
    return f"{load['rate']:g}/s" if load["kind"] == "open" else str(load["file"])


def row(point: dict[str, Any]) -> list[str]:
    """Give the cells of one point, in the order of `HEADINGS`; an unknown figure is ``-``."""
    latency = point["latency_ms"]
    batches = {name: sizes["mean"] for name, sizes in point["batch_size"].items() if sizes["mean"]}
    means = [
        f"{name} {mean:.2f}" if len(batches) > 1 else f"{mean:.2f}"
        for name, mean in batches.items()
    ]
    failed = ", ".join(f"{code} {count}" for code, count in point["failed"].items())
    gpu = [device["utilisation_percent"] for device in point.get("gpu", ())]
    stable = {None: "-", True: "yes", False: "no"}[point["stable"]]
    return [
        load_name(point["load"]),
        f"{point['throughput_rps']:.1f}",
        *(_number(latency[name]) for name in ("p50", "p90", "p99", "max")),
        failed or "0",
        ", ".join(means) or "-",
        f"{point['cpu']['cores']:.2f}" if "cpu" in point else "-",
        ", ".join("-" if percent is None else str(percent) for percent in gpu) or "-",
        "interrupted" if point["interrupted"] else stable,
    ]


def result(trial: dict[str, Any]) -> str:
    """Return the last cell of a trial of ``headrace tune``: its remark."""
    point = trial["point"]
    if point is None:
        return str(trial["error"])
    marks = [mark for mark in ("best", "frontier", "reached") if trial[mark]]
    if trial["runs"] > 1:
        marks.append(f"{trial['runs']} runs")
    if not point["ok"] and not point["failed"]:
        marks.append("no request ended in time")
    return ", ".join(marks)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
