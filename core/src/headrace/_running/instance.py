"""One instance of a node: its range, its holder and its counts."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._checked import Liveness

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import Backend
    from headrace._checked import Outcomes
    from headrace._running.entry import Entry
    from headrace._running.threads import OwnThread, Signal


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

    def merge(self, other: Timings) -> None:
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


class Counts:
    """The counts of one instance, or of several together.

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
        self.sizes: dict[int, int] = defaultdict(int)
        self.forward = Timings()
        self.waited = Timings()

    def failed(self, code: str) -> None:
        """Count one request that failed."""
        self.failures[code] = self.failures.get(code, 0) + 1

    def absorb(self, other: Counts, *, unqueued: int | None = None) -> None:
        """Add the counts of ``other``; ``unqueued``, where given, is its count as read a moment ago."""
        self.unqueued += other.unqueued if unqueued is None else unqueued
        self.forward.merge(other.forward)
        self.waited.merge(other.waited)
        add_counts(self.failures, other.failures)
        add_counts(self.sizes, other.sizes)


def add_counts(total: dict[Any, int], counts: dict[Any, int]) -> None:
    """Add ``counts`` to ``total``."""
    # The copy is made in one step: in a destructor within a section `stats()` reads what that section changes.
    for key, count in counts.copy().items():
        total[key] = total.get(key, 0) + count


