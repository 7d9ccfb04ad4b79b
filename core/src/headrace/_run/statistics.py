"""What `stats()` shows of a node: counts, and histograms of times."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from headrace._run.entry import RUNNING

if TYPE_CHECKING:
    from headrace._run.node import Node

_STEP = 1.1
_BOUNDS_MS = tuple(0.0001 * _STEP**i for i in range(220))
"""Upper bounds of the buckets: 0.1 µs to about 100 s, each 10 per cent above the last."""


class Timings:
    """A histogram of durations in milliseconds."""

    __slots__ = ("_counts", "total_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_MS) + 1)
        self.total_ms = 0.0

    @property
    def count(self) -> int:
        """How many durations have been counted."""
        return sum(self._counts)

    def add(self, duration_ms: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(_BOUNDS_MS, duration_ms)] += 1
        self.total_ms += duration_ms

    def add_all(self, other: Timings) -> None:
        """Count all that ``other`` has counted."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self.total_ms += other.total_ms

    def percentile(self, share: float) -> float:
        """Return the duration in ms that a ``share`` of all durations do not exceed, 0.0 when there is none."""
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                upper = _BOUNDS_MS[min(index, len(_BOUNDS_MS) - 1)]
                return 0.0 if index == 0 else upper / (1 + (_STEP - 1) / 2)
        return 0.0

    def summary(self) -> dict[str, float]:
        """Return mean, p50, p90 and p99 in milliseconds, rounded to 0.1 µs."""
        mean = self.total_ms / max(self.count, 1)
        shares = {f"p{per_cent}": self.percentile(per_cent / 100) for per_cent in (50, 90, 99)}
        return {key: round(value, 4) for key, value in {"mean": mean, **shares}.items()}


class Tally:
    """The counts of one instance, or of several together.

    What `stats()` is to count besides is one more attribute here, counted in `Instance.begin` or where it happens.

    Attributes:
        failures: How many requests failed, by code.
        sizes: How many batches of each number of requests were formed from the queue.
        reasons: How many of these were formed for each reason but ``idle``, which are what is left: counted after ``sizes``, and read before.
        forward, waited: Durations of batches, and of the wait of the requests in them.
    """

    __slots__ = ("failures", "forward", "reasons", "sizes", "waited")

    def __init__(self) -> None:
        self.failures: dict[str, int] = defaultdict(int)
        self.sizes: dict[int, int] = defaultdict(int)
        self.reasons: dict[str, int] = defaultdict(int)
        self.forward = Timings()
        self.waited = Timings()

    def count_failure(self, code: str) -> None:
        """Count one request that failed."""
        self.failures[code] += 1

    def add(self, other: Tally) -> None:
        """Add the counts of ``other``, whatever is counted."""
        for name in Tally.__slots__:
            total, counts = getattr(self, name), getattr(other, name)
            if isinstance(total, Timings):
                total.add_all(counts)
                continue
            # The copy is made in one step: in a destructor within a section `stats()` reads what that section changes.
            for key, count in counts.copy().items():
                total[key] += count


def statistics(node: Node) -> dict[str, Any]:
    """Return what ``stats()`` shows of a node: the counts are exact, the times sampled.

    Keys of the histogram are texts, so that the dict is the same after it was written to JSON and read.
    """
    total, begun, running = Tally(), 0, 0
    total.add(node.counts)
    for instance in node.instances:
        batches, holder = instance.batches, instance.holder  # in one step, as they are set
        begun += batches
        total.add(instance)
        if holder is not None:
            entries = instance.entries
            running += 1 if entries is None else sum(entry.state == RUNNING for entry in entries)
    inbox = len(node.inbox)
    waiting = inbox + node.queue.count + len(node.room.outside) + len(node.pending.open)
    failed, sizes, reasons = dict(total.failures), total.sizes, total.reasons
    unqueued = begun - sum(sizes.values())  # requests that their callers ran
    submitted = unqueued + node.entered + inbox
    sizes[1] += unqueued
    reasons["idle"] = begun - sum(reasons.values())
    items = sum(size * count for size, count in sizes.items())
    return {
        "waiting": waiting,
        "submitted": submitted,
        "ok": submitted - sum(failed.values()) - waiting - running,
        "failed": failed,
        "cancelled": failed.get("cancelled", 0),
        "batches": begun,
        "reasons": {reason: reasons[reason] for reason in sorted(reasons) if reasons[reason]},
        "batch_size": {
            "mean": items / begun if begun else 0.0,
            "histogram": {str(size): sizes[size] for size in sorted(sizes) if sizes[size]},
        },
        "queue_ms": total.waited.summary(),
        "forward_ms": total.forward.summary(),
        "instances": [instance.statistics() for instance in node.instances],
    }
