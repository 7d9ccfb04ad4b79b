"""One instance of a node: its range, its holder and its counts."""

from __future__ import annotations

import time
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._run.contract.checked import Liveness, as_int
from headrace._run.records.statistics import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._run.batches.events import Events
    from headrace._run.contract.checked import Checked, Outcomes
    from headrace._run.contract.settings import Limits
    from headrace._run.requests.entry import Entry
    from headrace._run.steps.threads import OwnThread


SAMPLE_BELOW_S = 1e-3
"""Of a backend that takes less, only a sample of its batches is timed."""

FAST_S = 100e-6
"""What a batch is taken to last before one has run."""

LONG_S = 500e-6
"""After a batch that takes more, a worker waits a moment for the callers that come again."""

SAMPLED = 15
"""Mask for the counter of batches: one in 16 is timed where they are fast."""


class Instance(Tally):
    """An instance as its node holds it. To policies it is a `headrace.policies.InstanceView`.

    What runs a batch and what measures it are in one object, as each batch needs nearly all of it.

    Attributes:
        index, min, max, device: See `headrace.policies.InstanceView`.
        backend: The backend.
        run: Runs a batch in the context of the instance, whose context variables no caller shares.
        thread: The thread that must run the instance, or None when any may.
        holder: Who has the instance: the request of a caller that runs it alone, else the `Work`
            or whoever claimed it. None while it is free.
        ident: Identifier of the thread that runs the instance. 0 while none does.
        entries: The entries of the batch that runs, None for a caller's own single request.
        full: The greatest weight of a batch, of those that the node allows. None for no bound.
        reason: Why the batch that runs was formed.
        mask: A batch is timed when its number and the mask have no bit in common.
        sampling: The mask while batches are fast. 0 where a subscriber is told of every batch.
        mean_s: Moving average of the duration of a batch, in seconds.
        least_s: About the least of the last hundred durations: what the backend takes without
            waiting for the interpreter lock. 0 at first.
        busy_s: How long batches have run, in seconds. One that is timed stands for those that
            are not.
        batch_end: The `BatchEnd` of its backend, before which the device works. None for none.
        since: When the instance was made, on the clock of `time.perf_counter`.
        limit: The backend whose own range sets ``max``, and that max. None where the node's keys
            set it.
        limits: The keys under which its batches are formed and filled up. Set by its node.
        events: Who is told of its batches. Set by its node.
        liveness: Tells whether the backend is lost, or what it computes with is away.
        away: Whether the node keeps it from the free ones until what is away is back.
        wide: See `headrace.policies.InstanceView`.
        returns_to: Where it is while nobody has it: the free instances of the node. A wide one is
            aside while another runs.
    """

    returns_to: list[Instance]

    def __init__(
        self,
        index: int,
        backend: Checked,
        *,
        least: int = 1,
        most: int | None = None,
        device: str | None = None,
        thread: OwnThread | None = None,
        batch_end: Any = None,
    ) -> None:
        super().__init__()
        self.index, self.backend, self.batch_end = index, backend, batch_end
        # Here a batch enters the instance, whichever thread brings it.
        enter: Callable[..., Outcomes] = Context().run
        self.run: Callable[..., Outcomes] = partial(enter, backend.__call__)
        self.min, self.max = least, most
        self.device, self.thread = device, thread
        self.holder: object = None
        self.ident = 0
        self.entries: list[Entry] | None = None
        self.reason = "idle"
        self.mask, self.sampling = 0, SAMPLED
        self.mean_s, self.least_s, self.busy_s = FAST_S, 0.0, 0.0
        self.since = time.perf_counter()
        self.limit: tuple[str, int] | None = None
        self.limits: Limits
        self.events: Events
        self.full: int | None = None
        self.liveness = backend._liveness or Liveness()
        self.liveness.entries = lambda: self.entries or ()
        self.liveness.outermost = backend
        self.away = self.wide = False

    @property
    def busy(self) -> bool:
        """Whether the instance has a holder."""
        return self.holder is not None

    @property
    def running_weight(self) -> int:
        """The weight of the batch that runs, 0 while none does."""
        holder, entries = self.holder, self.entries
        if entries is not None:
            return sum([entry.weight for entry in entries])
        weight = as_int(dict.get(holder, "request_size")) if isinstance(holder, dict) else 0
        return 1 if weight is None else weight

    @property
    def living(self) -> bool:
        """Whether it can run batches: neither its backend nor its own thread is lost."""
        return not self.liveness.lost and (self.thread is None or self.thread.alive)

    @property
    def serves(self) -> bool:
        """Whether the instance is given batches: it is not lost, and does not pause."""
        return not (self.liveness.lost or self.liveness.pauses)

    @property
    def ready(self) -> bool:
        """Whether the instance can run batches, and all that it computes with is there."""
        return self.living and not self.liveness.parts_away

    def begin(self, holder: object, entries: list[Entry], now: float, reason: str) -> None:
        """Begin a batch on this instance, which was claimed.

        `ShortCut.call` does the same for a request without entry, and `Node.give_back` ends it.

        Args:
            holder: Who has the instance from now on.
            entries: The batch.
            now: The time, on the clock of the node.
            reason: Why the batch was formed.
        """
        self.holder, self.entries = holder, entries
        weight, timed = 0, not (self.batches + 1) & self.mask
        for entry in entries:
            weight += entry.weight
            entry.cut = now
            if timed:
                since = entry.arrival if entry.held is None else entry.held.since
                self.waited.add((now - since) * 1000)
        self.reason = reason
        for cut in self.events.cut:
            cut(self, len(entries), weight, reason)

    def note_duration(self, duration_s: float) -> None:
        """Take note of the duration of one batch."""
        self.forward.add(duration_s * 1000)
        before, mean_s, least_s = self.mean_s, duration_s, duration_s
        if self.busy_s:
            least_s = min(duration_s, 1.02 * self.least_s)
            # The bound on one duration: the thread may have waited for a processor meanwhile, which
            # says nothing about the backend and would make it look slow for many batches.
            mean_s = 0.75 * before + 0.25 * min(duration_s, 4 * before)
        self.busy_s += duration_s * (self.mask + 1)
        self.mean_s, self.least_s = mean_s, least_s
        self.mask = self.sampling if least_s < SAMPLE_BELOW_S else 0

    def statistics(self) -> dict[str, Any]:
        """Return what ``stats()`` shows of this instance."""
        age_s = max(time.perf_counter() - self.since, 1e-9)
        return {
            "index": self.index,
            "device": self.device,
            "wide": self.wide,
            "busy": self.busy,
            "batches": self.batches,
            "errors": sum(self.failures.values()),
            "alive": self.living,
            "busy_s": round(self.busy_s, 6),
            "utilisation": round(min(1.0, self.busy_s / age_s), 4),
        }
