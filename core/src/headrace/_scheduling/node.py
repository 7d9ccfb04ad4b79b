"""What the parts of a node's scheduler share: the line, the instances, the open requests."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace._scheduling.elsewhere import Elsewhere
from headrace._scheduling.entry import DONE, NOBODY, OUTSIDE, QUEUED, Entry
from headrace._scheduling.errands import errands
from headrace._scheduling.executors import Caller, CallerOfGroups
from headrace._scheduling.instance import SWIFT_S
from headrace._scheduling.line import WaitingLine
from headrace._scheduling.reentrant import taking
from headrace._scheduling.statistics import Past
from headrace.errors import ClosedError, InstanceLostError, OverloadedError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.instance import Instance
    from headrace._scheduling.signal import Signal

__all__ = ["Limits", "Node", "Rack", "Racks", "new_racks", "own"]

_log = logging.getLogger("headrace.scheduling")

Rack = tuple["deque[Instance]"]
"""Free instances that a caller may take without the lock: they lie in the deque of this tuple, and
who takes one out of it has it."""

Racks = tuple[Rack, Rack]
"""The rack of swift backends, for all callers, and that of the others, for the main thread. They serve
one set of instances, and are never used again once others stand in their place."""


def new_racks() -> Racks:
    """Make racks on which nothing lies."""
    return (deque(),), (deque(),)


@dataclass(frozen=True)
class Limits:
    """The queue keys of a node.

    Attributes:
        queue_size: How many requests may wait.
        queue_full: ``"wait"``, ``"reject"`` or ``"shed_oldest"``.
        timeout_ms: Longest time from arrival to the end, None for no limit.
        batching_timeout_ms: How long the oldest request waits for company.
        batch_sizes: The weights a batch may have; empty for all.
        pad: Whether a batch that is too small is filled with copies of its last item.
        shortcut: Whether a caller that finds the node idle may skip the queue.
    """

    queue_size: int = 1024
    queue_full: str = "wait"
    timeout_ms: float | None = None
    batching_timeout_ms: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    pad: bool = False
    shortcut: bool = True


class Node:
    """The state of one node. All of it is read and changed under ``lock``.

    Attributes:
        name, limits, clock: See `Scheduler`.
        instances: The instances in service.
        retiring: Those taken out of service whose last batch has not ended.
        every: Both.
        past: The counts of instances that are gone.
        free: The instances in service that nobody holds, the one that rested longest first. Those
            on the racks are not among them until `collect` has been called.
        racks: Where they are while nobody waits.
        lays_out: Whether any may lie there.
        line: The requests that wait.
        outside: The requests that wait for room in the line, first come first served.
        elsewhere: Counts the requests that entered here and wait at other nodes.
        callers: The threads that wait for their requests here.
        entered: How many requests came in by the queue.
        failures: How many requests failed without reaching an instance, by code.
        refusing: Why newcomers are refused, None while they are not.
        dead: Whether what is open has been failed, too: nothing runs any more.
        retire: Called, without the lock, with each instance whose batch ends when all is dead.
        wake_at: When somebody will look at the line again, None for never.
        waker: The caller who will; None for the timer.
        min, max: Weights that some living instance takes.
        needs_result: Whether a request that ends without a ``result`` has failed.
        shed: Entries at other nodes whose requests make way here, until `shed_elsewhere` fails them.
        lost: Whether no instance lives.
        starts: Threads to start as soon as the lock is left.
        tells_callers: Whether callers that wait are told their outcome, as all other owners are; else
            `settle` takes note of it.
    """

    tells_callers = False

    def __init__(
        self, name: str, instances: Sequence[Instance], limits: Limits, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self.limits = limits
        self.clock = clock
        self._lock = threading.RLock()
        self.instances = list(instances)
        self.retiring: list[Instance] = []
        self.every = self.instances
        self.past = Past()
        self.free = list(instances)
        self.racks = new_racks()
        self.lays_out = False
        self.line = WaitingLine(self)
        self.outside: OrderedDict[Entry, None] = OrderedDict()
        self.elsewhere = Elsewhere()
        self.callers: set[Caller] = set()
        self.entered = 0
        self.failures: dict[str, int] = {}
        self.refusing: ClosedError | None = None
        self.dead = False
        self.retire: Callable[[Instance], None] | None = None
        self.wake_at: float | None = None
        self.waker: Caller | None = None
        self.needs_result = True
        self.lost = False
        self.starts: deque[Callable[[], None]] = deque()
        self.shed: list[tuple[Entry, Node, OverloadedError]] = []
        self._settled: list[Entry] = []  # by this turn under the lock, not told yet
        self._untold: dict[Entry, None] = {}  # all that is settled and not told
        self._closers: list[Signal] = []
        self.measure(self.instances)
        for instance in self.instances:
            instance.limits = limits

    def measure(self, living: Sequence[Instance]) -> None:
        """Take the range of the living instances as that of the node."""
        # No batch weighs more than the largest size, so no request may.
        sizes = self.limits.batch_sizes[-1:]
        maxima = [
            min(most) for i in living if (most := [*sizes, *([] if i.max is None else [i.max])])
        ]
        self.max = max(maxima) if living and len(maxima) == len(living) else None
        self.min = min((i.min for i in living), default=1)

    @property
    def lock(self) -> Any:
        """The lock of the node, for a ``with`` statement."""
        return taking(self._lock)

    def after_fork(self) -> None:
        """Take another lock in a child process: this one may have been held by another thread."""
        self._lock = threading.RLock()

    # Entries.

    def push(self, entry: Entry) -> None:
        """Put an entry into the line."""
        self.line.push(entry)
        entry.state = QUEUED

    def take_out(self, entry: Entry) -> None:
        """Take an entry that waits out of where it waits."""
        self.outside.pop(entry, None)
        self.line.remove(entry)

    @property
    def bounded(self) -> int:
        """How many requests that entered here wait, here or elsewhere."""
        return self.line.count - self.line.guests + self.elsewhere.count

    @property
    def full(self) -> bool:
        """Whether as many requests that entered here wait, here or elsewhere, as may."""
        waiting = self.line.count - self.line.guests + self.elsewhere.count
        return waiting >= self.limits.queue_size

    def let_in(self) -> None:
        """Let in who waits for room, first come first served."""
        while self.outside:
            entry = next(iter(self.outside))
            if self.full and (entry.waits is None or not entry.waits.entered):
                return
            if entry not in self.line:
                self.line.push(entry)
            entry.state = QUEUED
            del self.outside[entry]
            if entry.room is not None:
                entry.room.wake()

    def settle(self, entry: Entry, error: BaseException | None, at: Instance | None = None) -> None:
        """Give an entry its one outcome. Whoever is told of it gives the dict back first.

        Args:
            entry: An entry that is not DONE.
            error: None for success.
            at: The instance that ran it, which counts the failure.
        """
        owner = entry.owner
        entry.error = error
        entry.state = DONE
        if entry.alarm is not None:
            entry.alarm.cancel()
        if error is not None:
            failures = self.failures if at is None else at.failures
            code = entry.code or code_of(error)
            failures[code] = failures.get(code, 0) + 1
        if entry.room is not None:
            entry.room.wake()
        if isinstance(owner, Caller) and not self.tells_callers:
            owner.pending -= 1
            self._release(owner)
        else:
            self._untold[entry] = None
            self._settled.append(entry)
        if error is not None and isinstance(owner, CallerOfGroups):
            self._cancel_group(entry, owner)

    def _cancel_group(self, failed: Entry, caller: CallerOfGroups) -> None:
        """Cancel what waits and is of no use any more, for one of its group has failed."""
        from concurrent.futures import CancelledError

        group = caller.groups.get(failed, [])
        waiting = [entry for entry in group if entry.state in (QUEUED, OUTSIDE)]
        group.clear()
        if waiting:
            self.settle_waiting(CancelledError(), waiting)

    def _release(self, caller: Caller) -> None:
        """Wake a caller that sleeps and has all its outcomes."""
        if not caller.pending and caller.parked:
            caller.signal.wake()
            caller.parked = False  # it need not look again; after the wake, so that none is lost

    def settle_waiting(self, error: BaseException, entries: Sequence[Entry]) -> None:
        """Fail entries that wait, each with an error of its own."""
        for entry in entries:
            if entry.state != DONE:
                self.settle(entry, own(error))
            self.take_out(entry)

    def shed_elsewhere(self) -> None:
        """Fail the requests that make way for others here and wait at other nodes. Without the lock."""
        while self.shed:
            entry, node, error = self.shed.pop()
            with node.lock:
                if entry.state == QUEUED:  # else it runs by now, and counts no more
                    node.settle_waiting(error, [entry])
                    node.look_if_quiet()
                settled = node.take_settled()
            node.tell(settled)

    # Telling.

    def take_settled(self) -> Sequence[Entry]:
        """Give those settled in this turn under the lock; the one who takes them tells them."""
        if not self._settled:
            return ()
        settled = self._settled
        self._settled = []
        return settled

    def tell(self, settled: Sequence[Entry]) -> None:
        """Start threads that are due, and tell the owners of entries their outcome. Without the lock.

        Whatever goes wrong while one is told, the others are told.
        """
        errands.attend()
        if self.starts:
            self._start_threads()
        for entry in settled:
            self._tell_one(entry)
        if settled and self.refusing is not None:
            with self.lock:
                self.look_if_quiet()

    def _start_threads(self) -> None:
        while self.starts:
            try:
                start = self.starts.popleft()
            except IndexError:  # another thread was quicker
                break
            start()

    def _tell_one(self, entry: Entry) -> None:
        try:
            entry.owner.finished(entry)
        except BaseException as error:  # noqa: BLE001 - the others must be told
            _log.error("node %s: an outcome could not be told", self.name, exc_info=error)
        entry.owner = NOBODY  # an owner knows its entry: together they would be garbage
        self._untold.pop(entry, None)

    # Instances.

    def rest(self, instance: Instance) -> None:
        """Take an instance back from its holder."""
        if instance.retired is not None:
            instance.retired.wake()
            instance.ident = 0
            instance.holder = None
        elif instance.lost is not None and instance.lost.is_set():
            self.lose(instance)
        else:
            instance.ident = 0
            instance.holder = None
            self.free.append(instance)

    @property
    def rests(self) -> bool:
        """Whether an instance is free, on a rack or not."""
        if self.free:
            return True
        (swift,), (other,) = self.racks
        return bool(swift or other)

    def collect(self, racks: Sequence[Rack] | None = None) -> None:
        """Take what lies on the racks among the free ones."""
        if racks is None:
            (swift,), (other,) = racks = self.racks
            if not (swift or other):
                return
        for (rack,) in racks:
            while rack:
                try:
                    self.free.append(rack.popleft())
                except IndexError:  # a caller was quicker
                    break

    def lay_out(self) -> None:
        """Let callers take the free instances without the lock, since nobody waits."""
        if self.lays_out:
            # All on one rack, so that they take turns.
            (swift,), (other,) = self.racks
            slow = any(instance.mean_s >= SWIFT_S for instance in self.free)
            (other if slow else swift).extend(self.free)
            self.free.clear()

    # The end.

    @property
    def quiet(self) -> bool:
        """Whether newcomers are refused and nothing waits, runs or is yet to be told."""
        return (
            self.refusing is not None
            and not self.line.count
            and not self.outside
            and not self._untold
            and all(instance.holder is None for instance in self.every)
        )

    def look_if_quiet(self) -> None:
        """Wake those who wait for quiet, if it is."""
        if self._closers and self.quiet:
            for signal in self._closers:
                signal.wake()

    def add_closer(self, signal: Signal) -> None:
        """Wake ``signal`` when it is quiet."""
        self._closers.append(signal)
        self.look_if_quiet()

    def lose(self, instance: Instance) -> None:
        """Take an instance out of service that serves no more, with all that only it could serve."""
        if instance in self.free:
            self.free.remove(instance)
        instance.ident = 0
        instance.holder = None
        if instance.retired is not None:
            instance.retired.wake()
            return
        living = [i for i in self.instances if i.living]
        self.measure(living)
        self.lost = not living
        error = self.no_instance() if not living else None
        for entry in [*self.line, *self.outside]:
            if error is not None or (self.max is not None and entry.weight > self.max):
                self.settle_waiting(error or self.no_instance(), [entry])
        self.let_in()

    def no_instance(self) -> InstanceLostError:
        """Make the error of requests for which no living instance is left."""
        return InstanceLostError(
            "no instance that could take the request is left: it was lost, or its thread has died",
            node=self.name,
            hint=f"Pipeline.reload({self.name!r}, {{}}) brings new instances.",
        )


def own(error: BaseException) -> BaseException:
    """Give an error object for one request alone."""
    if isinstance(error, ClosedError):
        return ClosedError(error.args[0], abandoned=error.abandoned)
    copy = getattr(error, "copy", None)
    twin: BaseException = copy() if copy is not None else error
    return twin
