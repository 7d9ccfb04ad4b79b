"""Which thread runs a batch (a caller that waits, a runner, the thread that owns the instance), or looks for one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace._scheduling.entry import RUNNING, own_error
from headrace._scheduling.instance import BARGE_S, FAST_S, SWIFT_S
from headrace._scheduling.threads import Caller, Runner, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._scheduling.batch import Errors
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node
    from headrace._scheduling.process_threads import Timer
    from headrace._scheduling.threads import Worker, Workers


SUSTAINED = 8
"""While the pressure (see `Assignment`) is above this, a runner takes the batches of a slow backend: a
runner goes on with batch after batch, where callers take turns. Each turn costs a switch of threads,
and on busy processors the thread that is woken may wait long for a processor."""


class Assignment:
    """Gives batches to threads, and takes instances back. All methods run in a `Section` of the node.

    Attributes:
        workers: The runners.
        pressure: How many batches were cut, less how often `dispatch` left an instance free and the queue
            empty; kept between 0 and twice `SUSTAINED`.
    """

    # Set by `Driver`.
    _node: Node
    _timer: Timer
    workers: Workers
    _post: Callable[[Work], bool]
    pressure = 0

    # Leaving the queue to other threads.

    def _pass_by(self, me: Caller, instance: Instance) -> bool:
        """Tell whether a caller leaves a free instance to a thread that is waking up, and wake one if need be."""
        return self._nudge(me, instance) or (me.pending > 0 and self.is_waking(instance))

    def _nudge(self, me: Caller, instance: Instance) -> bool:
        """Wake the first caller of the queue instead of giving it an instance; tell whether it was woken.

        A caller ``me`` whose time for batches of others is over leaves the instance of a swift backend
        free: until the first caller is awake, a newcomer may claim the instance. An instance that was
        given to the first caller at once would be idle for a switch of threads each time. Once the
        first caller has waited for `BARGE_S`, it is given the instance.
        """
        if me.pending or me.foreign_until is None or instance.mean_s >= SWIFT_S:
            return False
        if time.perf_counter() < me.foreign_until:
            return False
        (oldest,) = self._node.queue.head(1)
        owner = oldest.owner
        if not isinstance(owner, Caller) or not owner.parked or not owner.runs:
            return False
        if self._node.clock() - oldest.arrival >= BARGE_S:
            return False
        owner.nudged = True
        owner.signal.wake()
        return True

    def crowded(self, instance: Instance) -> bool:
        """Tell whether many callers whose requests are answered have yet to wake up.

        A caller that ran batch after batch would keep them from waking up where the backend holds the
        interpreter lock. So a runner takes the batch, and the next requests of callers that wake up
        before it begins join the batch. A swift backend is done before a thread wakes up.
        """
        node = self._node
        most = 2 * len(node.instances)
        if len(node.callers) <= most or instance.mean_s < SWIFT_S:
            return False
        running = sum([len(other.entries or ()) for other in node.instances])
        return len(node.callers) - node.queue.count - running > most

    def is_waking(self, instance: Instance) -> bool:
        """Tell whether a thread is waking up to run a batch that a request should join.

        Where a batch takes about as long as a switch of threads, waiting for that thread costs less
        than one more batch. And if the backend holds the interpreter lock, a caller that ran its
        request by itself would keep that thread from waking up at all.
        """
        if not SWIFT_S <= instance.mean_s < FAST_S:
            return False
        for other in self._node.instances:
            holder = other.holder
            if holder is self.workers.backlog or (isinstance(holder, Caller) and holder.work):
                return other.max is None or other.running_weight < other.max
        return False

    # Giving batches to threads.

    def _runs(self, me: Caller | Worker | None, work: Work) -> bool:
        """Let ``me``, the thread that has cut a batch, run the batch if it may; tell whether it does."""
        instance = work.instance
        if me is None or not _may_run(me, work):
            return False
        if isinstance(me, Caller) and self.crowded(instance):
            return False
        instance.holder = me
        instance.ident = me.ident
        return True

    def give(self, work: Work) -> None:
        """Give ``work`` to the thread that owns the instance; else a parked caller of the batch, or a runner."""
        instance = work.instance
        if instance.thread is not None:
            if not self._post(work):
                self.fail(work, self._node.no_instance())
                self._node.lose(instance)
            return
        slow = instance.mean_s >= FAST_S
        if (slow and self.pressure > SUSTAINED) or self.crowded(instance):
            self.workers.give(work)
            return
        for entry in work.entries:
            owner = entry.owner
            if (
                isinstance(owner, Caller)
                and owner.parked
                and owner.work is None
                and _may_run(owner, work)
            ):
                owner.signal.wake()
                owner.work = work
                instance.holder = owner
                return
        self.workers.give(work)

    def _give_claimed(self) -> None:
        """Give the batches for which no thread was found yet to other threads, after an exception hit this one."""
        node = self._node
        for instance in node.every:
            entries = instance.holder
            if isinstance(entries, list) and instance.entries is entries:
                node.queue.remove(entries, RUNNING)
                node.free = [one for one in node.free if one is not instance]
                self.give(Work(instance, entries))
            elif isinstance(entries, list):
                instance.holder = None
        if self.workers.backlog:
            self.workers.call_one()

    def fail(self, work: Work, error: BaseException) -> None:
        """Give back an instance and fail its batch, which did not run to its end."""
        self.settle(work, [own_error(error) for _ in work.entries])
        self.release(work)

    def release(self, work: Work) -> None:
        """Give back the instance of a settled batch. Call `dispatch` next, or requests that wait would not get it."""
        instance, entries = work
        if instance.entries is entries:
            self._node.give_back(instance)

    def settle(self, work: Work, errors: Errors) -> None:
        """Settle the entries of a batch; an entry that was settled while the batch ran keeps its outcome."""
        instance, entries = work
        settle = self._node.settle
        if errors is None:
            for entry in entries:
                if entry.state == RUNNING:
                    settle(entry, None, instance)
            return
        for entry, error in zip(entries, errors, strict=True):
            if entry.state == RUNNING:
                settle(entry, error, instance)

    # Which thread looks at the queue at a time.

    def _plan(self, wake_at: float, me: Caller | Worker | None) -> None:
        """Have the queue looked at when ``wake_at`` comes: by ``me``, a caller about to sleep, or by the timer."""
        node = self._node
        if node.wake_at is not None and node.wake_at <= wake_at:
            return
        if isinstance(me, Caller) and me.pending:
            node.wake_at = me.wake_at = wake_at
            node.waker = me
            return
        self._timer.call_at(wake_at, self._woken)
        node.wake_at = wake_at
        node.waker = None

    def _woken(self) -> None:
        """Dispatch when the timer calls, as `_plan` asked it to."""
        node = self._node
        with node.section, node.lock:
            if node.waker is None:
                node.wake_at = None
            node.dispatch(None)

    def resign(self, caller: Caller) -> bool:
        """Take from a caller its duty to look at the queue at a time; True when the caller had that duty."""
        node = self._node
        caller.wake_at = None
        if node.waker is not caller:
            return False
        node.waker = node.wake_at = None
        return True


def _may_run(me: Caller | Worker, work: Work) -> bool:
    """Tell whether a thread may run ``work``; a caller runs batches of others for `FAST_S` in all."""
    if not isinstance(me, Caller):  # a runner runs instances that no thread owns
        return work.instance.thread is (None if isinstance(me, Runner) else me)
    if not me.runs or work.instance.thread is not None:
        return False
    own = [entry.owner is me for entry in work.entries]
    if any(own):
        return True
    if work.instance.mean_s >= FAST_S:
        return False
    now = time.perf_counter()
    if me.foreign_until is None:
        me.foreign_until = now + FAST_S
    return now < me.foreign_until
