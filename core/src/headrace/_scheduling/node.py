"""What the parts of a node's scheduler share: the queue, the instances, the open requests.

It is changed inside ``with node.section, node.lock:``, see `Section`; only the idle list is used without
the lock, see `headrace._scheduling.fast_path`.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

from headrace._checked import largest_size
from headrace._scheduling.entry import DONE, NEW, NOBODY, OUTSIDE, QUEUED, own_error, refuses_change
from headrace._scheduling.failures import FailureLog
from headrace._scheduling.instance import Counts, FreeInstances
from headrace._scheduling.locks import Watchers, outermost, taking
from headrace._scheduling.process_threads import errands
from headrace._scheduling.queue import QUEUE_FULL, NodeQuota, RequestQueue
from headrace._scheduling.threads import Blocked, Caller
from headrace.errors import ClosedError, InstanceLostError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.entry import Entry, Owner
    from headrace._scheduling.instance import Instance, Limits
    from headrace._scheduling.probes import Reporter


_log = logging.getLogger("headrace.scheduling")


class Section:
    """One section under the lock of a node: ``with node.section, node.lock:``.

    Before the thread takes the lock, the section notes it for `headrace._scheduling.locks.holds_a_lock`. A
    thread that changes the queue, the free instances or the state of an entry calls `Dispatcher.dispatch`
    last; otherwise a batch that is due may be left behind. After the thread has left the lock, the section
    notifies the owners of all settled entries, so that no code of a user runs under the lock.

    The lock is the inner context of the two: the interpreter leaves it in one step, and an exception in
    the section's own exit finds it left.
    """

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> None:
        me, lock = get_ident(), self._node.lock
        noted = outermost.get(me)
        if noted is not lock and (noted is None or not noted._is_owned()):
            outermost[me] = lock

    def __exit__(self, *_: object) -> None:
        node = self._node
        if not errands.empty():
            errands.attend()
        if node.settled or node.afterwards:
            node.notify()


class Node(FreeInstances):
    """The state of one node, changed in a `Section`; the fast path also reads it without the lock.

    Attributes:
        name, limits, clock, section, lock: See `Scheduler` and `Section`.
        failures: Tells operators what backends raise; called without the lock.
        instances: The instances in service.
        retiring: The instances taken out of service whose last batch has not ended.
        every: The instances in service, and those in `retiring`.
        counts: The counts of the instances that have left `retiring`, and failures that no instance counts.
        queue: The entries that wait for a batch.
        enough: While instances are idle though requests wait: the weight of the queue from which on an
            arrival may make a batch due, by the last answer of the batch policy; else 0.
        outside: The entries that wait for room in the queue, first come first served.
        quota: Counts the requests that entered here and wait at other nodes.
        callers: The threads that wait for their requests here.
        entered: How many requests came, without those that their callers ran past the queue.
        refusing: The error that newcomers get, None while the node lets them in.
        drains: Whether requests of other nodes may wait here while newcomers are refused.
        dead: Whether the open requests have been failed, too; then requests of other nodes are refused as well.
        retire: Called, after the section, when the batch of an instance ends while the node is dead.
        wake_at, waker: When the queue is to be looked at again, None for never; the caller that does, None for the timer.
        min, max, lost: The least and the greatest weight that a living instance takes; whether none lives.
        needs_result: Whether a request that ends without a ``result`` has failed.
        dispatch: The method of the `Dispatcher`, which sets it here.
        afterwards: The functions to call as soon as the lock is left.
        settled: Entries whose owners are to be notified: the thread that pops an entry notifies its owner.
        closers: The threads that wait until it is `quiet`.
        reporter: Tells the probes; None where no probe listens. Without a reporter `settle` counts an outcome
            for the caller that waits; with one the caller is notified, as all other owners are.
    """

    def __init__(
        self, name: str, instances: Sequence[Instance], limits: Limits, clock: Callable[[], float]
    ) -> None:
        super().__init__(instances)
        self.name = name
        self.limits = limits
        self.clock = clock
        self.failures = FailureLog(name, clock)
        self.lock = threading.RLock()
        self.section = Section(self)
        self.instances = list(instances)
        self.retiring: list[Instance] = []
        self.every = self.instances
        self.counts = Counts()
        self.afterwards: deque[Callable[[], object]] = deque()
        self.queue = RequestQueue(self.evict, self.afterwards)
        self.enough: float = 0
        self.outside: OrderedDict[Entry, None] = OrderedDict()
        sheds = QUEUE_FULL[limits.queue_full].sheds
        self.quota = NodeQuota(self.outside, self.move_up, sheds=sheds)
        self.callers: set[Caller] = set()
        self.entered = 0
        self.refusing: ClosedError | None = None
        self.drains = True
        self.dead = False
        self.retire: Callable[[], object] | None = None
        self.wake_at: float | None = None
        self.waker: Caller | None = None
        self.needs_result = True
        self.lost = False
        self.dispatch: Callable[[None], object] = lambda _: None
        self.settled: deque[Entry] = deque()
        self._unnotified: dict[Entry, None] = {}  # closing waits until they are notified
        self.closers = Watchers()
        self.reporter: Reporter | None = None
        self.measure(self.instances)
        for instance in self.instances:
            instance.limits = limits

    def measure(self, living: Sequence[Instance]) -> None:
        """Set the range of the node to the weights that the living instances take."""
        # No batch weighs more than the largest size that an instance takes, so no request may.
        maxima = [largest_size(self.limits.batch_sizes, i.max) for i in living] or [None]
        self.max = None if None in maxima else max(maxima)  # type: ignore[type-var]
        self.min = min((i.min for i in living), default=1)

    @property
    def keeps_main_thread_away(self) -> bool:
        """Whether the main thread may call no probe of this node: a signal handler must not interrupt it there."""
        reporter = self.reporter  # another thread may take it away
        return reporter is not None and not reporter.probes.reentrant

    # Entries.

    def arrived(self, entry: Entry) -> None:
        """Dispatch after an entry has come, unless it cannot make a batch due."""
        if entry.state != QUEUED or (self.has_idle and self.queue.weight >= self.enough):
            self.dispatch(None)

    @property
    def bounded(self) -> int:
        """How many requests wait, at this node or another, that entered at this node."""
        return self.queue.count - self.queue.guests + len(self.quota.waiting)

    @property
    def full(self) -> bool:
        """Whether `bounded` has reached ``queue_size``."""
        return self.bounded >= self.limits.queue_size

    def admit_outside(self) -> None:
        """Let entries that wait for room into the queue, first come first served."""
        while self.outside:
            entry = next(iter(self.outside))
            if self.full and (entry.quota is None or not entry.quota.entered):
                return
            if entry.state != QUEUED:  # else an exception hit a thread right after this push
                self.queue.push(entry)
            del self.outside[entry]
            if entry.room is not None:
                entry.room.wake()

    def move_up(self) -> None:
        """Let entries into the queue, after a request that entered here stopped waiting at another node."""
        with self.section, self.lock:
            self.dispatch(None)

    def settle(self, entry: Entry, error: BaseException | None, at: Instance | None = None) -> None:
        """Give an entry its one outcome; its owner, once notified, gives the dict back before it answers.

        A thread that waits takes it here, where no probe is to hear of it first; other owners once the lock is left.

        Args:
            entry: An entry that is not DONE.
            error: None for success.
            at: The instance that ran the entry and counts its failure; None where the node counts it.
        """
        owner, taken = entry.owner, False
        if entry.alarm is not None:
            entry.alarm.cancel()
        if entry.room is not None:
            entry.room.wake()
        if error is not None:
            if isinstance(error, ClosedError) and error.begun is None:
                error.begun = entry.began
            entry.error = error
            # A batch notes its codes without the lock; the timer may end an entry right after that.
            code = code_of(error) if at is None else entry.code or code_of(error)
            failures = (at or self.counts).failures
            count = failures.get(code, 0) + 1
        if self.reporter is not None:
            self.reporter.settled(entry)
        elif isinstance(owner, Blocked):
            taken = owner.took_outcome(entry, self.afterwards)
        # No call from here on, so that an exception that hits this thread finds the entry settled, or open.
        entry.state = DONE
        if error is not None:
            failures[code] = count
        if not taken:
            self._unnotified[entry] = None
            self.settled.append(entry)
        if error is not None and entry.group:
            self._cancel_group(entry.group)

    def _cancel_group(self, group: list[Entry]) -> None:
        """Cancel the entries of a group that still wait: one of the group has failed, they are of no use."""
        waiting = [entry for entry in group if entry.state in (QUEUED, OUTSIDE)]
        group.clear()
        if waiting:
            self.fail_waiting(CancelledError(), waiting)

    def fail_waiting(self, error: BaseException, entries: Sequence[Entry]) -> None:
        """Fail entries that wait, each with an error of its own."""
        for entry in entries:
            self.fail(entry, lambda _, **__: own_error(error))

    def fail(self, entry: Entry, failure: Callable[..., BaseException]) -> bool:
        """Fail an entry wherever it is, unless it is DONE; tell whether a backend goes on with its request.

        Args:
            entry: An entry that waits, runs, or has not come yet.
            failure: Makes the error, called as ``failure(node, running=...)``.
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

    def evict(self, entry: Entry, error: BaseException) -> None:
        """Fail an entry whose request makes way for a newer one where it entered. Called without any lock."""
        with self.section, self.lock:
            if entry.state == QUEUED:  # else the entry runs by now, and takes no room
                self.fail_waiting(error, [entry])
                self.dispatch(None)  # the entries behind it move up

    # Notifying.

    def notify(self) -> None:
        """Call the functions in `afterwards`, and notify the owners of the entries in `settled`.

        Without the lock. While this thread notifies, another thread may settle more entries under the lock.
        Either this thread pops those entries, and the other thread finds `settled` empty; or the other
        thread pops and notifies them. A failure of one owner keeps no other from being notified.
        """
        afterwards = self.afterwards
        while afterwards:  # not `drained`, which costs a microsecond more
            try:
                action = afterwards.popleft()
            except IndexError:  # another thread was quicker
                break
            action()
        if self.settled:
            self._notify_owners()
            if self.refusing is not None:
                with taking(self.lock):
                    self.look_if_quiet()

    def _notify_owners(self) -> None:
        entry: Entry | None = None
        try:
            while self.settled:
                # One step of the interpreter pops the entry and names it: no interrupt loses the entry.
                (entry,) = map(deque.popleft, (self.settled,))
                reporter = self.reporter  # another thread may take it away
                if reporter is not None:
                    reporter.answers(entry)
                self._notify_one(entry)
                entry = None
        except IndexError:  # another thread was quicker
            pass
        finally:
            if entry is not None:  # an exception hit this thread before the entry was notified
                self.settled.appendleft(entry)
                self._notify_owners()

    def _notify_one(self, entry: Entry) -> None:
        if isinstance(entry.owner, Caller):
            self._answer(entry.owner, entry)
            return
        deliver(entry.owner, entry)
        entry.owner = NOBODY  # no cycle of references between an owner and its entry
        self._unnotified.pop(entry, None)

    def _answer(self, caller: Caller, entry: Entry) -> None:
        """Count an outcome for a caller that waits; a second call changes nothing."""
        with taking(self.lock):
            if entry in self._unnotified:
                caller.took_outcome(entry, self.afterwards)
                del self._unnotified[entry]
            self.look_if_quiet()

    # Instances.

    def give_back(self, instance: Instance) -> None:
        """Take an instance back from its holder: it becomes free, unless it is retired, away or lost."""
        away, serves = bool(instance.presence.away), instance.retired is None
        gone = serves and instance.presence.gone
        # No call from here on, so that an exception that hits this thread finds the instance held, or free.
        instance.entries = None
        instance.running_weight = 0
        instance.ident = 0
        instance.holder = None
        if serves:
            instance.away = away
            if not (away or gone):
                self.free.append(instance)
        if gone:
            self.lose(instance)
        elif not serves or self.retire is not None:
            self.batch_ended(instance)

    def batch_ended(self, instance: Instance) -> None:
        """Tell the thread that closes an instance, if one waits to do so, that its batch has ended."""
        if instance.retired is not None:
            instance.retired.wake()
        if self.retire is not None:
            self.afterwards.append(self.retire)

    # The end.

    @property
    def quiet(self) -> bool:
        """Whether newcomers are refused, no request waits or runs, and every owner has been notified."""
        return (
            self.refusing is not None
            and not self.queue.count
            and not self.outside
            and not self._unnotified
            and all(instance.holder is None for instance in self.every)
        )

    def look_if_quiet(self) -> None:
        """Wake the threads that wait until the node is quiet, if it is."""
        if self.closers and self.quiet:
            self.closers.wake()

    def lose(self, instance: Instance) -> None:
        """Take a lost instance out of service, and fail the entries that no other instance takes."""
        if instance in self.free:
            self.free.remove(instance)
        instance.ident = 0
        instance.holder = None
        self.batch_ended(instance)
        if instance.retired is not None:
            return
        if self.reporter is not None:
            self.afterwards.append(partial(self.reporter.changed, "lost", [instance]))
        living = [i for i in self.instances if i.living]
        self.measure(living)
        self.lost = not living
        entries = [*self.queue, *self.outside]
        if living:
            entries = [e for e in entries if self.max is not None and e.weight > self.max]
        self.fail_waiting(self.no_instance(), entries)
        self.admit_outside()

    def no_instance(self) -> InstanceLostError:
        """Make the error of requests for which no living instance is left."""
        why = "no instance that could take the request is left: it was lost, or its thread has died"
        hint = f"Pipeline.reload({self.name!r}, {{}}) brings new instances."
        return InstanceLostError(why, node=self.name, hint=hint)


def deliver(owner: Owner, entry: Entry) -> None:
    """Notify the owner of an entry, whatever the request or its error raises meanwhile."""
    try:
        try:
            owner.finished(entry)
        except BaseException:  # noqa: BLE001 - perhaps an interrupt of this thread
            owner.finished(entry)
    except BaseException as error:  # noqa: BLE001 - the owner must not wait for ever
        _log.error("an outcome could not be delivered", exc_info=error)
        entry.refuse(refuses_change(error) if entry.error is None else entry.error)
        with suppress(BaseException):  # the dict is left alone from now on
            owner.finished(entry)
