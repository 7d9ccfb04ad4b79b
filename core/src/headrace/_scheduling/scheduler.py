"""The scheduler of one node: how requests come in, and how their owners take them back.

One lock per node guards the waiting line, the instances and the states of the requests; only free
instances on a rack are taken without it. The main thread never takes it. The parts:

- `direct`, `claiming`: callers that find an instance free and run their own request;
- `admission`: who is let into the line; `circles`: who would wait there for ever;
- `submission`: owners that do not wait in the calling thread;
- `dispatch`: which batch is due, on which instance; `assignment`: which thread runs it;
- `driving`, `crew`: those threads;
- `exchange`: new instances in place of the old ones;
- `closing`: the end;
- `reentrant`, `errands`: what is asked for in the main thread, or where a lock is held;
- `node`: what they share, and the one outcome of every request.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headrace._scheduling.admission import held_here, unfit
from headrace._scheduling.calls import reentrant
from headrace._scheduling.entry import RUNNING, own_error
from headrace._scheduling.fast_path import FastPath
from headrace._scheduling.instance import RETURNING, Limits, new_idle_lists
from headrace._scheduling.locks import Signal, taking
from headrace._scheduling.statistics import Counts, add_counts, summary
from headrace._scheduling.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace.errors import ClosedError

__all__ = ["Limits", "Scheduler"]


class Scheduler(FastPath, Submission):
    """The queue and the instances of one node; every method may be called from any thread.

    Args: see `SchedulerBase`.
    """

    # New instances in place of the old ones, while requests wait and run. Not called by the main thread.

    def exchange(self, new: Scheduler, retired: Signal, *, keeps_policies: bool) -> list[Instance]:
        """Put the instances and the keys of ``new`` in place of its own.

        What waits goes to the new instances; what weighs more than any of them takes is refused.

        Args:
            new: A scheduler that nobody has called and nobody will.
            retired: Woken when the batch of an old instance ends.
            keeps_policies: Whether its own policies stay.

        Returns:
            The old instances, which are in nobody's service any more and may still run a batch;
            `take_retired` gives those that run none. The caller calls `notify` once it holds no lock.
        """
        node = self._node
        with taking(node.lock):
            old = node.instances
            for instance in old:
                instance.retired = retired
            node.retiring = [*node.retiring, *old]
            node.instances = self.instances = list(new.instances)
            node.every = [*node.instances, *node.retiring]
            # The idle lists are replaced before their instances are looked at. A caller pops an instance
            # of an old list, and looks then whether that list still stands. Either it popped it before
            # and holds it here, or it sees the new lists, and gives the instance back.
            node.idle_lists = new_idle_lists()
            self._idle_list = node.idle_lists[0]
            node.free, node.publishes = list(new.instances), new._node.publishes
            node.limits = self.limits = new.limits
            node.lost = False
            node.measure(node.instances)
            self._unqueued_max, self._linger = new._unqueued_max, new._linger
            if not keeps_policies:
                self._dispatcher.use(new._dispatcher)
            self._workers.trim(len(node.every))
            for entry in [*node.queue, *node.outside]:
                error = unfit(node, entry)
                if error is not None:
                    node.settle_waiting(error, [entry])
            node.let_in()
            self._dispatcher.dispatch(None)
            return old

    def notify(self) -> None:
        """Notify the owners of entries that `exchange` has settled; without any lock."""
        self._node.notify()

    def take_retired(self, among: Sequence[Instance]) -> list[Instance]:
        """Give those of the old instances whose last batch has ended; each is given once.

        Their counts stay with the node.
        """
        node = self._node
        with node.section, node.lock:
            ended = [i for i in node.retiring if i in among and i.holder is None]
            for instance in ended:
                node.past.absorb(instance)
            node.retiring = [i for i in node.retiring if i not in ended]
            node.every = [*node.instances, *node.retiring]
            self._workers.trim(len(node.every))
            return ended

    # The end: newcomers refused, what waits run or failed, what still runs left behind.

    @reentrant()
    def refuse(self, error: ClosedError, *, drain: bool) -> None:
        """Refuse newcomers from now on; fail those that wait for room, and all without drain."""
        node = self._node
        with node.section, node.lock:
            # As in `exchange`: a caller that pops an instance of an old list sees the new ones then.
            old, node.publishes = node.idle_lists, False
            node.idle_lists = new_idle_lists()
            self._idle_list = node.idle_lists[0]
            self._unqueued_max = 0
            node.collect(old)
            if node.refusing is None:
                node.refusing = error
            node.settle_waiting(error, list(node.outside))
            if not drain:
                node.settle_waiting(error, list(node.queue))
            self._dispatcher.dispatch(None)

    @reentrant()
    def wait_quiet(self, timeout_s: float) -> bool:
        """Wait until nothing waits or runs; False when the time was over first."""
        until = time.monotonic() + timeout_s
        signal = Signal()
        with self._node.section, self._node.lock:
            self._node.add_closer(signal)
        while True:
            with self._node.section, self._node.lock:
                if self._node.quiet:
                    return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            signal.sleep(left)

    @reentrant()
    def fail_open(self, error: ClosedError, retire: Callable[[Instance], None]) -> None:
        """Fail all that is still open; those a backend runs on are abandoned.

        Args:
            error: What they get.
            retire: Called with each instance whose batch ends later.
        """
        node = self._node
        with node.section, node.lock:
            node.dead = True
            node.retire = retire
            node.settle_waiting(error, [*node.queue, *node.outside])
            for instance in node.every:
                for entry in instance.entries or ():
                    if entry.state == RUNNING:
                        abandoned = own_error(error)
                        abandoned.abandoned = True  # type: ignore[attr-defined]
                        node.settle(entry, abandoned)

    @reentrant()
    def stop_runners(self) -> None:
        """End the runner threads that sleep; the others end with their batch."""
        with self._node.section, self._node.lock:
            self._workers.stop()

    def after_fork(self, error: ClosedError) -> None:
        """Refuse everything in a child process."""
        self._node.after_fork()
        self._node.idle_lists = new_idle_lists()
        self._idle_list = self._node.idle_lists[0]
        self._node.refusing, self._node.dead, self._unqueued_max = error, True, 0

    # Looking.

    def held_by_this_thread(self) -> bool:
        """Tell whether the calling thread, or one that waits for it, runs a batch of this node."""
        return held_here(self._node)

    @reentrant()
    def idle_instances(self) -> list[Instance]:
        """Give the instances in service on which nothing runs."""
        with self._node.section, self._node.lock:
            return [instance for instance in self.instances if instance.holder is None]

    @reentrant(later=lambda scheduler: scheduler._busy())
    def busy(self) -> bool:
        """Tell whether a batch runs."""
        with self._node.section, self._node.lock:
            return self._busy()

    def _busy(self) -> bool:
        return any(instance.holder is not None for instance in self._node.every)

    @reentrant(later=lambda scheduler: scheduler._statistics_anyhow())
    def statistics(self) -> dict[str, Any]:
        """Give what ``stats()`` shows of the node: the counts are exact, the times sampled."""
        with self._node.section, self._node.lock:
            return self._statistics()

    def _statistics(self) -> dict[str, Any]:
        node = self._node
        total = Counts()
        total.absorb(node.past)
        running = 0
        for instance in node.every:
            # atomic: a caller that claims it without the lock is seen in all three, or in none.
            unqueued = instance.unqueued
            holder = instance.holder
            entries = instance.entries
            # end atomic
            total.absorb(instance, unqueued=unqueued)
            running += _running(holder, entries)
        add_counts(total.failures, node.failures)
        waiting = node.queue.count + len(node.outside)
        counts = summary(
            total, submitted=total.unqueued + node.entered, waiting=waiting, running=running
        )
        counts["instances"] = [instance.statistics() for instance in node.instances]
        return counts

    def _statistics_anyhow(self) -> dict[str, Any]:
        """Give the counts as they are at some moment in between: the calling thread holds a lock."""
        while True:
            try:
                return self._statistics()
            except RuntimeError:  # another thread has changed a dict meanwhile
                continue


def _running(holder: object, entries: Sequence[Entry] | None) -> int:
    """Count the open requests on an instance."""
    if holder is None or holder is RETURNING:
        return 0
    if entries is None:
        return 1  # a caller's own, past the queue
    return sum(1 for entry in entries if entry.state == RUNNING)
