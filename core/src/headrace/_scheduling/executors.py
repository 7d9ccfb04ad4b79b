"""Who runs batches: callers that wait, and runner threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node

__all__ = ["Caller", "CallerOfGroups", "Runner", "Work"]


class Work(NamedTuple):
    """A batch that was cut, with the instance that was claimed for it."""

    instance: Instance
    entries: list[Entry]


_kept = threading.local()


def _signal_of_this_thread() -> Signal:
    """Give the signal that the calling thread keeps to sleep on, whatever it waits for."""
    signal: Signal | None = getattr(_kept, "signal", None)
    _kept.signal = None  # a wait inside the wait has a signal of its own
    return signal or Signal()


class Caller:
    """A thread that waits for the outcome of its own requests and may run batches meanwhile.

    Attributes:
        ident: Identifier of the thread.
        runs: Whether it may run batches: not with a deadline.
        pending: How many of its requests have no outcome yet.
        parked: Whether it sleeps, so that work may be given to it.
        nudged: Whether it was woken to look for a free instance itself.
        work: Work given to it while it slept.
        wake_at: When it is to look at the line again, None for never; it is its own timer.
        node: Where it waits.
        foreign_until: End of the time it may spend on foreign batches; None before the first.
        signal: Wakes it; a signal that comes late wakes the thread from its next sleep, where it
            looks and sleeps on.

    All but ``ident`` and ``runs`` are changed under the lock of the node.
    """

    __slots__ = (
        "foreign_until",
        "ident",
        "node",
        "nudged",
        "parked",
        "pending",
        "runs",
        "signal",
        "wake_at",
        "work",
    )

    node: Node

    def __init__(self, ident: int, *, runs: bool = True, pending: int = 0) -> None:
        self.ident = ident
        self.runs = runs
        self.pending = pending
        self.parked = False
        self.nudged = False
        self.work: Work | None = None
        self.wake_at: float | None = None
        self.foreign_until: float | None = None
        self.signal = _signal_of_this_thread()

    def places(self) -> tuple[tuple[Node, object], ...]:
        """Give where it sleeps; see `headrace._scheduling.circles`."""
        asleep = self.parked and self.pending and self.work is None
        return ((self.node, self),) if asleep else ()

    def end(self) -> None:
        """Keep the signal for the next time that this thread waits."""
        _kept.signal = self.signal

    @property
    def done(self) -> bool:
        """Whether it may go without looking again: all is settled, and nothing was left to it."""
        return (
            not self.pending
            and not self.parked
            and self.work is None
            and self.wake_at is None
            and not self.nudged
        )

    def has_all_in(self, work: Work) -> bool:
        """Tell whether a batch is all that it waits for, and nothing of others."""
        if len(work.entries) != self.pending:
            return False
        return all(entry.owner is self for entry in work.entries)

    def finished(self, entry: Entry) -> None:
        """Do nothing: a caller counts its outcomes under the lock of the node."""


class CallerOfGroups(Caller):
    """A caller some of whose requests are of no use any more when one of them has failed.

    Attributes:
        groups: Per entry, those that stand and fall together with it.
    """

    __slots__ = ("groups",)

    def __init__(
        self, ident: int, groups: Sequence[list[Entry]], *, runs: bool, pending: int
    ) -> None:
        super().__init__(ident, runs=runs, pending=pending)
        self.groups = {entry: own for group in groups for own in [list(group)] for entry in own}


class Runner:
    """A daemon thread that runs batches for those who cannot.

    Attributes:
        ident: Identifier of the thread; 0 until it runs.
        work: Work that it was given and has not taken up.
        stopped: Whether it is to end.
        signal: Wakes it.

    Changed under the lock of the node.
    """

    __slots__ = ("ident", "signal", "stopped", "work")

    def __init__(self) -> None:
        self.ident = 0
        self.work: Work | None = None
        self.stopped = False
        self.signal = Signal()
