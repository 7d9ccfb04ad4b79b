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
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling import closing
from headrace._scheduling.admission import Entrance, enter, held_here, interrupted, refuse
from headrace._scheduling.calls import call_run_here
from headrace._scheduling.circles import circle_of, waiting
from headrace._scheduling.claiming import refuse_inside
from headrace._scheduling.crew import Crew
from headrace._scheduling.direct import ONE_AT_A_TIME, Direct
from headrace._scheduling.dispatch import Dispatcher
from headrace._scheduling.driving import Driver, earliest
from headrace._scheduling.entry import DONE, NEW, RUNNING, Entry
from headrace._scheduling.errands import errands
from headrace._scheduling.exchange import Exchange
from headrace._scheduling.executors import Caller, CallerOfGroups, Work
from headrace._scheduling.node import Limits, Node
from headrace._scheduling.reentrant import errand, main_thread, reentrant
from headrace._scheduling.statistics import statistics, statistics_anyhow
from headrace._scheduling.submission import Submission
from headrace._scheduling.timer import shared_timer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.instance import Instance
    from headrace._scheduling.timer import Timer
    from headrace.keys import Request
    from headrace.policies import BatchPolicy, DispatchPolicy

__all__ = ["Limits", "Scheduler"]


class Scheduler(Direct, Submission, Entrance, Exchange, closing.Ending):
    """The queue and the instances of one node; every method may be called from any thread.

    Args:
        name: The node.
        instances: At least one.
        batch_policy, dispatch_policy: Decide when a batch is cut, and which instance takes it.
        limits: The queue keys.
        clock: Seconds, as `time.monotonic`.
        timer: Calls functions at times of that clock.
    """

    _uses_rack = True
    _node_type: type[Node] = Node
    _driver_type: type[Driver] = Driver

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
        self.limits = limits
        self._timer = timer or shared_timer()
        self._node = node = self._node_type(name, instances, limits, clock)
        self._driver = driver = self._driver_type(node)
        self._crew = Crew(name, len(instances), driver, node.starts)
        self._dispatcher = Dispatcher(
            node,
            batch_policy,
            dispatch_policy,
            self._crew,
            self._timer,
            driver.drive_owned,
            driver.lost,
            self._on_wake,
        )
        driver.attach(self._dispatcher, self._crew)
        # What `call` needs, one attribute away.
        self._rack = node.racks[0]
        self._line = node.line
        self._elsewhere = node.elsewhere
        self.outside = node.outside
        self._linger = limits.batching_timeout_ms > 0 and self.max != 1
        self._direct_max = self._weight_for_shortcut(batch_policy)
        node.lays_out = ONE_AT_A_TIME and self._direct_max > 0 and self._uses_rack
        node.lay_out()

    @property
    def min(self) -> int:
        """The least weight that a living instance takes."""
        return self._node.min

    @property
    def max(self) -> int | None:
        """The greatest weight that a living instance takes; None for unbounded."""
        return self._node.max

    def needs_result(self, value: bool) -> None:
        """Say whether a request that ends without a ``result`` has failed: not before an ``or``."""
        self._node.needs_result = value

    def _weight_for_shortcut(self, policy: BatchPolicy) -> int:
        """Give the greatest weight that may skip the queue, 0 for none."""
        usable = (
            self.limits.shortcut
            and policy.sends_when_idle
            and self.limits.timeout_ms is None
            and len({(i.min, i.max) for i in self.instances}) == 1
            and self.min == 1
            and not self.limits.batch_sizes
            and all(i.thread is None for i in self.instances)
        )
        if not usable:
            return 0
        return 2**63 if self.max is None else self.max

    # Callers that wait.

    def _queue_up(
        self, request: Request, weight: int, home: Scheduler | None, *, internal: bool
    ) -> None:
        caller = Caller(get_ident(), pending=1)
        entry = Entry(request, caller, weight=weight)
        if home is not None:
            entry.waits = home.waits()
        deadline = None
        entry.arrival = now = self._node.clock()
        if self.limits.timeout_ms is not None:
            deadline = self._set_times(entry, now)
            caller.runs = False
        self._wait(caller, (entry,), deadline, internal=internal)
        entry.give_back()
        if entry.error is not None:
            raise entry.take_error()  # type: ignore[misc]

    def _queue_up_in_main(
        self, request: Request, weight: int, home: Scheduler | None, *, internal: bool
    ) -> None:
        """Let a request of the main thread pass the queue, and run it here if an instance is idle."""
        entry = Entry(request, None, weight=weight)
        if home is not None:
            entry.waits = home.waits()
        self.call_many((entry,), internal=internal)
        if entry.error is not None:
            raise entry.take_error()  # type: ignore[misc]

    def call_many(
        self,
        entries: Sequence[Entry],
        *,
        internal: bool = False,
        groups: Sequence[list[Entry]] = (),
    ) -> None:
        """Run entries of one calling thread and wait for them; their outcomes are in them.

        Args:
            entries: New entries; those that are DONE already keep their outcome.
            internal: They come from a backend of this pipeline, which closing does not refuse.
            groups: Entries that are cancelled while they wait when one of their group has failed.
        """
        if get_ident() != main_thread.ident or not self._uses_rack:
            self._call_many(entries, groups, internal=internal)
            return
        try:
            # What takes the lock is done by a helper. A batch of all the entries comes back.
            work = self._call_many(entries, groups, internal=internal, hands_over=True)
            if work is not None:
                self._driver.run_and_finish(work)
        except BaseException as raised:
            errands.add((self._give_back, entries))
            errand(self._give_back, entries)
            raised.abandoned = abandoned = any(  # type: ignore[attr-defined]
                entry.state != DONE or getattr(entry.error, "abandoned", False) is True
                for entry in entries
            )
            for entry in () if abandoned else entries:
                entry.give_back()
            raise
        if work is not None:
            for entry in work.entries:
                entry.give_back()

    @reentrant(later=refuse_inside)
    def _call_many(
        self,
        entries: Sequence[Entry],
        groups: Sequence[list[Entry]],
        *,
        internal: bool,
        hands_over: bool = False,
    ) -> Work | None:
        """Run entries; with ``hands_over`` give a batch of them all back, which the main thread runs."""
        now = self._node.clock()
        fresh = [entry for entry in entries if entry.state == NEW]
        for entry in fresh:
            self._set_times(entry, now)
        deadline = earliest(fresh)
        me, runs, pending = get_ident(), deadline is None, len(fresh)
        caller = (
            CallerOfGroups(me, groups, runs=runs, pending=pending)
            if groups
            else Caller(me, runs=runs, pending=pending)
        )
        for entry in fresh:
            entry.owner = caller
        work = self._wait(caller, fresh, deadline, internal=internal, hands_over=hands_over)
        if work is None:
            for entry in fresh:
                entry.give_back()
        if isinstance(caller, CallerOfGroups):
            caller.groups.clear()  # its entries know it: together they would be garbage
        return work

    def _give_back(self, entries: Sequence[Entry]) -> None:
        """Give back the instance that stands ready for entries of the main thread, which was interrupted.

        Either this comes first, and what has not entered never does; or the batch was cut first, and
        is found here. A second time does nothing.
        """
        node = self._node
        ended: list[Instance] = []
        with node.lock:
            for instance in node.every:
                mine = instance.entries
                if mine and mine[0] in entries and instance.ident == main_thread.ident:
                    self._dispatcher.fail(Work(instance, mine), interrupted(node, running=False))
                    ended.append(instance)
            for entry in entries:
                if entry.state == NEW:
                    node.entered += 1
                    node.settle(entry, interrupted(node, running=False))
            retire = node.retire
            self._dispatcher.dispatch(None)
            settled = node.take_settled()
        node.tell(settled)
        if retire is not None:
            for instance in ended:
                retire(instance)

    def _wait(
        self,
        caller: Caller,
        entries: Sequence[Entry],
        deadline: float | None,
        *,
        internal: bool,
        hands_over: bool = False,
    ) -> Work | None:
        """Let the entries of a caller in and wait for them, the earliest until ``deadline``.

        Returns:
            With ``hands_over``, a batch of all the entries that the main thread is to run.
        """
        node, me = self._node, caller.ident
        caller.node = node
        outer = waiting.get(me)
        waiting[me] = caller
        try:
            call = call_run_here()
            if call is not None:
                call.withdrawn_by(partial(self._withdraw, caller, entries))
            with node.lock:
                node.callers.add(caller)
                enter(node, entries, self._make_room, internal=internal, waits=True)
                work = self._dispatcher.dispatch(caller) if node.rests else None
                if hands_over and work is not None and caller.has_all_in(work):
                    # The main thread holds the instance from now on.
                    caller.ident = work.instance.ident = main_thread.ident or 0
                parks = caller.parked = work is None and caller.pending > 0
                if parks and not node.rests and circle_of(caller) is not None:
                    refuse(node, entries)
                    parks = caller.parked = caller.pending > 0
                settled = node.take_settled()
            node.tell(settled)
            if node.shed:
                node.shed_elsewhere()
            if caller.ident != me:
                return work
            self._driver.wait(caller, entries, work, parks=parks, deadline=deadline)
        except BaseException as interrupt:
            with node.lock:
                self._driver.leave(caller)
            abandoned = self._withdraw(caller, entries)
            interrupt.abandoned = abandoned  # type: ignore[attr-defined]
            raise
        finally:
            if outer is None:
                del waiting[me]
            else:
                waiting[me] = outer
            node.callers.discard(caller)
            caller.end()
        return None

    def _withdraw(self, caller: Caller, entries: Sequence[Entry]) -> bool:
        """Take back what a caller waits for no more; True if a backend runs on any."""
        node = self._node
        abandoned = False
        with node.lock:
            for entry in entries:
                if entry.state != DONE:
                    running = entry.state == RUNNING
                    abandoned = abandoned or running
                    if entry.state == NEW:
                        node.entered += 1
                    node.take_out(entry)
                    node.settle(entry, interrupted(node, running=running))
            node.let_in()
            self._dispatcher.dispatch(None)
            settled = node.take_settled()
        node.tell(settled)
        return abandoned

    # What the timer calls.

    def _on_wake(self) -> None:
        with self._node.lock:
            self._dispatcher.woken()
            settled = self._node.take_settled()
        self._node.tell(settled)

    # Looking.

    def held_by_this_thread(self) -> bool:
        """Tell whether the calling thread, or one that waits for it, runs a batch of this node."""
        return held_here(self._node)

    @reentrant()
    def idle_instances(self) -> list[Instance]:
        """Give the instances in service on which nothing runs."""
        with self._node.lock:
            return [instance for instance in self.instances if instance.holder is None]

    @reentrant(later=lambda scheduler: scheduler._busy())
    def busy(self) -> bool:
        """Tell whether a batch runs."""
        with self._node.lock:
            return self._busy()

    def _busy(self) -> bool:
        return any(instance.holder is not None for instance in self._node.every)

    @reentrant(later=lambda scheduler: statistics_anyhow(scheduler._node))
    def statistics(self) -> dict[str, Any]:
        """Give what ``stats()`` shows of the node."""
        with self._node.lock:
            return statistics(self._node)
