"""What is counted of the requests and batches of a node, and what ``stats()`` shows of it."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

__all__ = ["Counts", "Timings", "summary"]

_STEP = 1.1
_BOUNDS_MS = tuple(0.0001 * _STEP**i for i in range(220))
"""Upper bounds of the buckets: 0.1 µs to about 100 s, each 10 per cent above the last."""


class Timings:
    """A histogram of durations in milliseconds."""

    __slots__ = ("_counts", "count", "total_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_MS) + 1)
        self.count = 0
        self.total_ms = 0.0

    def add(self, duration_ms: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(_BOUNDS_MS, duration_ms)] += 1
        self.count += 1
        self.total_ms += duration_ms

    def merge(self, other: Timings) -> None:
        """Count all that ``other`` has counted."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self.total_ms += other.total_ms

    def percentile(self, share: float) -> float:
        """Give the duration in ms that ``share`` of all do not exceed, 0.0 when there is none."""
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                upper = _BOUNDS_MS[min(index, len(_BOUNDS_MS) - 1)]
                return 0.0 if index == 0 else upper / (1 + (_STEP - 1) / 2)
        return 0.0

    def summary(self) -> dict[str, float]:
        """Give mean, p50, p90 and p99 in milliseconds, rounded to 0.1 µs."""
        mean = self.total_ms / self.count if self.count else 0.0
        return {
            "mean": round(mean, 4),
            "p50": round(self.percentile(0.50), 4),
            "p90": round(self.percentile(0.90), 4),
            "p99": round(self.percentile(0.99), 4),
        }


class Counts:
    """What is counted of one instance, or of several together.

    Attributes:
        unqueued: How many single requests were run by their own callers, past the queue.
        failures: How many requests failed, by code.
        sizes: How many batches of each number of requests were cut from the queue.
        forward, waited: Durations of batches, and of the wait of the requests in them.
    """

    __slots__ = ("failures", "forward", "sizes", "unqueued", "waited")

    def __init__(self) -> None:
        self.unqueued = 0
        self.failures: dict[str, int] = {}
        self.sizes: dict[int, int] = {}
        self.forward = Timings()
        self.waited = Timings()

    def absorb(self, other: Counts, *, unqueued: int | None = None) -> None:
        """Count all that ``other`` has counted; ``unqueued`` stands for that of a moment ago."""
        self.unqueued += other.unqueued if unqueued is None else unqueued
        self.forward.merge(other.forward)
        self.waited.merge(other.waited)
        add_counts(self.failures, other.failures)
        add_counts(self.sizes, other.sizes)


def add_counts(total: dict[Any, int], counts: dict[Any, int]) -> None:
    """Count in ``total`` all that is in ``counts``."""
    # A copy, in one step: the main thread counts its failures without the lock.
    for key, count in counts.copy().items():
        total[key] = total.get(key, 0) + count


def summary(total: Counts, *, submitted: int, waiting: int, running: int) -> dict[str, Any]:
    """Give what ``stats()`` shows of a node, but for its instances.

    Keys of the histogram are texts, so that the whole is the same after a way through JSON.

    Args:
        total: The counts of all instances, with the failures of requests that reached none.
        submitted: How many requests have come.
        waiting: How many of them wait.
        running: How many of them run.
    """
    failed, sizes = total.failures, total.sizes
    if total.unqueued:
        add_counts(sizes, {1: total.unqueued})
    batches = sum(sizes.values())
    items = sum(size * count for size, count in sizes.items())
    return {
        "waiting": waiting,
        "submitted": submitted,
        "ok": submitted - sum(failed.values()) - waiting - running,
        "failed": failed,
        "batches": batches,
        "batch_size": {
            "mean": round(items / batches, 4) if batches else 0.0,
            "histogram": {str(size): sizes[size] for size in sorted(sizes) if sizes[size]},
        },
        "queue_ms": total.waited.summary(),
        "forward_ms": total.forward.summary(),
    }
