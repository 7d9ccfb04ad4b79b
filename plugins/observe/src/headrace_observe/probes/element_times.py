"""The probe ``ElementTimes``: how long each element of an expression runs, in ``stats()`` and in the metrics."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

__all__ = ["ElementTimes"]

_STEP = math.log(1.1)


class ElementTimes:
    """The probe that tells how long each element runs: ``stats()["probes"]["ElementTimes"]["nodes"]``.

    For each node and path of an element it has ``mean`` and ``p99`` in milliseconds, over all instances together.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], tuple[list[float], Counter[int]]] = {}

    def element_done(
        self, node: str, instance: int, element: str, size: int, started: float, ended: float
    ) -> None:
        """Count one run; a hook of probes."""
        total, buckets = self._times.setdefault((node, element), ([0.0], Counter()))
        ms = max(1000 * (ended - started), 1e-4)
        total[0] += ms
        buckets[math.ceil(math.log(ms) / _STEP)] += 1

    def statistics(self) -> dict[str, Any]:
        """Return mean and p99 by node and path."""
        table: dict[str, dict[str, dict[str, float]]] = {}
        for (node, path), (total, buckets) in self._times.copy().items():
            counts = buckets.copy()
            runs = max(1, sum(counts.values()))
            table.setdefault(node, {})[path] = {
                "mean": round(total[0] / runs, 4),
                "p99": round(_percentile(counts, 0.99 * runs), 4),
            }
        return {"nodes": table}


def _percentile(counts: Counter[int], rank: float) -> float:
    count = 0
    for bucket in sorted(counts):
        count += counts[bucket]
        if count >= rank:
            return math.exp(bucket * _STEP)
    return 0.0
