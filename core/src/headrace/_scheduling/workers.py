"""The threads that run batches: callers that wait, and the runners of a node."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace._scheduling.locks import Signal

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance

    Place: TypeAlias = tuple["Station", object]
    """A node, and the entry or the owner of entries that waits or runs there; None for neither yet."""

__all__ = ["Caller", "Runner", "Station", "Work", "Workers"]


class Station(Protocol):
    """A node, as far as `headrace._scheduling.cycles` looks at it.

    Attributes:
        name: Its name.
        instances: The instances in service.
        every: These, and those whose last batch has not ended.
    """

    name: str
    instances: list[Instance]
    every: list[Instance]


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


@dataclass(eq=False, slots=True)
class Caller:
    """A thread that waits for the outcome of its own requests and may run batches meanwhile.

    Attributes:
        ident: Identifier of the thread.
        runs: Whether it may run batches: not with a deadline.
        pending: How many of its requests have no outcome yet.
        parked: Whether it sleeps, so that work may be given to it.
        nudged: Whether it was woken to look for a free instance itself.
        work: Work given to it while it slept.
        wake_at: When it is to look at the queue again, None for never; it is its own timer.
        node: Where it waits.
        foreign_until: End of the time it may spend on foreign batches; None before the first.
        signal: Wakes it; a signal that comes late wakes the thread from its next sleep, where it
            looks and sleeps on.
        groups: Per entry those that stand and fall together with it: when one of them has failed, the
            others are of no use any more.

    All but ``ident`` and ``runs`` are changed under the lock of the node.
    """

    ident: int
    runs: bool = True
    pending: int = 0
    parked: bool = False
    nudged: bool = False
    work: Work | None = None
    wake_at: float | None = None
    node: Station | None = None
    foreign_until: float | None = None
    signal: Signal = field(default_factory=_signal_of_this_thread)
    groups: dict[Entry, list[Entry]] | None = None

    def places(self) -> tuple[Place, ...]:
        """Give where it sleeps; see `headrace._scheduling.cycles`."""
        if self.node is not None and self.parked and self.pending and self.work is None:
            return ((self.node, self),)
        return ()

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


@dataclass(eq=False, slots=True)
class Runner:
    """A daemon thread that runs batches for those who cannot.

    Attributes:
        ident: Identifier of the thread; 0 until it runs.
        work: Work that it was given and has not taken up.
        stopped: Whether it is to end.
        signal: Wakes it.

    Changed under the lock of the node.
    """

    ident: int = 0
    work: Work | None = None
    stopped: bool = False
    signal: Signal = field(default_factory=Signal)


class Workers:
    """The runners of a node: started at the first need, parked in between, one per instance at most.

    All but `__init__` is called under the lock of the node.

    Args:
        limit: See below.
        start: Starts the thread of a runner once the lock is left.

    Attributes:
        parked: The runners that sleep.
        limit: How many runners there may be: one per instance.
        backlog: Work for the next runner that has nothing to do. It is only used while as many
            runners live as there are instances; one of them then runs no batch and is about to
            look here.
    """

    def __init__(self, limit: int, start: Callable[[Runner], None]) -> None:
        self.parked: list[Runner] = []
        self.backlog: deque[Work] = deque()
        self.limit = limit
        self._start = start
        self._alive = 0

    def give(self, work: Work) -> None:
        """Let a runner run ``work``."""
        if self.parked:
            runner = self.parked.pop()
            runner.work = work
            work.instance.holder = runner
            runner.signal.wake()
        elif self._alive >= self.limit:
            work.instance.holder = self.backlog
            self.backlog.append(work)
        else:
            runner = Runner(work=work)
            work.instance.holder = runner
            self._alive += 1
            self._start(runner)

    def take_up(self, runner: Runner) -> Work | None:
        """Give a runner that has nothing to do what waits for it."""
        self.unpark(runner)  # it is still noted when a stale signal woke it
        work = runner.work
        runner.work = None
        if work is None and self.backlog:
            work = self.backlog.popleft()
            work.instance.holder = runner
        if work is not None:
            work.instance.ident = runner.ident
        return work

    def park(self, runner: Runner) -> None:
        """Take note that a runner goes to sleep."""
        self.parked.append(runner)

    def unpark(self, runner: Runner) -> None:
        """Take note that a runner is awake."""
        if runner in self.parked:
            self.parked.remove(runner)

    def leave(self, runner: Runner) -> None:
        """Take note that a runner ends."""
        runner.stopped = True
        self._alive -= 1

    @property
    def surplus(self) -> bool:
        """Whether there are more runners than instances."""
        return self._alive > self.limit

    def trim(self, limit: int) -> None:
        """Change the limit; runners above it end, those that sleep at once."""
        self.limit = limit
        while self.surplus and self.parked:
            self._end_one()

    def stop(self) -> None:
        """End the runners that sleep; the others end with their batch."""
        while self.parked:
            self._end_one()

    def _end_one(self) -> None:
        runner = self.parked.pop()
        self.leave(runner)
        runner.signal.wake()
