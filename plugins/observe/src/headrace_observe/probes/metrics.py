"""Metrics from ``Pipeline.stats()``, with names, units and labels by the conventions of Prometheus.

Core has the counters. This module has none. The values of labels are names from the configuration,
indices, and codes of classes of errors, so their number is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_observe.codes import bounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["STATES", "Sample", "Table", "tables"]

STATES = ("ready", "degraded", "closing", "closed")

Sample = tuple["Mapping[str, str]", float]
"""The labels and the value."""

Table = tuple[str, str, str, list[Sample]]
"""Name (without the ``_total`` of a counter), kind (counter, gauge, summary), help, samples."""


def tables(stats: Mapping[str, Any], *, ready: bool) -> Iterator[Table]:
    """Return every metric except the histogram of batch sizes.

    Args:
        stats: The result of ``Pipeline.stats()``.
        ready: The value of ``Pipeline.ready``.
    """
    nodes: Mapping[str, Any] = stats["nodes"]
    yield "headrace_ready", "gauge", "Whether requests are accepted.", [({}, float(ready))]
    states: list[Sample] = [({"state": state}, float(stats["state"] == state)) for state in STATES]
    yield "headrace_state", "gauge", "The state of the pipeline: 1 for its current state.", states
    yield _per_node(nodes, "headrace_requests_waiting", "gauge", "Requests that wait.", "waiting")
    text = "Requests that have arrived."
    yield _per_node(nodes, "headrace_requests_submitted", "counter", text, "submitted")
    outcomes: list[Sample] = []
    for name, node in nodes.items():
        counts = {"ok": node["ok"]}
        for code, count in node["failed"].items():
            known = bounded(code)
            counts[known] = counts.get(known, 0) + count
        outcomes += [({"node": name, "outcome": code}, count) for code, count in counts.items()]
    yield (
        "headrace_requests",
        "counter",
        "Requests by outcome: ok, or the code of the error.",
        outcomes,
    )
    yield _per_node(nodes, "headrace_batches", "counter", "Batches that have run.", "batches")
    reasons: list[Sample] = [
        ({"node": name, "reason": reason}, count)
        for name, node in nodes.items()
        for reason, count in node["reasons"].items()
    ]
    yield "headrace_batch_reasons", "counter", "Batches by why they were formed.", reasons
    text = "How long requests waited in the queue (sampled)."
    yield _quantiles(nodes, "headrace_queue_wait_seconds", text, "queue_ms")
    text = "How long a batch runs (sampled)."
    yield _quantiles(nodes, "headrace_batch_duration_seconds", text, "forward_ms")
    yield from _instances(nodes)
    if (times := stats.get("probes", {}).get("ElementTimes")) is not None:
        yield from _elements(times.get("nodes", {}))
    queues = stats.get("queues", {})
    for key, kind, text in (
        ("waiting", "gauge", "Items that wait in a queue that has a name."),
        ("dropped", "counter", "Items that such a queue has dropped."),
    ):
        if queues:
            rows: list[Sample] = [({"queue": name}, queue[key]) for name, queue in queues.items()]
            yield f"headrace_named_queue_{key}", kind, text, rows
    probes = stats.get("probes", {})
    if probes:
        errors: dict[str, float] = {}  # several probes may have one name
        for name, probe in probes.items():
            short = name.partition("(")[0]
            errors[short] = errors.get(short, 0) + probe["errors"]
        rows = [({"probe": name}, count) for name, count in errors.items()]
        yield "headrace_probe_errors", "counter", "Errors of probes.", rows


def _per_node(nodes: Mapping[str, Any], name: str, kind: str, text: str, key: str) -> Table:
    return name, kind, text, [({"node": node}, row[key]) for node, row in nodes.items()]


def _quantiles(nodes: Mapping[str, Any], name: str, text: str, key: str) -> Table:
    rows: list[Sample] = []
    for node, row in nodes.items():
        for part, quantile in (("p50", "0.5"), ("p90", "0.9"), ("p99", "0.99")):
            rows.append(({"node": node, "quantile": quantile}, row[key][part] / 1000))
    return name, "summary", text, rows


def _instances(nodes: Mapping[str, Any]) -> Iterator[Table]:
    for key, name, kind, text in (
        ("alive", "headrace_instance_up", "gauge", "Whether the instance can run a batch."),
        ("busy", "headrace_instance_busy", "gauge", "Whether it runs one now."),
        ("busy_s", "headrace_instance_busy_seconds", "counter", "How long it has run batches."),
        ("batches", "headrace_instance_batches", "counter", "Batches that it has begun."),
        ("errors", "headrace_instance_errors", "counter", "Requests that failed in it."),
    ):
        rows: list[Sample] = []
        for node, statistics in nodes.items():
            for instance in statistics["instances"]:
                labels = {
                    "node": node,
                    "instance": str(instance["index"]),
                    "device": instance["device"] or "",
                }
                rows.append((labels, float(instance[key])))
        yield name, kind, text, rows


def _elements(nodes: Mapping[str, Any]) -> Iterator[Table]:
    for key, name in (("mean", "mean"), ("p99", "p99")):
        rows: list[Sample] = [
            ({"node": node, "element": path}, times[key] / 1000)
            for node, paths in nodes.items()
            for path, times in paths.items()
        ]
        text = f"The {name} of how long an element runs (with the probe ElementTimes)."
        yield f"headrace_element_{key}_seconds", "gauge", text, rows
