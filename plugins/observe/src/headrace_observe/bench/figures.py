"""Figures from latencies: percentiles are exact, of all single latencies, and never of other percentiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["batch_sizes", "latency_histogram", "latency_ms", "percentile"]

_BINS_PER_DECADE = 10


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value such that at least ``percent`` % of the values are not greater (the nearest rank).

    Args:
        ordered: Values in ascending order, at least one.
        percent: From 0 to 100.

    Source:
        The nearest-rank method, R-1 of Hyndman and Fan, "Sample Quantiles in Statistical Packages".
    """
    rank = math.ceil(round(percent * len(ordered), 6) / 100)
    return ordered[max(1, rank) - 1]


def latency_ms(seconds: Iterable[float]) -> dict[str, float | None]:
    """Return ``mean``, ``p50``, ``p90``, ``p99`` and ``max`` in milliseconds; None each for no latency."""
    ordered = sorted(seconds)
    names = ("mean", "p50", "p90", "p99", "max")
    if not ordered:
        return dict.fromkeys(names)
    values = [math.fsum(ordered) / len(ordered)]
    values += [percentile(ordered, percent) for percent in (50, 90, 99, 100)]
    return {name: round(1000 * value, 4) for name, value in zip(names, values, strict=True)}


def latency_histogram(seconds: Iterable[float]) -> dict[str, list[float]]:
    """Count latencies in bins that grow by a tenth of a decade.

    Returns:
        ``{"edges_ms", "counts"}``: bin ``i`` counts the latencies of at least ``edges_ms[i]`` and less than
        ``edges_ms[i + 1]``, in milliseconds, without latencies both lists are empty.
    """
    counts: dict[int, int] = {}
    for value in seconds:
        place = math.floor(_BINS_PER_DECADE * math.log10(max(1000 * value, 1e-6)))
        counts[place] = counts.get(place, 0) + 1
    if not counts:
        return {"edges_ms": [], "counts": []}
    places = range(min(counts), max(counts) + 1)
    edges = [10 ** (place / _BINS_PER_DECADE) for place in (*places, places[-1] + 1)]
    return {
        "edges_ms": [float(f"{edge:.6g}") for edge in edges],
        "counts": [float(counts.get(place, 0)) for place in places],
    }


def batch_sizes(histogram: Mapping[int, int]) -> dict[str, Any]:
    """Return ``mean`` and ``histogram`` of counts by batch size, as ``stats()`` writes them."""
    batches = sum(histogram.values())
    total = sum(size * count for size, count in histogram.items())
    return {
        "mean": round(total / batches, 4) if batches else None,
        "histogram": {str(size): histogram[size] for size in sorted(histogram) if histogram[size]},
    }
