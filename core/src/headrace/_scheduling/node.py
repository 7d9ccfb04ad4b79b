"""The state of one node: its requests and its instances, behind one lock.

**One lock per node**, taken by `Node.section` alone. In a section a thread changes the state and calls nothing of the user's but
policies, which are pure: no backend, no callback, no dict. A thread that waits for its own requests has their outcome at once,
inside the section; every other owner of a request that was settled is notified after it (`Node.notify`).

**Membership is ownership.** An instance is in exactly one place: in `free`, which only sections touch; in `idle`, from which a
caller may pop it without the lock and then holds it; away (its backend is being started again); lost; over (a
reload has retired it, and its last batch has ended); or some thread holds it. So nobody ever looks for a holder: who counts the
instances that are at home knows the rest. While nobody waits and nothing is `special` the free ones lie in `idle`. Who puts
one back there looks at the queue and at `special` afterwards; a section sets these first and then empties `idle`
(`collect`). So neither a request nor an instance is left behind.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._checked import largest_size
from headrace._scheduling.entry import (
    DONE,
    ENTERED,
    NEW,
    NOBODY,
    OUTSIDE,
    PENDED,
    QUEUED,
    WAITING,
    own_error,
    refuses_change,
)
from headrace._scheduling.failures import FailureLog
from headrace._scheduling.instance import Counts
from headrace._scheduling.pending import Pending
from headrace._scheduling.queue import NodeQuota, RequestQueue
from headrace._scheduling.refusals import cancelled, overloaded, unfit
from headrace._scheduling.threads import Signal, Watchers, reentrant, sections
from headrace.errors import ClosedError, InstanceLostError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace._scheduling.batch import Work
    from headrace._scheduling.entry import Entry, Owner
    from headrace._scheduling.instance import Instance, Limits
    from headrace._scheduling.probes import Reporter

_log = logging.getLogger("headrace.scheduling")

ONE_AT_A_TIME: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether threads run Python code one at a time: in a free-threaded build no caller skips the lock."""


class Waiter:
    """A thread that waits for its own requests, and may run batches meanwhile. Changed in sections.

    Attributes:
        runs: Whether the thread may run batches: not where one of its requests has a deadline.
        pending: How many of its requests have no outcome yet.
        parked: Whether it sleeps. Who gives it work, nudges it or settles its last request clears this and wakes it.
        work: A batch that was given to the thread while it slept.
        nudged: Whether it was woken to look for a free instance itself.
        foreign_until: When the time ends that the thread may spend on batches of others; None before the first.
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
        "work",
    )

    def __init__(self, ident: int, node: Node) -> None:
        self.ident, self.node, self.runs = ident, node, True
        self.pending = 0
        self.parked = self.nudged = False
        self.work: Work | None = None
        self.foreign_until: float | None = None
        self.signal = Signal()

    def places(self) -> Sequence[tuple[Node, object]]:
        """Return the node at which the thread sleeps; see `headrace._scheduling.cycles`."""
        return ((self.node, self),) if self.parked and self.work is None else ()

    def took(self) -> None:
        """Count one outcome; the last one wakes the thread."""
        self.pending -= 1
        if not self.pending and self.parked:
            self.parked = False
            # Once the lock is left, for which the thread would wait at its next request.
            self.node.afterwards.append(self.signal.wake)

    def wake(self) -> None:
        """Wake the thread."""
        self.parked = False
        self.signal.wake()

    def finished(self, entry: Entry) -> None:
        """Count one outcome of which probes have heard before."""
        with self.node.section:
            self.took()


class Section:
    """A section under the lock of a node; after it the owners of what was settled in it are notified."""

    __slots__ = ("_lock", "_node", "_outer")

    def __init__(self, node: Node) -> None:
        self._node = node
        # Re-entrant, for a destructor may run in a section: it is refused, or put off, by what `sections` says.
        self._lock = threading.RLock()
        self._outer: Any = None

    def __enter__(self) -> None:
        self._lock.acquire()
        me = get_ident()
        self._outer = sections.get(me)
        sections[me] = self._node

    def __exit__(self, *_: object) -> None:
        node = self._node
        done: list[Entry] | None = None
        after: list[Callable[[], object]] | None = None
        if node.settled:
            done, node.settled = node.settled, []
            node.notifying.append(None)
        if node.afterwards:
            after = node.afterwards.copy()
            node.afterwards.clear()
        if self._outer is None:
            del sections[get_ident()]
        else:
            sections[get_ident()] = self._outer
        self._lock.release()
        if after is not None:
            for action in after:
                action()
        if done is not None:
            node.notify(done)

    def is_mine(self) -> bool:
        """Tell whether the calling thread is in the section."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]


