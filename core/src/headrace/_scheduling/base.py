"""The base of a scheduler: its parts, and the callers that wait in its queue and run batches meanwhile."""

from __future__ import annotations

import sys
import time
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._portable import is_abandoned
from headrace._scheduling.admission import enter, interrupted, refuse_endless
from headrace._scheduling.assignment import SUSTAINED
from headrace._scheduling.calls import calls_run, errand, reentrant, reset, withdrawn_by
from headrace._scheduling.driving import Driver
from headrace._scheduling.entry import DATA_ALONE, DONE, NEW, NOBODY, Entry, checked_weight
from headrace._scheduling.instance import FAST_S
from headrace._scheduling.locks import main_thread
from headrace._scheduling.node import Node
from headrace._scheduling.process_threads import errands, shared_timer
from headrace._scheduling.queue import RequestQuota
from headrace._scheduling.sleeper import Sleeper
from headrace._scheduling.threads import Caller, Work, cycle_of, waiting
from headrace.errors import ContractError, InputError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.entry import Quota
    from headrace._scheduling.instance import Instance, Limits
    from headrace._scheduling.process_threads import Timer
    from headrace._scheduling.sleeper import Rest
    from headrace.keys import Request
    from headrace.policies import BatchPolicy, DispatchPolicy


ONE_AT_A_TIME: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether threads run Python one at a time (with the GIL), so that all see changes in the same order."""


def refuse_inside(scheduler: SchedulerBase, *_: Any, **__: Any) -> None:
    """Refuse a call that would wait, from a destructor or a policy whose thread holds a lock of a scheduler."""
    what = "a destructor, or a policy, called a pipeline in the midst of its scheduler, and would have to wait"
    raise ContractError(what, node=scheduler.name, hint="Use submit, which does not wait.")


class SchedulerBase:
    """The parts of a scheduler, and the callers that wait in its queue.

    Args:
        name: The name of the node.
        instances: The instances of the node, at least one.
        batch_policy, dispatch_policy: Decide when a batch is cut, and which instance takes it.
        limits: The queue keys of the node.
        clock: Gives seconds, as `time.monotonic` does.
        timer: Calls functions at times of that clock; None for the timer that all schedulers share.
    """

    needs: Sequence[str] = DATA_ALONE
    """The keys without which a request is refused."""

    def __init__(
        self,
        name: str,
        instances: Sequence[Instance],
        batch_policy: BatchPolicy,
        dispatch_policy: DispatchPolicy,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
        timer: Timer | None = None,
    ) -> None:
        self.name = name
        self.instances = list(instances)
        self._timer = timer or shared_timer()
        self._node = node = Node(name, instances, limits, clock)
        self._driver = driver = Driver(node, batch_policy, dispatch_policy, self._timer)
        # `call` reads these for every request, so each is one attribute lookup away.
        self._idle_list = node.idle
        self._queue = node.queue
        self._callers, self._backlog = node.callers, driver.workers.backlog
        self._quota = node.quota
        self._checks_all = False  # set by `check_as_needed`
        self._linger = limits.batching_timeout_ms > 0 and self.max != 1
        self._unqueued_max = self._weight_for_shortcut(batch_policy, limits)
        self._watch()
        node.publishes = ONE_AT_A_TIME and self._unqueued_max > 0
        node.publish()

    def _watch(self) -> None:
        """Have `_look_at` called when an instance in service goes away, comes back or is lost."""
        for instance in self.instances:
            instance.presence.changed = partial(self._look_at, instance)
            instance.away = False

    def _look_at(self, instance: Instance) -> None:
        """Take an instance out of service, or back into it, after its `Presence` has changed."""
        node = self._node
        with node.section, node.lock:
            node.collect()
            is_free = instance in node.free
            if is_free:
                node.free.remove(instance)
            # Else another thread holds the instance, or has popped it and is about to hold it: that thread gives it
            # back later, unless it has done so already and the instance was away then.
            if is_free or (instance.away and instance.retired is None):
                node.give_back(instance)
            self._driver.dispatch(None)

    @property
    def min(self) -> int:
        """The least weight that a living instance takes."""
        return self._node.min

    @property
    def max(self) -> int | None:
        """The greatest weight that a living instance takes; None for unbounded."""
        return self._node.max

    def needs_result(self, value: bool) -> None:
        """Set whether a request that ends without ``result`` has failed; it has not before an ``or``."""
        self._node.needs_result = value

    def _weight_for_shortcut(self, policy: BatchPolicy, limits: Limits) -> int:
        """Give the greatest weight of a request that may skip the queue; 0 where no request may."""
        usable = (
            limits.shortcut
            and policy.sends_when_idle
            and limits.timeout_ms is None
            and len({(i.min, i.max) for i in self.instances}) == 1
            and self.min == 1
            and not limits.batch_sizes
            and all(i.thread is None for i in self.instances)
        )
        if not usable:
            return 0
        return 2**63 if self.max is None else self.max

    def checked(self, request: Any) -> int:
        """Check a request on entry and give its weight.

        Raises:
            InputError: See `checked_weight`; it is counted as a failure of the node.
        """
        try:
            return checked_weight(request, self.name, self.needs)
        except InputError as error:
            if isinstance(request, dict):
                request.pop("result", None)
            self.count_refused(request, error)
            raise

    def checked_again(self, request: Request) -> int:
        """Give the weight of a request that was right where it entered; check only what may be wrong here."""
        if "request_size" in request or "data" not in request or self.needs is not DATA_ALONE:
            return self.checked(request)
        return 1

    @reentrant()
    def count_refused(self, request: Any, error: BaseException) -> None:
        """Count a request that was refused before it entered."""
        node = self._node
        code, reporter = code_of(error), node.reporter
        with node.section, node.lock:
            node.entered += 1
            node.counts.failed(code)
        node.failures.note(error, request)
        if reporter is not None:
            reporter.refused(request, error)

    @reentrant()
    def count_late(self, error: BaseException) -> None:
        """Count as failed a request that ended without an error at this node, but failed after it."""
        node = self._node
        code = code_of(error)
        with node.section, node.lock:
            node.counts.failed(code)
        node.failures.note(error, {})

    def new_quota(self, *, entered: bool = True, is_one: bool = False) -> Quota:
        """Give the quota that counts all waits of a request which enters here, at any node, as one wait.

        Args:
            entered: Whether the request has been let in.
            is_one: Whether the request has been let in and has one entry at a time.
        """
        return self._quota.of_one() if is_one else RequestQuota(self._quota, entered=entered)

    def _set_times(self, entry: Entry, now: float) -> float | None:
        entry.arrival = now
        entry.scheduler = self
        timeout_ms = self._node.limits.timeout_ms
        if timeout_ms is not None:
            own = now + timeout_ms / 1000
            entry.deadline = own if entry.deadline is None else min(own, entry.deadline)
        return entry.deadline

    # Callers that wait.

    @property
    def served_by_workers(self) -> bool:
        """Whether workers serve the queue, so that a caller may sleep meanwhile; never with probes or timeouts."""
        if self._node.reporter is not None or self._node.limits.timeout_ms is not None:
            return False
        first = self.instances[0]
        if first.thread is not None:
            return True
        return self._driver.pressure > SUSTAINED and first.mean_s >= FAST_S

    def _queue_up(
        self,
        me: int,
        request: Request,
        weight: int,
        internal: bool,
        home: SchedulerBase | None,
        rest: Rest | None,
    ) -> Rest | None:
        """Let one request of the calling thread ``me`` go through the queue; raises its error.

        Returns:
            What is left of ``rest``: the nodes after this one to which no worker has moved the request.
        """
        if self.served_by_workers and me != main_thread.ident and me not in calls_run:
            return Sleeper(me, request, weight, self, home, rest).sleep(internal=internal)
        quota = None if home is None else home.new_quota(is_one=True)
        entry = Entry(request, NOBODY, weight, None, 0, quota)
        if me == main_thread.ident:
            self.call_many((entry,), internal=internal)
        else:
            caller = Caller(me, runs=self._set_times(entry, self._node.clock()) is None)
            self._wait(caller, (entry,), internal=internal)
            entry.give_back()
        entry.raise_error()
        return rest

    def call_many(self, entries: Sequence[Entry], *, internal: bool = False) -> None:
        """Run entries for the calling thread and wait for them; each entry then holds its outcome.

        Args:
            entries: New entries; an entry that is DONE already keeps its outcome.
            internal: Whether the entries come from a backend of this pipeline: closing lets these in.
        """
        # A signal handler that interrupts a probe in the main thread, and calls the pipeline, might wait for
        # ever for a lock of that probe: so a helper thread runs all, unless every probe is reentrant.
        if get_ident() != main_thread.ident or self._node.keeps_main_thread_away:
            self._call_many(entries, internal=internal)
            return
        try:
            # A helper thread takes the lock and dispatches. It hands a batch of all the entries back: the
            # main thread runs that batch itself, so that Ctrl-C ends the backend.
            work = self._call_many(entries, internal=internal, hands_over=True)
            if work is not None:
                self._driver.run_and_finish(work)
        except BaseException as raised:
            # `add` is one step: if Ctrl-C comes again before the errand, the instance is given back still.
            errands.add((self._recover_entries, entries))
            try:
                errand(self._recover_entries, entries)
            except BaseException:
                # Ctrl-C came again: else the next call would find the instance in this thread's own hands.
                errand(self._recover_entries, entries)
                raise
            left = (entry.state != DONE or is_abandoned(entry.error) for entry in entries)
            raised.abandoned = abandoned = any(left)  # type: ignore[attr-defined]
            if not abandoned:
                for entry in entries:
                    entry.give_back()
            raise
        if work is not None:
            for entry in work.entries:
                entry.give_back()

    def _enter_and_wait(
        self, entries: Sequence[Entry], *, internal: bool, hands_over: bool = False
    ) -> Work | None:
        """Run entries; with ``hands_over`` return a batch of them all, which the main thread is to run."""
        now = self._node.clock()
        fresh = [entry for entry in entries if entry.state == NEW]
        deadlines = [self._set_times(entry, now) for entry in fresh]
        runs = all(deadline is None for deadline in deadlines)
        caller = Caller(get_ident(), runs=runs)
        work = self._wait(caller, fresh, internal=internal, hands_over=hands_over)
        if work is None:
            for entry in fresh:
                entry.give_back()
        return work

    _call_many = reentrant(later=refuse_inside)(_enter_and_wait)

    def _recover_entries(self, entries: Sequence[Entry]) -> None:
        """Fail entries of the main thread, which was interrupted, and give back the instance of their batch.

        Two helper threads may meet: this one, and the one that lets the entries in. If this thread takes the
        lock first, it settles the entries, and they never enter. If the other is first, this thread finds
        the batch that the other has cut. A second call does nothing.
        """
        node = self._node
        with node.section, node.lock:
            for instance in node.every:
                mine = instance.entries
                if mine and mine[0] in entries and instance.ident == main_thread.ident:
                    self._driver.fail(Work(instance, mine), interrupted(node, running=False))
            for entry in entries:
                if entry.state == NEW:
                    node.fail(entry, interrupted)
            self._driver.dispatch(None)

    def _wait(
        self, caller: Caller, entries: Sequence[Entry], *, internal: bool, hands_over: bool = False
    ) -> Work | None:
        """Let the entries of a caller in and wait for them.

        Returns:
            With ``hands_over`` a batch of all the entries, which the main thread is to run; else None.
        """
        node, me = self._node, caller.ident
        caller.node = node
        outer = waiting.get(me)
        waiting[me] = caller
        try:
            withdrawn_by(partial(self._withdraw, entries))
            with node.section, node.lock:
                # Another thread may have cancelled an entry, and notifies the owner that the entry had then.
                for entry in entries:
                    if entry.state == NEW:
                        entry.owner = caller
                        caller.pending += 1
                node.callers.add(caller)
                enter(node, entries, internal=internal, waits=True)
                idle = node.has_idle
                work = self._driver.dispatch(caller) if idle else None
                if hands_over and work is not None and caller.has_all_in(work):
                    # The main thread holds the instance from now on.
                    caller.ident = work.instance.ident = main_thread.ident or 0
                parks = caller.parked = work is None and caller.pending > 0
                if parks and not (idle and node.has_idle) and cycle_of(caller) is not None:
                    refuse_endless(node, entries)
                    parks = caller.parked = caller.pending > 0
            if caller.ident != me:
                return work
            self._driver.wait(caller, entries, work, parks=parks)
        except BaseException as interrupt:
            with node.section, node.lock:
                self._driver.leave(caller)
            abandoned = self._withdraw(entries)
            interrupt.abandoned = abandoned  # type: ignore[attr-defined]
            for entry in entries:
                entry.give_back()
            raise
        finally:
            reset(waiting, me, outer)
            node.callers.discard(caller)
            caller.keep_signal()
        return None

    def _withdraw(self, entries: Sequence[Entry]) -> bool:
        """Take back entries for which the caller waits no more; True if a backend still runs on any of them."""
        node = self._node
        abandoned = False
        with node.section, node.lock:
            for entry in entries:
                abandoned = node.fail(entry, interrupted) or abandoned
            self._driver.dispatch(None)
        return abandoned
