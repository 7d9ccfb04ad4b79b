"""What `stats()` shows of a node: counts, and histograms of times. All that is counted is here."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from headrace._run.requests.entry import RUNNING

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
        """Return the duration in ms that a ``share`` of all durations do not exceed, else 0.0."""
        rank = share * self.count
        passed = 0
        for index, count in enumerate(self._counts):
            passed += count
            if count and passed >= rank:
                upper = _BOUNDS_MS[min(index, len(_BOUNDS_MS) - 1)]
                return 0.0 if index == 0 else upper / (1 + (_STEP - 1) / 2)
        return 0.0

    def summary(self) -> dict[str, float]:
        """Return mean, p50, p90 and p99 in milliseconds, rounded to 0.1 µs."""
        mean = self.total_ms / max(self.count, 1)
        shares = {f"p{per_cent}": self.percentile(per_cent / 100) for per_cent in (50, 90, 99)}
        return {key: round(value, 4) for key, value in {"mean": mean, **shares}.items()}


ALONE = ""
"""The reason of a batch that its caller has run past the queue. `stats()` shows it as ``idle``."""


class Tally:
    """The counts of one instance, or of several together.

    What `stats()` is to count besides is one more slot: a number, a dict of numbers or `Timings`.
    It is made in ``__init__``, counted in `on_cut` or `count_failure`, and shown by `statistics`.
    The event ``cut`` comes for every batch, whoever runs it (`Events`).

    Attributes:
        failures: How many requests failed, by code.
        sizes: How many batches there were of each number of requests.
        reasons: How many batches were formed for each reason.
        forward, waited: Durations of batches, and of the wait of the requests in them.
        batches: How many batches have begun, of one instance.
    """

    __slots__ = ("batches", "failures", "forward", "reasons", "sizes", "waited")

    def __init__(self) -> None:
        self.batches = 0
        self.failures: dict[str, int] = defaultdict(int)
        self.sizes: dict[int, int] = defaultdict(int)
        self.reasons: dict[str, int] = defaultdict(int)
        self.forward = Timings()
        self.waited = Timings()

    def on_cut(self, size: int, weight: int, reason: str, times: int = 1) -> None:
        """Count batches that begin. No step or destructor comes in between.

        Args:
            size: How many requests are in each.
            weight: The sum of their weights.
            reason: Why it was formed. `ALONE` where its caller runs it.
            times: How many batches this tells of. Most calls on the short cut only raise
                ``batches``. They count here when `stats()` is read, as requests of weight 1.
        """
        self.sizes[size] += times
        self.reasons[reason] += times
        if reason != ALONE:  # else `ShortCut.call` has counted it
            self.batches += times

    def count_failure(self, code: str) -> None:
        """Count one request that failed."""
        self.failures[code] += 1

    def add(self, other: Tally) -> None:
        """Add the counts of ``other``, whatever is counted."""
        for name in Tally.__slots__:
            total, counts = getattr(self, name), getattr(other, name)
            if isinstance(total, Timings):
                total.add_all(counts)
            elif isinstance(total, int):
                setattr(self, name, total + counts)
            else:
                # The copy is made in one step: a destructor within a step may call `stats()`.
                for key, count in counts.copy().items():
                    total[key] += count


def statistics(node: Node) -> dict[str, Any]:
    """Return what ``stats()`` shows of a node: the counts are exact, the times sampled.

    Keys of the histogram are texts, so that the dict is the same after it was written to JSON.
    """
    total, begun, running = Tally(), 0, 0
    total.add(node.counts)
    for instance in node.instances:
        total.add(instance)  # before `batches`, of which the short cut tells later or never
        batches, holder = instance.batches, instance.holder  # in one step, as they are set
        begun += batches
        if holder is not None:
            entries = instance.entries
            running += 1 if entries is None else sum(entry.state == RUNNING for entry in entries)
    inbox = len(node.inbox)
    waiting = inbox + node.queue.count + len(node.room.outside) + len(node.pending.open)
    total.on_cut(1, 1, ALONE, begun - sum(total.sizes.values()))
    failed, sizes, reasons = dict(total.failures), total.sizes, total.reasons
    alone = reasons.pop(ALONE)
    reasons["idle"] += alone
    submitted = alone + node.entered + inbox
    return {
        "waiting": waiting,
        "submitted": submitted,
        "ok": submitted - sum(failed.values()) - waiting - running,
        "failed": failed,
        "cancelled": failed.get("cancelled", 0),
        "batches": begun,
        "reasons": {reason: reasons[reason] for reason in sorted(reasons) if reasons[reason]},
        "batch_size": {
            "mean": sum(size * count for size, count in sizes.items()) / max(begun, 1),
            "histogram": {str(size): sizes[size] for size in sorted(sizes) if sizes[size]},
        },
        "queue_ms": total.waited.summary(),
        "forward_ms": total.forward.summary(),
        "instances": [instance.statistics() for instance in node.instances],
    }