class Node:
    """The state of one node. All methods but `notify` run in a `section`.

    Attributes:
        name, limits, clock: See `headrace._scheduling.scheduler.Scheduler`.
        failures: Tells operators what backends raise; called outside sections.
        instances: The instances in service; `retiring` those whose last batch has not ended; `every` both.
        free, idle: The instances that nobody holds; see above.
        special: Whether callers must not take instances without the lock: closing, a reload, an instance away or lost.
        min, max, lost: The least and the greatest weight that a living instance takes; whether none lives.
        queue: The entries that wait for an instance; `outside` those that wait for room in it.
        pending: The requests that backends keep as PENDING.
        quota: Counts the requests that have entered here and wait at other nodes.
        entered: How many requests have come, but those that their callers ran past the queue.
        counts: The failures of requests that no instance has run, and all counts of retired instances.
        must_have_result: Whether a request that ends without ``result`` has failed.
        refusing: The error of newcomers; None while the node is open.
        drains: Whether requests of other nodes may still come while newcomers are refused.
        dead: Whether the open requests were failed, too; then `retire` is called whenever an instance comes home.
        reporter: Tells the probes; None where none listens.
        settled, afterwards: The entries whose owners are to be notified, and what is to be called, after the section.
        notifying: One item per thread that notifies owners.
        closers: The threads that wait until the node is `quiet`.
    """

    def __init__(
        self,
        name: str,
        instances: Sequence[Instance],
        limits: Limits,
        clock: Callable[[], float],
        dispatch: Any,
    ) -> None:
        """Make the state; ``dispatch()`` lets requests begin that can, after a change from outside."""
        self.name, self.limits, self.clock = name, limits, clock
        self.section = Section(self)
        self.failures = FailureLog(name, clock)
        self.dispatch: Callable[[], object] = dispatch
        self.instances: list[Instance] = list(instances)
        self.retiring: list[Instance] = []
        self.every: list[Instance] = self.instances
        self.free: list[Instance] = []
        self.idle: list[Instance] = []
        self.counts = Counts()
        self.entered = 0
        self.afterwards: list[Callable[[], object]] = []
        self.settled: list[Entry] = []
        self.notifying: list[None] = []
        self.queue = RequestQueue(self.evict, self.afterwards)
        self.outside: OrderedDict[Entry, None] = OrderedDict()
        self.quota = NodeQuota(self.outside, self.move_up)
        self.pending = Pending(self)
        self.must_have_result = True
        self.refusing: ClosedError | None = None
        self.drains = True
        self.dead = self.lost = False
        self.retire: Callable[[], object] | None = None
        self.closers = Watchers()
        self.reporter: Reporter | None = None
        self.special = not ONE_AT_A_TIME
        (self.free if self.special else self.idle).extend(instances)
        self.measure(instances)

    # Requests come in.

    @property
    def bounded(self) -> int:
        """How many requests wait, at this node or another, that entered at this node."""
        return self.queue.count - self.queue.counted_elsewhere + len(self.quota.waiting)

    @property
    def full(self) -> bool:
        """Whether `bounded` has reached ``queue_size``."""
        return self.bounded >= self.limits.queue_size

    def enter(
        self, entries: Iterable[Entry], refused: BaseException | None, *, internal: bool
    ) -> None:
        """Let new entries in one by one; an entry that is refused fails alone.

        Args:
            entries: The entries.
            refused: Why none of them may enter; None where they may.
            internal: Whether their requests come from another node: these may enter while newcomers are refused.
        """
        goes_on = internal and not self.dead and (self.drains or self.free or self.idle)
        if self.refusing is not None and not goes_on:
            refused = self.refusing
        elif self.lost:
            refused = self.no_instance()
        most = self.max
        for entry in entries:
            if entry.state == DONE:
                continue
            self.entered += 1
            entry.state = ENTERED
            error = refused
            late = entry.deadline is not None and entry.deadline <= entry.arrival
            if error is None and (late or (most is not None and entry.weight > most)):
                error = unfit(self, entry)
            if error is not None:
                self.settle(entry, own_error(error))
                continue
            if (entry.quota is None or not entry.quota.entered) and (self.outside or self.full):
                self.dispatch()  # it may make room
                if self.outside or self.full:
                    self._enter_full(entry)
                    continue
            self.queue.push(entry)

    def _enter_full(self, entry: Entry) -> None:
        """Have an entry wait outside, refuse it, or shed the oldest entry of the lowest priority for it."""
        waiting, rule = self.bounded, self.limits.queue_full
        if rule == "wait":
            self.outside[entry] = None
            entry.state = OUTSIDE
        elif rule == "shed_oldest" and self._shed(entry.priority, waiting):
            self.queue.push(entry)
        else:
            self.settle(entry, overloaded(self, waiting, shed=False))

    def _shed(self, priority: int, waiting: int) -> bool:
        """Fail the oldest entry of the lowest priority, if that is ``priority`` or lower, here or at another node."""
        oldest = self.queue.oldest_of_lowest()
        error = overloaded(self, waiting, shed=True)
        here = priority + 1 if oldest is None else oldest.priority
        found = self.quota.shed(min(here, priority))
        if found is not None:
            other, evict = found
            self.afterwards.append(partial(evict, other, error))
            return True
        if oldest is None or here > priority:
            return False
        self.fail_waiting(error, [oldest])
        return True

    def admit_outside(self) -> None:
        """Let entries that wait for room into the queue, first come first served."""
        while self.outside:
            entry = next(iter(self.outside))
            if self.full and (entry.quota is None or not entry.quota.entered):
                return
            del self.outside[entry]
            self.queue.push(entry)
            if entry.room is not None:
                entry.room.wake()

    def move_up(self) -> None:
        """Let entries in, after a request that entered here stopped waiting at another node. Takes the section."""
        with self.section:
            self.dispatch()

    def evict(self, entry: Entry, error: BaseException) -> None:
        """Fail an entry whose request makes way for a newer one where it entered. Takes the section."""
        with self.section:
            if entry.state in (QUEUED, PENDED):
                self.fail_waiting(error, [entry])
                self.dispatch()

    # Requests are settled: each has one outcome.

    def settle(self, entry: Entry, error: BaseException | None, at: Instance | None = None) -> None:
        """Give an entry its one outcome; ``at`` is the instance that has run it, if any."""
        if entry.alarm is not None:
            entry.alarm.cancel()
        if entry.room is not None:
            entry.room.wake()
        if error is not None:
            if isinstance(error, ClosedError) and error.begun is None:
                error.begun = entry.began
            entry.error = error
            # A batch notes its codes outside the section; the timer may end an entry right after that.
            code = code_of(error) if at is None else entry.code or code_of(error)
            (at or self.counts).failed(code)
        entry.state = DONE
        if entry.held is not None:
            self.pending.ended(entry)
        owner = entry.owner
        if self.reporter is not None:
            self.reporter.settled(entry)
            self.settled.append(entry)
        elif type(owner) is Waiter:
            owner.took()
        else:
            self.settled.append(entry)
        if error is not None and entry.group:
            waiting = [one for one in entry.group if one.state in WAITING]
            entry.group.clear()
            self.fail_waiting(cancelled(), waiting)

    def fail_waiting(self, error: BaseException, entries: Iterable[Entry]) -> None:
        """Fail entries that wait, each with an error of its own."""
        for entry in entries:
            self.fail(entry, lambda _, **__: own_error(error))

    def fail(self, entry: Entry, failure: Callable[..., BaseException]) -> bool:
        """Fail an entry wherever it is, unless it is DONE; tell whether a backend goes on with its request.

        ``failure(node, running=...)`` makes the error.
        """
        self.outside.pop(entry, None)
        self.queue.remove((entry,))
        if entry.state == DONE:
            return False
        running = not entry.take_back()
        if entry.state == NEW:
            self.entered += 1
        self.settle(entry, failure(self, running=running))
        return running

    def notify(self, done: Sequence[Entry]) -> None:
        """Notify the owners of settled entries; probes hear of an outcome before its owner. Outside the section."""
        for entry in done:
            reporter = self.reporter
            if reporter is not None:
                with suppress(Exception):
                    reporter.answers(entry)
            deliver(entry.owner, entry)
            entry.owner = NOBODY
        self.notifying.pop()
        if self.closers:  # who waits there adds itself first, and looks at `notifying` then
            with self.section:
                self.look_if_quiet()

    # Instances.

    def measure(self, living: Sequence[Instance]) -> None:
        """Set the range of the node to the weights that the living instances take."""
        for instance in self.instances:
            instance.limits = self.limits
        maxima = [largest_size(self.limits.batch_sizes, i.max) for i in living] or [None]
        self.max = None if None in maxima else max(maxima)  # type: ignore[type-var]
        self.min = min((i.min for i in living), default=1)

    def collect(self) -> None:
        """Move the instances that callers may take without the lock to the free ones."""
        while self.idle:
            try:
                instance = self.idle.pop()
            except IndexError:
                return
            self.give_back(instance)

    def publish(self) -> None:
        """Let callers take the free instances without the lock: no request waits, and nothing is special."""
        free, self.free = self.free, []
        self.idle.extend(free)

    def give_back(self, instance: Instance) -> None:
        """Take an instance back from its holder: it becomes free, unless it is retired, away or lost."""
        instance.entries = None
        instance.running_weight = instance.ident = 0
        instance.holder = None
        if instance.adopted is not None:
            self.pending.left(instance)
        if instance.retired is None:
            instance.away = instance.liveness.pauses
            if instance.liveness.lost:
                self.lose(instance)
                return
            if not instance.away:
                self.free.append(instance)
        if instance.retired is not None:
            instance.over = True
            instance.retired.wake()
        if self.retire is not None:
            self.afterwards.append(self.retire)

    def lose(self, instance: Instance) -> None:
        """Take a lost instance out of service, and fail the entries that no other instance takes."""
        if instance in self.free:
            self.free.remove(instance)
        instance.ident, instance.holder = 0, None
        self.special = True
        if self.retire is not None:
            self.afterwards.append(self.retire)
        if instance.retired is not None:
            instance.over = True
            instance.retired.wake()
            return
        if self.reporter is not None:
            self.afterwards.append(partial(self.reporter.changed, "lost", [instance]))
        self.pending.let_go([instance])
        living = [one for one in self.instances if one.living]
        self.measure(living)
        self.lost = not living
        entries = [*self.queue, *self.outside]
        if living:
            entries = [one for one in entries if self.max is not None and one.weight > self.max]
        self.fail_waiting(self.no_instance(), entries)
        self.admit_outside()

    def no_instance(self) -> InstanceLostError:
        """Make the error of requests for which no living instance is left."""
        why = "no instance that could take the request is left: it was lost"
        hint = f"Pipeline.reload({self.name!r}, {{}}) brings new instances."
        return InstanceLostError(why, node=self.name, hint=hint)

    def watch(self) -> None:
        """Hear of the instances in service whose backend is away, or lost; some may be already."""
        for instance in self.instances:
            instance.liveness.node = self
            instance.liveness.changed = partial(self._look_at, instance)
            instance.away = instance.liveness.pauses
            if not instance.ready:
                self.afterwards.append(instance.liveness.changed)

    @reentrant()
    def _look_at(self, instance: Instance) -> None:
        """Take an instance out of service, or back into it, after its `Liveness` has changed. Takes the section."""
        with self.section:
            self.special = True
            self.collect()
            is_free = instance in self.free
            if is_free:
                self.free.remove(instance)
            if is_free or (instance.away and instance.retired is None and instance.holder is None):
                self.give_back(instance)
            self.special = not self.is_usual
            self.dispatch()

    @property
    def is_usual(self) -> bool:
        """Whether callers may take instances without the lock."""
        serve = all(one.serves for one in self.instances)
        return ONE_AT_A_TIME and serve and not self.retiring and self.refusing is None

    # The end.

    @property
    def quiet(self) -> bool:
        """Whether newcomers are refused, no request waits, runs or is PENDING, and every owner has been notified."""
        idle = (
            self.refusing is not None
            and not self.queue.count
            and not self.outside
            and not self.pending.open
            and not self.notifying
        )
        return idle and all(
            one in self.free or one.over or one.away or not one.living for one in self.every
        )

    def look_if_quiet(self) -> None:
        """Wake the threads that wait until the node is quiet, if it is."""
        if self.closers and self.quiet:
            self.closers.wake()


def deliver(owner: Owner, entry: Entry) -> None:
    """Notify the owner of an entry, whatever the request or its error raises meanwhile."""
    try:
        owner.finished(entry)
    except BaseException as error:  # noqa: BLE001 - the owner gets an outcome in any case
        _log.error("an outcome could not be delivered", exc_info=error)
        entry.refuse(refuses_change(error) if entry.error is None else entry.error)
        with suppress(BaseException):
            owner.finished(entry)
