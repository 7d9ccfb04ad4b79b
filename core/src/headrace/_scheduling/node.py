"""What the parts of a node's scheduler share: the queue, the instances, the open requests.

There is one way to change it: ``with node.section, node.lock:``, see `Section`.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

from headrace._checked import largest_size
from headrace._scheduling.entry import DONE, NEW, NOBODY, OUTSIDE, QUEUED, Entry, own_error
from headrace._scheduling.instance import Counts, FreeInstances
from headrace._scheduling.locks import Watchers, outermost, taking
from headrace._scheduling.process_threads import errands
from headrace._scheduling.queue import NodeQuota, RequestQueue
from headrace._scheduling.threads import Blocked, Caller
from headrace.errors import InstanceLostError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.instance import Instance, Limits
    from headrace._scheduling.probes import Reporter
    from headrace.errors import ClosedError


take = deque.popleft

_log = logging.getLogger("headrace.scheduling")


class Section:
    """One section under the lock of a node: ``with node.section, node.lock:``.

    Before the lock is taken this notes it for `headrace._scheduling.locks.holds_a_lock`. Under the lock,
    whoever changes the queue, the free instances or the state of an entry calls `Dispatcher.dispatch`
    last, so that no batch that is due is left behind. After the lock has been left this notifies the
    owners of all entries that were settled: nothing of the user's runs under the lock.

    The lock itself is the inner context of the two, for it is left in one step of the interpreter,
    whatever is raised in here.
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
    """The state of one node. All of it is read and changed in a `Section`.

    Attributes:
        name, limits, clock: See `Scheduler`.
        instances: The instances in service.
        retiring: Those taken out of service whose last batch has not ended.
        every: Both.
        past: The counts of instances that are gone.
        queue: The requests that wait.
        enough: While instances are idle though requests wait: the weight from which on an arrival may
            make a batch due, as the batch policy said when it was asked last.
        outside: The requests that wait for room in the queue, first come first served.
        quota: Counts the requests that entered here and wait at other nodes.
        callers: The threads that wait for their requests here.
        entered: How many requests came in by the queue.
        failures: How many requests failed without reaching an instance, by code.
        refusing: Why newcomers are refused, None while they are not.
        dead: Whether what is open has been failed, too: nothing runs any more.
        retire: Called, after the section, with each instance whose batch ends when all is dead.
        wake_at: When somebody will look at the queue again, None for never.
        waker: The caller who will; None for the timer.
        min, max: Weights that some living instance takes.
        needs_result: Whether a request that ends without a ``result`` has failed.
        lost: Whether no instance lives.
        dispatch: That of the `Dispatcher`, which sets it.
        afterwards: What is to be called as soon as the lock is left.
        settled: Entries whose owners are to be notified: the thread that pops one does so.
        closers: The threads that wait until it is `quiet`.
        section, lock: See `Section`.
        reporter: Tells the probes; None where none listens. With one, callers that wait are notified of their
            outcome, as all other owners are; else `settle` counts it for them.
    """

    def __init__(
        self, name: str, instances: Sequence[Instance], limits: Limits, clock: Callable[[], float]
    ) -> None:
        super().__init__(instances)
        self.name = name
        self.limits = limits
        self.clock = clock
        self.lock = threading.RLock()
        self.section = Section(self)
        self.instances = list(instances)
        self.retiring: list[Instance] = []
        self.every = self.instances
        self.past = Counts()
        self.afterwards: deque[Callable[[], object]] = deque()
        self.queue = RequestQueue(self.evict, self.afterwards)
        self.enough: float = 0
        self.outside: OrderedDict[Entry, None] = OrderedDict()
        self.quota = NodeQuota(self.outside, self.move_up, sheds=limits.queue_full == "shed_oldest")
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
        self.dispatch: Callable[[None], object] = lambda _: None
        self.settled: deque[Entry] = deque()
        self._unnotified: dict[Entry, None] = {}  # all that is settled, until its owner is notified
        self.closers = Watchers()
        self.reporter: Reporter | None = None
        self.measure(self.instances)
        for instance in self.instances:
            instance.limits = limits

    def measure(self, living: Sequence[Instance]) -> None:
        """Take the range of the living instances as that of the node."""
        # No batch weighs more than the largest size that an instance takes, so no request may.
        maxima = [largest_size(self.limits.batch_sizes, i.max) for i in living] or [None]
        self.max = None if None in maxima else max(maxima)  # type: ignore[type-var]
        self.min = min((i.min for i in living), default=1)

    def after_fork(self) -> None:
        """Take another lock in a child process: this one may have been held by another thread."""
        self.lock = threading.RLock()

    # Entries.

    def arrived(self, entry: Entry) -> None:
        """Dispatch after an entry has come, where that may make a batch due."""
        if entry.state == QUEUED:
            (swift,), (other,) = self.idle_lists
            idle = self.free or (self.publishes and (swift or other))
            if not idle or self.queue.weight < self.enough:
                return
        self.dispatch(None)

    def take_out(self, entry: Entry) -> None:
        """Take an entry that waits out of where it waits."""
        self.outside.pop(entry, None)
        self.queue.remove((entry,))

    @property
    def bounded(self) -> int:
        """How many requests that entered here wait, here or elsewhere."""
        return self.queue.count - self.queue.guests + len(self.quota.waiting)

    @property
    def full(self) -> bool:
        """Whether as many requests that entered here wait, here or elsewhere, as may."""
        queue = self.queue
        return queue.count - queue.guests + len(self.quota.waiting) >= self.limits.queue_size

    def let_in(self) -> None:
        """Let in who waits for room, first come first served."""
        while self.outside:
            entry = next(iter(self.outside))
            if self.full and (entry.waits is None or not entry.waits.entered):
                return
            if entry.state != QUEUED:
                self.queue.push(entry)
            del self.outside[entry]
            if entry.room is not None:
                entry.room.wake()

    def move_up(self) -> None:
        """Let in who waits for room, once a request that entered here waits elsewhere no more."""
        with self.section, self.lock:
            self.dispatch(None)

    def settle(self, entry: Entry, error: BaseException | None, at: Instance | None = None) -> None:
        """Give an entry its one outcome. Whoever is notified of it gives the dict back first.

        Args:
            entry: An entry that is not DONE.
            error: None for success.
            at: The instance that ran it, which counts the failure.
        """
        owner = entry.owner
        entry.state = DONE
        if error is not None:
            entry.error = error
            failures = self.failures if at is None else at.failures
            code = entry.code or code_of(error)
            failures[code] = failures.get(code, 0) + 1
        if entry.alarm is not None:
            entry.alarm.cancel()
        if entry.room is not None:
            entry.room.wake()
        if (
            self.reporter is not None
            or not isinstance(owner, Blocked)
            or not owner.ends(entry, self.afterwards)
        ):
            if self.reporter is not None:
                self.reporter.settled(entry)
            self._unnotified[entry] = None
            self.settled.append(entry)
        if error is not None and hasattr(owner, "group_of"):
            self._cancel_group(owner.group_of(entry))

    def _cancel_group(self, group: list[Entry]) -> None:
        """Cancel what waits and is of no use any more, for one of its group has failed."""
        from concurrent.futures import CancelledError

        waiting = [entry for entry in group if entry.state in (QUEUED, OUTSIDE)]
        group.clear()
        if waiting:
            self.settle_waiting(CancelledError(), waiting)

    def settle_waiting(self, error: BaseException, entries: Sequence[Entry]) -> None:
        """Fail entries that wait, each with an error of its own."""
        for entry in entries:
            self.take_out(entry)
            if entry.state != DONE:
                self.settle(entry, own_error(error))

    def end(self, entry: Entry, failure: Callable[..., BaseException]) -> bool:
        """Fail an entry wherever it is, unless it is DONE; tell whether a backend goes on with its request.

        Args:
            entry: It waits, runs, or has not come yet.
            failure: Makes the error, called as ``failure(node, running=...)``.
        """
        self.take_out(entry)
        if entry.state == DONE:
            return False
        running = not entry.take_back()
        if entry.state == NEW:
            self.entered += 1
        self.settle(entry, failure(self, running=running))
        return running

    def evict(self, entry: Entry, error: BaseException) -> None:
        """Fail an entry whose request makes way at another node. Without any lock."""
        with self.section, self.lock:
            if entry.state == QUEUED:  # else it runs by now, and counts no more
                self.settle_waiting(error, [entry])
                self.dispatch(None)  # those behind it move up

    # Notifying.

    def notify(self) -> None:
        """Do what was left for after the section, and notify the owners of what was settled.

        Without the lock. While this thread notifies, another may settle entries under the lock: either
        this thread pops them, too, and the other finds nothing to do; or the other does. Whatever goes
        wrong with one owner, the others are notified.
        """
        afterwards = self.afterwards
        while afterwards:
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
                # The entry leaves the queue and gets its name in one step of the interpreter.
                (entry,) = map(take, (self.settled,))
                if self.reporter is not None:
                    self.reporter.answers(entry)
                self._notify_one(entry)
                entry = None
        except IndexError:  # another thread was quicker
            pass
        finally:
            if entry is not None:  # something hit this thread
                self.settled.appendleft(entry)
                self._notify_owners()

    def _notify_one(self, entry: Entry) -> None:
        if isinstance(entry.owner, Caller):
            self._answer(entry.owner, entry)
            return
        try:
            try:
                entry.owner.finished(entry)
            except BaseException:  # noqa: BLE001 - it may be meant for the thread, and not for the entry
                entry.owner.finished(entry)
        except BaseException as error:  # noqa: BLE001 - the others must be notified
            _log.error("node %s: an outcome could not be delivered", self.name, exc_info=error)
        entry.owner = NOBODY  # an owner knows its entry: together they would be garbage
        self._unnotified.pop(entry, None)

    def _answer(self, caller: Caller, entry: Entry) -> None:
        """Let a caller that waits count an outcome; a second time changes nothing."""
        with taking(self.lock):
            if entry in self._unnotified:
                # atomic: an interrupt finds both, or none.
                caller.pending -= 1
                del self._unnotified[entry]
                # end atomic
                caller.release()
            self.look_if_quiet()

    def forget(self, entry: Entry) -> None:
        """Let nothing wait any more for an owner that has gone to be notified."""
        self._unnotified.pop(entry, None)

    # Instances.

    def give_back(self, instance: Instance) -> None:
        """Take an instance back from its holder."""
        if instance.retired is None and instance.lost is not None and instance.lost.gone:
            self.lose(instance)
            return
        instance.ident = 0
        instance.holder = None
        if instance.retired is None:
            instance.away = instance.lost is not None and bool(instance.lost.away)
            if not instance.away:
                self.free.append(instance)
        self.ended(instance)

    def ended(self, instance: Instance) -> None:
        """Say that a batch has ended to whoever closes its instance."""
        if instance.retired is not None:
            instance.retired.wake()
        if self.retire is not None:
            self.afterwards.append(partial(self.retire, instance))

    # The end.

    @property
    def quiet(self) -> bool:
        """Whether newcomers are refused and nothing waits, runs or is yet to be delivered."""
        return (
            self.refusing is not None
            and not self.queue.count
            and not self.outside
            and not self._unnotified
            and all(instance.holder is None for instance in self.every)
        )

    def look_if_quiet(self) -> None:
        """Wake those who wait for quiet, if it is."""
        if self.closers and self.quiet:
            self.closers.wake()

    def lose(self, instance: Instance) -> None:
        """Take an instance out of service that serves no more, with all that only it could serve."""
        if instance in self.free:
            self.free.remove(instance)
        instance.ident = 0
        instance.holder = None
        self.ended(instance)
        if instance.retired is not None:
            return
        if self.reporter is not None:
            self.afterwards.append(partial(self.reporter.changed, "lost", [instance]))
        living = [i for i in self.instances if i.living]
        self.measure(living)
        self.lost = not living
        error = self.no_instance() if not living else None
        for entry in [*self.queue, *self.outside]:
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
