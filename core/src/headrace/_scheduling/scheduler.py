"""The scheduler of one node: how requests come in, and how their owners take them back.

One lock per node guards the waiting line, the instances and the states of the requests. The parts:

- `admission`: who is let into the line;
- `submission`: owners that do not wait in the calling thread;
- `dispatch`: which batch is due, on which instance; `assignment`: which thread runs it;
- `driving`, `crew`: those threads;
- `exchange`: new instances in place of the old ones;
- `closing`, `mending`: the end, and interrupts;
- `node`: what they share, and the one outcome of every request.
"""

from __future__ import annotations

import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling import batch as _batch
from headrace._scheduling import closing
from headrace._scheduling.admission import Entrance, enter, held_here
from headrace._scheduling.crew import Crew
from headrace._scheduling.dispatch import Dispatcher
from headrace._scheduling.driving import Driver, earliest
from headrace._scheduling.entry import (
    NEW,
    Entry,
)
from headrace._scheduling.exchange import Exchange
from headrace._scheduling.executors import Caller, CallerOfGroups
from headrace._scheduling.instance import BARGE_S, SWIFT_S
from headrace._scheduling.mending import Mender
from headrace._scheduling.node import Limits, Node
from headrace._scheduling.statistics import statistics
from headrace._scheduling.submission import Submission
from headrace._scheduling.timer import shared_timer
from headrace.errors import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.instance import Instance
    from headrace._scheduling.timer import Timer
    from headrace.keys import Request
    from headrace.policies import BatchPolicy, DispatchPolicy

__all__ = ["Limits", "Scheduler"]


