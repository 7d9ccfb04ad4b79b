"""The scheduler of one node: how requests come in, and how their owners withdraw them.

One lock per node guards the queue, the instances and the states of the entries; only free instances
on the idle list are taken without the lock. The main thread never takes it. The parts, from the bottom:

- `locks`, `process_threads`, `calls`: calls of the main thread, or of a thread that holds a lock;
- `entry`, `instance`, `queue`: the data; `threads`: which threads run batches, and wait for each other;
- `node`: the state that the parts share, the one outcome of every entry, and the section under the lock;
- `admission`: which entries come into the queue; `batch`: running one batch;
- `dispatch`: which batch is due, on which instance; `assignment`: which thread runs it;
- `driving`: the threads at work; `sleeper`: callers that run nothing, along a chain of nodes;
- `base`: callers that wait; `fast_path`: callers that find an instance free;
- this module: owners that do not wait; new instances in place of the old ones; the end; statistics.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._portable import is_abandoned
from headrace._scheduling.admission import enter, held_here, refuse_endless, unfit, withdrawn
from headrace._scheduling.calls import reentrant
from headrace._scheduling.entry import DONE, ENTERED, NOBODY, OUTSIDE, RUNNING, WAITING
from headrace._scheduling.fast_path import FastPath
from headrace._scheduling.instance import RETURNING, Counts, summary
from headrace._scheduling.locks import Signal, may_lock, taking
from headrace._scheduling.process_threads import errands
from headrace._scheduling.threads import Caller
from headrace.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node
    from headrace.keys import Request


class Scheduler(FastPath):
    """The queue and the instances of one node; every method may be called from any thread.

    Args: see `SchedulerBase`.
    """

    # Owners that do not wait in the calling thread, and are notified: futures, coroutines, graphs.

    def let_in(
        self,
        *entries: Entry,
        waits_for_room: Callable[[], object] | None = None,
        internal: bool = False,
        waits: bool = False,
    ) -> None:
        """Let in entries whose owners are notified of their outcome; the calling thread may take locks.

        The entries arrive together: no batch is cut before all are in, except where the queue is full.

        Args:
            entries: New entries.
            waits_for_room: Where given, this returns only when each entry is in the queue or done; the
                function tells whether this thread runs a batch that the room may depend on, and would
                wait for ever.
            internal: The entries come from another node of this pipeline; closing does not refuse them.
            waits: The owner waits in this thread: the event loop of a coroutine.
        """
        node, now = self._node, self._node.clock()
        for entry in entries:
            self._set_times(entry, now)
        outside: list[Entry] = []
        with node.section, node.lock:
            enter(node, entries, internal=internal, waits=waits)
            for entry in entries:
                if entry.deadline is not None and entry.state != DONE:
                    entry.alarm = self._timer.call_at(entry.deadline, partial(self._expire, entry))
            if waits_for_room is not None:
                outside = [entry for entry in entries if entry.state == OUTSIDE]
                for entry in outside:
                    entry.room = Signal()
            if len(entries) == 1:
                node.arrived(entries[0])
        if len(entries) > 1:
            # The owners of refused entries were notified after the section above, and have cancelled the
            # entries that are of no use without those: these come into no batch.
            with node.section, node.lock:
                node.dispatch(None)
        if outside and waits_for_room is not None and waits_for_room():  # it would wait for ever
            with node.section, node.lock:
                refuse_endless(node, [entry for entry in outside if entry.state == OUTSIDE])
        for entry in outside:
            entry.room.sleep()  # type: ignore[union-attr]

    submit = reentrant()(let_in)

    def lets_in(self, entry: Entry) -> bool:
        """Let in one entry whose owner waits in this thread, if nothing is in its way; else `let_in` decides.

        Returns:
            Whether the entry has come in; if not, nothing has changed.
        """
        node = self._node
        if entry.deadline is not None or not may_lock():
            return False
        entry.arrival = node.clock()
        entry.scheduler = self
        with node.section, node.lock:
            if node.refusing is not None or node.lost or node.outside or node.full:
                return False
            too_heavy = node.max is not None and entry.weight > node.max
            if too_heavy or (not node.has_idle and held_here(node)):
                return False
            node.entered += 1
            entry.state = ENTERED
            node.queue.push(entry)
            node.arrived(entry)
        return True

    @reentrant(later=lambda scheduler, entry: errands.run(scheduler.cancel, entry))
    def cancel(self, entry: Entry) -> bool:
        """Withdraw an entry that waits, or has not come yet; False when it runs or is done.

        Where the calling thread holds a lock, a helper thread does so a moment later, and this is not True.
        """
        nodes = cancel_all([(entry, self)])
        for node in nodes or ():
            node.notify()
        return nodes is not None

    @reentrant()
    def cancel_together(self, entries: Sequence[Entry]) -> None:
        """Withdraw those of the entries that wait; none of them begins in place of another."""
        with self._node.section, self._node.lock:
            for entry in entries:
                if entry.state in WAITING:
                    if isinstance(entry.owner, Caller):  # it wakes, and finds its request over
                        self._node.fail(entry, withdrawn)
                    else:
                        self._take_back(entry)
            self._driver.dispatch(None)

    def _take_back(self, entry: Entry) -> bool:
        """End an entry whose owner wants no outcome; True if a backend still runs on it. Under the lock."""
        entry.owner, entry.group = NOBODY, None
        return self._node.fail(entry, withdrawn)

    def place(self, entry: Entry | None) -> tuple[Node, object]:
        """Give where an entry waits or runs, for `headrace._scheduling.threads`."""
        return self._node, entry

    @reentrant(later=lambda _, entry: entry.state == RUNNING)
    def abandon(self, entry: Entry) -> bool:
        """Drop an entry whose owner was freed; True when a backend still runs on its request."""
        with self._node.section, self._node.lock:
            if entry.state == RUNNING:
                return self._take_back(entry)
        reporter = self._node.reporter
        returning = reporter is not None and entry in reporter.returning
        return returning or is_abandoned(entry.error)

    def _expire(self, entry: Entry) -> None:
        with self._node.section, self._node.lock:
            self._driver.expire(entry)
            self._driver.dispatch(None)

    # New instances in place of the old ones, while requests wait and run. Not called by the main thread.

    def exchange(self, new: Scheduler, retired: Signal, *, keeps_policies: bool) -> list[Instance]:
        """Put the instances and the keys of ``new`` in place of those of this scheduler.

        Entries that wait go to the new instances; an entry that weighs more than these take is refused.

        Args:
            new: A scheduler that no thread has called or will call.
            retired: Woken when the batch of an old instance ends.
            keeps_policies: Whether the policies of this scheduler stay.

        Returns:
            The old instances. They are out of service and may still run a batch; `take_retired` gives
            those that run none. The calling thread calls `notify` once it holds no lock.
        """
        node = self._node
        with taking(node.lock):
            old = node.instances
            for instance in old:
                instance.retired = retired
            node.retiring = [*node.retiring, *old]
            node.instances = self.instances = list(new.instances)
            self._watch()
            node.every = [*node.instances, *node.retiring]
            # This thread replaces the idle list now, and `take_retired` looks for holders later. A caller
            # that pops an old instance sets its holder first, and looks then whether the list still
            # stands. Either `take_retired` finds the holder, or the caller sees the new list and gives
            # the instance back.
            self._replace_idle_list()
            node.free, node.publishes = list(new.instances), new._node.publishes
            node.limits = new._node.limits
            node.lost = False
            node.measure(node.instances)
            self._unqueued_max, self._linger = new._unqueued_max, new._linger
            if not keeps_policies:
                self._driver.use(new._driver.policies)
            self._driver.workers.trim(len(node.every))
            for entry in [*node.queue, *node.outside]:
                error = unfit(node, entry)
                if error is not None:
                    node.fail_waiting(error, [entry])
            self._driver.dispatch(None)
            if node.reporter is not None:
                for state, instances in (("retired", old), ("ready", new.instances)):
                    node.afterwards.append(partial(node.reporter.changed, state, instances))
            return old

    def _replace_idle_list(self) -> None:
        self._node.idle = self._idle_list = (deque(),)

    def notify(self) -> None:
        """Notify the owners of the entries that `exchange` has settled; called without any lock."""
        self._node.notify()

    def take_retired(self, among: Sequence[Instance]) -> list[Instance]:
        """Give the old instances whose last batch has ended, each once; the node keeps their counts."""
        node = self._node
        with node.section, node.lock:
            ended = [i for i in node.retiring if i in among and i.holder is None]
            for instance in ended:
                node.counts.absorb(instance)
            node.retiring = [i for i in node.retiring if i not in ended]
            node.every = [*node.instances, *node.retiring]
            self._driver.workers.trim(len(node.every))
            return ended

    # The end: newcomers are refused, entries that wait run or fail, batches that still run are left behind.

    @reentrant()
    def refuse(self, error: ClosedError, *, drain: bool) -> None:
        """Refuse newcomers; fail the entries that wait for room, and without ``drain`` those that wait at all."""
        node = self._node
        with node.section, node.lock:
            # As in `exchange`: a caller that pops an instance of the old idle list then sees the new list.
            old, node.publishes = node.idle, False
            self._replace_idle_list()
            self._unqueued_max = 0
            node.collect(old)
            if node.refusing is None:
                node.refusing = error
            node.drains &= drain
            node.fail_waiting(error, [*node.outside, *(() if drain else node.queue)])
            self._driver.dispatch(None)

    def refusal(self, request: Request) -> ClosedError | None:
        """Give the error of a request that nothing lets in, as ``each`` over an empty list; None while open."""
        refusing = self._node.refusing
        error = None if refusing is None else refusing._passing(passes=False)
        if error is not None:
            error.begun = False
            self.count_refused(request, error)
        return error

    @reentrant()
    def wait_quiet(self, until: float) -> bool:
        """Wait until the node is quiet, see `Node.quiet`; False when ``until`` came first."""
        return self._node.closers.wait(self._is_quiet, until)

    def _is_quiet(self) -> bool:
        with self._node.section, self._node.lock:
            return self._node.quiet

    @reentrant()
    def fail_open(self, error: ClosedError, retire: Callable[[], object]) -> None:
        """Fail all entries that are still open; those on which a backend runs are abandoned.

        Args:
            error: The error of which each entry gets a copy.
            retire: Called when the batch of an instance ends later.
        """

        def left_open(_: Node, *, running: bool) -> BaseException:
            return ClosedError(error.args[0], abandoned=running)

        node = self._node
        with node.section, node.lock:
            node.dead = True
            node.retire = retire
            node.fail_waiting(error, [*node.queue, *node.outside])
            for instance in node.every:
                for entry in instance.entries or ():
                    node.fail(entry, left_open)
                if instance.holder is not None:
                    node.afterwards.extend(instance.presence.ends)

    @reentrant()
    def stop_runners(self) -> None:
        """End the runners that are parked; the other runners end after their batch."""
        with self._node.section, self._node.lock:
            self._driver.workers.stop()

    def after_fork(self, error: ClosedError) -> None:
        """Refuse every request in a child process, where no thread of this node runs."""
        self._node.lock = threading.RLock()  # the thread that holds the old one may not exist here
        self._replace_idle_list()
        self._node.refusing, self._node.dead, self._unqueued_max = error, True, 0

    # Looking.

    def held_by_this_thread(self) -> bool:
        """Tell whether the calling thread, or one that waits for it, runs a batch here or is inside a probe."""
        reporter = self._node.reporter
        return held_here(self._node) or (reporter is not None and reporter.holds(get_ident()))

    def busy(self) -> bool:
        """Tell whether an instance has a holder; takes no lock."""
        return any(instance.holder is not None for instance in self._node.every)

    @reentrant(later=lambda scheduler: scheduler._statistics_anyhow())
    def statistics(self) -> dict[str, Any]:
        """Give what ``stats()`` shows of the node: the counts are exact, the times sampled."""
        with self._node.section, self._node.lock:
            return self._statistics()

    def _statistics(self) -> dict[str, Any]:
        node = self._node
        total = Counts()
        total.absorb(node.counts)
        running = 0
        for instance in node.every:
            # atomic: a caller that claims it without the lock is seen in all three, or in none.
            unqueued = instance.unqueued
            holder = instance.holder
            entries = instance.entries
            # end atomic
            total.absorb(instance, unqueued=unqueued)
            running += _running(holder, entries)
        waiting = node.queue.count + len(node.outside)
        submitted = total.unqueued + node.entered
        counts = summary(total, submitted=submitted, waiting=waiting, running=running)
        counts["instances"] = [instance.statistics() for instance in node.instances]
        return counts

    def _statistics_anyhow(self) -> dict[str, Any]:
        """Give the statistics without the lock of the node, since the calling thread holds some lock.

        Other threads go on meanwhile, so the counts may belong to different moments.
        """
        while True:
            try:
                return self._statistics()
            except RuntimeError:  # another thread changed a dict during a loop over it
                continue


def cancel_all(places: Sequence[tuple[Entry, Scheduler]]) -> list[Node] | None:
    """Withdraw all entries, each at its scheduler, or none of them, when one runs or is done.

    Returns:
        The nodes for which the calling thread has yet to call `Node.notify`; None when none was withdrawn.
    """
    schedulers = {id(scheduler): scheduler for _, scheduler in places}
    with ExitStack() as stack:
        # This is the only place where a thread that holds the lock of a node takes that of another. Two
        # threads here take the locks in the same order, so neither waits for the other for ever.
        for _, scheduler in sorted(schedulers.items()):
            stack.enter_context(taking(scheduler._node.lock))
        if not all(entry.state in WAITING for entry, _ in places):
            return None
        for entry, scheduler in places:
            scheduler._take_back(entry)
        for scheduler in schedulers.values():
            scheduler._driver.dispatch(None)
        return [scheduler._node for scheduler in schedulers.values()]


def _running(holder: object, entries: Sequence[Entry] | None) -> int:
    """Count the open requests on an instance."""
    if holder is None or holder is RETURNING:
        return 0
    if entries is None:
        return 1  # a caller's own request, past the queue
    return sum(1 for entry in entries if entry.state == RUNNING)
