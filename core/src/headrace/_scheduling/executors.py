"""Who runs batches: callers that wait, and runner threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance

__all__ = ["Caller", "Runner", "Work", "in_main_thread"]


class Work(NamedTuple):
    """A batch that was cut, with the instance that was claimed for it."""

    instance: Instance
    entries: list[Entry]


def in_main_thread(ident: int) -> bool:
    """Tell whether ``ident`` is the main thread, where Ctrl-C lands."""
    return ident == threading.main_thread().ident


class Caller:
    """A thread that waits for the outcome of its own requests and may run batches meanwhile.

    Attributes:
        ident: Identifier of the thread.
        runs: Whether it may run batches: not with a deadline.
        main: Whether it is the main thread, which runs batches of its own requests only.
        pending: How many of its requests have no outcome yet.
        parked: Whether it sleeps, so that work may be given to it. Under the scheduler's lock.
        work: Work given to it while it slept. Under the scheduler's lock.
        foreign_until: End of the time it may spend on foreign batches; None before the first.
    """

    __slots__ = ("foreign_until", "ident", "main", "parked", "pending", "runs", "signal", "work")

    has_callbacks = False

    def __init__(self, ident: int, *, runs: bool = True, pending: int = 0) -> None:
        self.ident = ident
        self.runs = runs
        self.main = in_main_thread(ident)
        self.pending = pending
        self.parked = False
        self.work: Work | None = None
        self.foreign_until: float | None = None
        self.signal = Signal()

    def finished(self, entry: Entry) -> None:
        """Nothing to do: a caller counts its outcomes under the scheduler's lock."""


class Runner:
    """A daemon thread that runs batches for those who cannot.

    Attributes:
        signal: Wakes it.
        work: Work given to it while it slept. Under the scheduler's lock.
        stopped: Whether it is to end. Under the scheduler's lock.
    """

    __slots__ = ("signal", "stopped", "work")

    def __init__(self, work: Work) -> None:
        self.work: Work | None = work
        self.stopped = False
        self.signal = Signal()