class Scheduler(Submission, Entrance, Exchange, closing.Ending):
    """The queue and the instances of one node; every method may be called from any thread.

    Args:
        name: The node.
        instances: At least one.
        batch_policy, dispatch_policy: Decide when a batch is cut, and which instance takes it.
        limits: The queue keys.
        clock: Seconds, as `time.monotonic`.
        timer: Calls functions at times of that clock.
    """

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
        self._crew = Crew(name, len(instances), driver.serve)
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
        self._mender = Mender(node, self._dispatcher, self._crew)
        # What `call` needs, one attribute away.
        self._lock = node.lock
        self._free = node.free
        self._line = node.line
        self._elsewhere = node.elsewhere
        self.outside = node.outside
        self._linger = limits.batching_timeout_ms > 0 and self.max != 1
        self._direct_max = self._weight_for_shortcut(batch_policy)

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

    def call(
        self, request: Request, *, internal: bool = False, home: Scheduler | None = None
    ) -> None:
        """Run one request for a caller that waits without a deadline; raises its error.

        Args:
            request: The request.
            internal: It comes from another node of this pipeline, which closing does not refuse.
            home: The node at which it entered, against which its wait here counts.
        """
        weight = 1
        if type(request) is not dict or "data" not in request or "request_size" in request:
            weight = self.checked(request)
        data = request["data"]
        request.pop("result", None)
        if weight > self._direct_max or not self._free:
            self._queue_up(request, weight, home, internal=internal)
            return
        me = get_ident()
        instance: Instance | None = None
        idle = True
        try:
            with self._lock:
                free = self._free
                if (
                    free
                    and (not self._line.count or self._may_barge())
                    and weight <= self._direct_max
                    and (internal or self._elsewhere.count < self.limits.queue_size)
                    and (not self._linger or len(free) == len(self.instances))
                    and (free[0].mean_s < SWIFT_S or self._may_start(free[0]))
                ):
                    # No call between the claim and the note of it: an interrupt loses nothing.
                    instance = free[0]
                    instance.ident = me
                    instance.direct += 1
                    instance.holder = request
                    del free[0]
            if instance is not None:
                error = self._run_alone(instance, request)
                request["data"] = data
                with self._lock:
                    if error is not None:
                        instance.failed(code_of(error))
                    instance.ident = 0
                    instance.holder = None
                    free.append(instance)
                    # Another list of free instances: it has been taken out of service, or all end.
                    idle = not self._line.count and free is self._free
        except BaseException as raised:
            self._interrupted(request, data, raised)
            raise
        if instance is None:
            self._queue_up(request, weight, home, internal=internal)
            return
        if not idle:
            self._lead(instance)
        if error is not None:
            request.pop("result", None)
            raise error

    def _may_barge(self) -> bool:
        """Tell whether a newcomer may take a free instance though others wait. Under the lock."""
        (oldest,) = self._line.head(1)
        swift = self._free[0].mean_s < SWIFT_S
        return swift and self._node.clock() - oldest.arrival < BARGE_S

    def _may_start(self, instance: Instance) -> bool:
        """Tell whether a caller may run an instance that is not swift. Under the lock."""
        return not self._dispatcher.wakes(instance) and not self._dispatcher.crowded(instance)

    def _run_alone(self, instance: Instance, request: Request) -> BaseException | None:
        """Run a caller's own request on the instance it claimed; give its error."""
        try:
            if instance.direct & instance.mask:
                outcomes = instance.backend([request])
            else:
                begun = time.perf_counter()
                outcomes = instance.backend([request])
                instance.timed(time.perf_counter() - begun)
                instance.waited.add(0.0)
        except Exception as error:  # noqa: BLE001 - raised past the backend's own guard
            return _batch.wrapped(self.name, instance, error)
        if outcomes is not None and outcomes[0] is not None:
            return _batch.outside(outcomes[0])
        if "result" in request or not self._node.needs_result:
            return None
        return _batch.no_result(self.name, instance)

    def _interrupted(self, request: Request, data: Any, interrupt: BaseException) -> None:
        abandoned = getattr(interrupt, "abandoned", False) is True
        interrupt.abandoned = abandoned  # type: ignore[attr-defined]
        if not abandoned:
            request["data"] = data
            request.pop("result", None)
        self._mender.recover(request)

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
        if entry.error is not None:
            raise entry.error

    def _lead(self, instance: Instance) -> None:
        """See to those who have come meanwhile, after a caller's own request has ended."""
        leader = Caller(get_ident())
        node = self._node
        try:
            with node.lock:
                retire = node.retire
                if instance.retired is not None:
                    instance.retired.wake()
                work = self._dispatcher.dispatch(leader)
                settled = node.take_settled()
            node.tell(settled)
            if retire is not None:
                retire(instance)
            self._driver.drive(leader, work)
        except BaseException:
            self._mender.withdraw(leader, ())
            raise

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
        self._wait(caller, fresh, deadline, internal=internal)

    def _wait(
        self,
        caller: Caller,
        entries: Sequence[Entry],
        deadline: float | None,
        *,
        internal: bool,
    ) -> None:
        """Let the entries of a caller in and wait for them, the earliest until ``deadline``."""
        node = self._node
        try:
            with node.lock:
                node.callers.add(caller)
                enter(node, entries, self._make_room, internal=internal, waits=True)
                work = self._dispatcher.dispatch(caller) if node.free or node.torn else None
                parks = caller.parked = work is None and caller.pending > 0
                settled = node.take_settled()
            if settled:
                node.tell(settled)
            if node.shed:
                node.shed_elsewhere()
            self._driver.wait(caller, entries, work, parks=parks, deadline=deadline)
        except BaseException as interrupt:
            abandoned = self._mender.withdraw(caller, entries)
            interrupt.abandoned = abandoned  # type: ignore[attr-defined]
            raise
        node.callers.discard(caller)

    # What the timer calls.

    def _on_wake(self) -> None:
        with self._node.lock:
            self._dispatcher.woken()
            settled = self._node.take_settled()
        self._node.tell(settled)

    # Looking.

    def held_by_this_thread(self) -> bool:
        """Tell whether the calling thread, or one that waits for it, runs a batch of this node."""
        with self._node.lock:
            return held_here(self._node)

    def idle_instances(self) -> list[Instance]:
        """Give the instances in service on which nothing runs."""
        with self._node.lock:
            return [instance for instance in self.instances if instance.holder is None]

    def busy(self) -> bool:
        """Tell whether a batch runs."""
        with self._node.lock:
            return any(instance.holder is not None for instance in self._node.every)

    def statistics(self) -> dict[str, Any]:
        """Give what ``stats()`` shows of the node."""
        with self._node.lock:
            return statistics(self._node)