def summary(total: Counts, *, submitted: int, waiting: int, running: int) -> dict[str, Any]:
    """Return what ``stats()`` shows of a node, except its instances.

    Keys of the histogram are texts, so that the dict is the same after it was written to JSON and read.

    Args:
        total: The counts of the node and of all its instances.
        submitted: How many requests have come.
        waiting: How many of the requests wait.
        running: How many of the requests run.
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
        "cancelled": failed.get("cancelled", 0),
        "batches": batches,
        "batch_size": {
            "mean": items / batches if batches else 0.0,
            "histogram": {str(size): sizes[size] for size in sorted(sizes) if sizes[size]},
        },
        "queue_ms": total.waited.summary(),
        "forward_ms": total.forward.summary(),
    }


SAMPLE_BELOW_S = 100e-6
"""A backend whose mean forward takes less is fast: only a sample of its batches is timed, and a caller that has its answer
runs batches of others (`LEADS_S`), since waking another thread costs about as much."""

LEADS_S = 500e-6
"""How long, in all, a caller that has its answer runs batches of others."""

SAMPLED = 15
"""Mask for the counter of batches, or of the runs of an element: one in 16 is timed where they are fast."""


@dataclass(frozen=True)
class Limits:
    """The queue keys of a node.

    Attributes:
        queue_size: How many requests may wait.
        queue_full: What becomes of a request that finds it full; see `headrace._running.queue.QueueFull`.
        timeout_ms: Longest time from arrival to the end, None for no limit.
        batching_timeout_ms: How long the oldest request waits for company.
        batch_sizes: The weights a batch may have; empty for all.
        pad: Whether a batch that is too small is filled up with copies of its items, the last one first.
        parts_waiting: How many parts of the answer of a request may wait for who reads them.
        deadlock_after_s: How long a request waits until circles of calls are looked for; 0 for never.
        shortcut: Whether a caller that finds the node idle may skip the queue.
    """

    queue_size: int = 1024
    queue_full: str = "wait"
    timeout_ms: float | None = None
    batching_timeout_ms: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    pad: bool = False
    parts_waiting: int = 1024
    deadlock_after_s: float = 5.0
    shortcut: bool = True


class Instance(Counts):
    """An instance as the scheduler holds it; to policies it is a `headrace.policies.InstanceView`.

    Attributes:
        index, min, max, device: See `headrace.policies.InstanceView`.
        backend: The backend.
        run: Runs a batch in the context of the instance, whose context variables no caller shares.
        thread: The thread that must run the instance, or None when any may.
        holder: Whoever claimed the instance (any object); None while the instance is free.
        ident: Identifier of the thread that runs the instance; 0 while none does.
        entries: The entries of the batch that runs, None for a caller's own single request.
        running_weight: Weight of the batch that runs.
        queued: How many batches were cut from the queue; the other counts are those of `Counts`.
        mask: A batch is timed when its number and the mask have no bit in common.
        sampling: The mask while batches are fast; 0 where probes hear of every batch.
        mean_s: Moving average of the duration of a batch, in seconds.
        busy_s: How long batches have run, in seconds; a batch that is timed stands for those that are not.
        since: When the instance was made, on the clock of `time.perf_counter`.
        limit: The backend whose own range sets ``max``, and that max; None where the node's keys set it.
        limits: The keys under which its batches are cut and filled up; set by its node.
        liveness: Tells whether the backend is lost, or what it computes with is away.
        away: Whether the node keeps the instance from the free ones until what is away is back.
        adopted: The entry of a request that its caller runs here, once a backend has asked something for it; else None.
        retired: Wakes the thread that closes the instance after its last batch; None while in service.
    """

    def __init__(
        self,
        index: int,
        backend: Backend,
        *,
        least: int = 1,
        most: int | None = None,
        device: str | None = None,
        thread: OwnThread | None = None,
    ) -> None:
        super().__init__()
        self.index = index
        self.backend = backend
        self.run_by(backend)
        self.min = least
        self.max = most
        self.device = device
        self.thread = thread
        self.holder: object = None
        self.ident = 0
        self.entries: list[Entry] | None = None
        self.running_weight = 0
        self.queued = 0
        self.mask = 0
        self.sampling = SAMPLED
        self.mean_s = SAMPLE_BELOW_S
        self.busy_s = 0.0
        self.since = time.perf_counter()
        self.limit: tuple[str, int] | None = None
        self.limits: Limits
        self.liveness = backend._liveness or Liveness()
        self.liveness.entries = lambda: self.entries or ()
        self.away = False
        self.adopted: Entry | None = None
        self.retired: Signal | None = None
        self.over = False

    def run_by(self, backend: Backend) -> None:
        """Let ``backend`` run the batches: here a batch enters the instance, whichever thread brings it."""
        enter: Any = Context().run
        self.run: Callable[..., Outcomes] = partial(enter, backend.__call__)

    @property
    def busy(self) -> bool:
        """Whether the instance has a holder."""
        return self.holder is not None

    @property
    def batches(self) -> int:
        """How many batches have been started."""
        return self.unqueued + self.queued

    @property
    def living(self) -> bool:
        """Whether the instance can run batches: its backend is not lost, and its own thread, if any, lives."""
        return not self.liveness.lost and (self.thread is None or self.thread.alive)

    @property
    def serves(self) -> bool:
        """Whether the instance is given batches: it is not lost, and does not pause."""
        return not (self.liveness.lost or self.liveness.pauses)

    @property
    def ready(self) -> bool:
        """Whether the instance can run batches, and all that it computes with is there."""
        return self.living and not self.liveness.parts_away

    def timed(self, duration_s: float) -> None:
        """Take note of the duration of one batch."""
        self.forward.add(duration_s * 1000)
        before, mean_s = self.mean_s, duration_s
        if self.busy_s:
            # The bound on one duration: the thread may have waited for a processor meanwhile, which says
            # nothing about the backend and would make it look slow for many batches.
            mean_s = 0.75 * before + 0.25 * min(duration_s, 4 * before)
        self.busy_s += duration_s * (self.mask + 1)
        self.mean_s = mean_s
        self.mask = self.sampling if mean_s < SAMPLE_BELOW_S else 0

    def utilisation(self, now: float) -> float:
        """Give the share of the time since the instance was made that its batches have taken."""
        return round(min(1.0, self.busy_s / max(now - self.since, 1e-9)), 4)

    def statistics(self) -> dict[str, Any]:
        """Return what ``stats()`` shows of this instance."""
        return {
            "index": self.index,
            "device": self.device,
            "busy": self.busy,
            "batches": self.batches,
            "errors": sum(self.failures.values()),
            "alive": self.living,
            "busy_s": round(self.busy_s, 6),
            "utilisation": self.utilisation(time.perf_counter()),
        }
