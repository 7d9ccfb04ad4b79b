"""Histograms of how long requests take and wait, counted exactly, request by request.

The summaries in ``stats()`` are sampled, and those of several processes cannot be summed. Histograms can.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["BOUNDS_S", "Histograms"]

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds in seconds where none are given: 1 ms to 10 s, as the clients of Prometheus have them from 5 ms on."""

_FRESH = 4096
"""How many durations lie unsorted before a request sorts them into the buckets."""

_FAMILIES = {
    "headrace_request_duration_seconds": "How long a request took at a node, from its arrival to its outcome.",
    "headrace_queue_duration_seconds": "How long a request that ran waited at a node before.",
}
_REQUEST, _QUEUE = _FAMILIES


class Histograms:
    """Counts durations by node in buckets.

    A duration is noted in one step of the interpreter, and sorted into its bucket later, by whoever finds that nobody else
    does so. So no thread waits for another one here, and a signal handler may note a duration in the midst of it.

    Args:
        bounds_s: The upper bounds of the buckets in seconds, ascending.
        nodes: The nodes, so that one without requests is shown as well.
    """

    def __init__(self, bounds_s: Sequence[float], nodes: Sequence[str] = ()) -> None:
        self._bounds_s = bounds_s
        self._fresh: deque[tuple[str, str, float]] = deque()
        self._sorting = threading.Lock()
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._sums_s: dict[tuple[str, str], float] = {}
        self.show(nodes)

    def show(self, nodes: Sequence[str]) -> None:
        """Show these nodes, with or without requests."""
        for key in ((family, node) for family in _FAMILIES for node in nodes):
            self._counts.setdefault(key, [0] * (len(self._bounds_s) + 1))
            self._sums_s.setdefault(key, 0.0)

    def request_done(
        self, node: str, _request: Any, started: float, ended: float, _error: Any
    ) -> None:
        """Count a request that has its outcome; a hook of probes."""
        self._note((_REQUEST, node, ended - started))

    def batch_ran(self, record: Any) -> None:
        """Count the waits of the requests of a batch; a hook of probes."""
        for request in record.requests:
            self._note((_QUEUE, record.node, record.started - request.arrival))

    def _note(self, duration: tuple[str, str, float]) -> None:
        self._fresh.append(duration)
        if len(self._fresh) > _FRESH and self._sorting.acquire(blocking=False):
            try:
                self._sort()
            finally:
                self._sorting.release()

    def _sort(self) -> None:
        for _ in range(len(self._fresh)):
            family, node, seconds = self._fresh.popleft()
            self.show((node,))
            self._counts[family, node][bisect_left(self._bounds_s, seconds)] += 1
            self._sums_s[family, node] += max(0.0, seconds)

    def families(self, metric: Any) -> Iterator[Any]:
        """Return both histograms as families of prometheus-client.

        Args:
            metric: ``prometheus_client.Metric``.
        """
        with self._sorting:
            self._sort()
            known = [(*key, [*counts], self._sums_s[key]) for key, counts in self._counts.items()]
        for name, text in _FAMILIES.items():
            family = metric(name, text, "histogram")
            for _, node, counts, sum_s in (row for row in known if row[0] == name):
                below = 0
                for bound, count in zip([*map(str, self._bounds_s), "+Inf"], counts, strict=True):
                    below += count
                    family.add_sample(f"{name}_bucket", {"node": node, "le": bound}, below)
                family.add_sample(f"{name}_count", {"node": node}, below)
                family.add_sample(f"{name}_sum", {"node": node}, sum_s)
            if family.samples:
                yield family
