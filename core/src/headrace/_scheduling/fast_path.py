"""Callers that find an instance free and run their own request, past the queue.

While no request waits, the free instances lie on the *idle list* of the node, where a caller takes one
without the lock. Where one of them is not swift, the main thread alone always uses the list, for it never takes
the lock (see `headrace._scheduling.calls`); another thread does so only while no caller and no cut batch waits
here. Five rules keep this safe:

- Popping an instance is a single step of the interpreter: the thread that pops an instance owns it.
- A caller that has popped an instance **sets its holder, then looks whether the idle list still stands**. A
  thread that takes instances out of service, or closes, puts another idle list in place first and looks for
  holders afterwards. Either the caller sets the holder before that thread looks, and that thread finds
  the holder; or the caller looks after the other list is in place, and gives the instance back.
- A caller that puts an instance back **looks at the queue afterwards**, and a thread that joins the
  queue looks at the idle list afterwards. Either the caller sees the request, or that thread sees the
  instance.
- Every other thread takes the lock, and first moves the instances from the idle list to the free ones
  (`Node.collect`); when no request waits any more, it puts the free instances there again (`Node.publish`).
- When an exception hits a caller in between (Ctrl-C at any call, the end of the stack), **the caller always
  gives the claim to a helper thread**, by one call into C, which a second interrupt cannot tear.

These rules need an interpreter that shows changes to all threads in one order. Where threads run at the
same time (free-threaded builds) the idle list stays empty, and every claim is made under the lock.

No interrupt tears the statements between ``# atomic`` and ``# end atomic``: the interpreter looks for an
interrupt only after calls, at the begin of a function and where a loop goes back. A test looks for
these in the syntax tree of each section.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._portable import is_abandoned
from headrace._scheduling.base import SchedulerBase, refuse_inside
from headrace._scheduling.batch import judged, run_alone, wrapped
from headrace._scheduling.calls import errand
from headrace._scheduling.entry import DATA_ALONE, MISSING, raise_failure, refuses_change, restore
from headrace._scheduling.instance import BARGE_S, RETURNING, SWIFT_S
from headrace._scheduling.locks import holds_a_lock, main_thread, may_lock, near_stack_end, no_room
from headrace._scheduling.process_threads import errands
from headrace._scheduling.threads import Caller, Work
from headrace.errors import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.instance import IdleList, Instance
    from headrace._scheduling.sleeper import Rest
    from headrace.keys import Request

_take = deque.popleft


class FastPath(SchedulerBase):
    """A scheduler's part for callers that find an instance idle and run their own request on it."""

    _run_alone: Callable[..., BaseException | None] = staticmethod(run_alone)

    def need(self, keys: Sequence[str]) -> None:
        """Set the keys that a request must have."""
        self.needs = DATA_ALONE if keys == DATA_ALONE else keys
        self.check_as_needed()

    def check_as_needed(self) -> None:
        """Have `call` check every request where other keys than ``data`` are needed, or probes keep the main thread away."""
        other_keys = self.needs is not DATA_ALONE and bool(self.needs)
        self._checks_all = other_keys or self._node.keeps_main_thread_away

    def call(  # noqa: C901, PLR0912, PLR0915 - every request would pay for each call more in here
        self,
        request: Request,
        *,
        internal: bool = False,
        home: SchedulerBase | None = None,
        rest: Rest | None = None,
    ) -> Rest | None:
        """Run one request for a caller that waits without a deadline; raises its error.

        Args:
            request: The request.
            internal: The request comes from another node of this pipeline; closing does not refuse it.
            home: The scheduler at which the request entered, whose bound also counts its wait here.
            rest: The nodes after this one to which workers may move the request on.

        Returns:
            The part of ``rest`` that begins at the first node to which no worker has moved the request.
        """
        weight = 1
        me = get_ident()
        if "data" not in request or "request_size" in request or self._checks_all:
            weight = self.checked(request)
            away = me == main_thread.ident and self._node.keeps_main_thread_away
            if away or "data" not in request:  # in the second case the node needs other keys
                data = request.get("data", MISSING)
                request.pop("result", None)
                return self._call_slowly(request, data, weight, internal, home, rest)
        data = request["data"]
        if "result" in request:
            del request["result"]
        idle, node = self._idle_list, self._node
        if not (
            weight <= self._unqueued_max
            and idle[0]
            and (not node.slow or self._may_use_slow(me))
            and not self._queue.count
            and (home is not None or not self._quota.waiting or not node.full)
            and (not self._linger or node.idle_count == len(self.instances))
        ):
            return self._call_slowly(request, data, weight, internal, home, rest)
        try:
            # One step of the interpreter pops the instance and names it: no interrupt loses the instance.
            (instance,) = map(_take, idle)
        except IndexError:  # another caller popped the last instance first
            return self._call_slowly(request, data, weight, internal, home, rest)
        error: BaseException | None = None
        try:
            # atomic: an interrupt finds the whole claim, and so does `statistics`.
            instance.ident = me
            instance.holder = request
            # Where another idle list stands, the instance is out of service, or the node closes.
            live = idle is self._idle_list
            if live:
                instance.unqueued += 1
            else:
                instance.holder = RETURNING
            # end atomic
            if live:
                if instance.unqueued & instance.mask:
                    try:
                        outcomes = instance.run([request])
                    except Exception as raised:  # noqa: BLE001 - raised outside the guard of `_checked`
                        error = wrapped(self.name, instance, raised)
                    else:
                        if outcomes is not None or "result" not in request:
                            error = judged(instance, request, outcomes, node)
                else:
                    error = self._run_alone(instance, request, node)
                request["data"] = data
            if error is None and (
                not node.slow if instance.mean_s < SWIFT_S else node.slow and instance.serves
            ):
                # atomic: an interrupt finds the instance held, or free.
                instance.ident = 0
                instance.holder = None
                idle[0].append(instance)
                # end atomic
                # A request that joined the queue before this look is seen here. A thread that puts its
                # request there later looks at the idle list after that, and sees the instance.
                if self._queue.count or idle is not self._idle_list:
                    self._look(instance, idle)
            else:
                self._put_back(instance, idle, error)
        except BaseException as raised:
            if instance.holder is request:
                instance.ident = 0  # a new thread may get the identifier of this one
            errands.add((self._recover, instance, request, instance.unqueued, idle))
            self._recovered(instance, request, data, raised, idle)
            raise
        if not live:
            return self._call_slowly(request, data, weight, internal, home, rest)
        if error is not None:
            node.failures.note(error, request)
            try:
                raise_failure(request, error)
            finally:
                del error  # see `Entry.take_error`
        return rest

    def _may_use_slow(self, me: int) -> bool:
        """Tell whether thread ``me`` may run its request on an instance of a slow backend without the lock."""
        mine = me == main_thread.ident
        return mine or not (self._callers or self._backlog or holds_a_lock(me))

    def _call_slowly(
        self, request: Request, data: Any, weight: int, internal: bool, home: Any, rest: Rest | None
    ) -> Rest | None:
        """Run one request that has got no instance from the idle list; see `call`."""
        me = get_ident()
        passes = self._unqueued_max and data is not MISSING
        if me != main_thread.ident:
            if holds_a_lock(me):
                refuse_inside(self)
            if near_stack_end():
                raise no_room()
            if passes and self._node.has_idle:
                return self._call_locked(request, data, weight, internal, home, rest)
            return self._queue_up(me, request, weight, internal, home, rest)
        try:
            if passes:
                errand(self._call_locked, request, data, weight, internal, home, None)
            else:
                self._queue_up(me, request, weight, internal, home, None)
        except BaseException as raised:
            restore(request, data, raised)
            raise
        return rest

    def _call_locked(self, request: Request, data: Any, weight: int, *way: Any) -> Rest | None:
        """Run one request on an instance that is claimed under the lock, or put it into the queue."""
        _, home, rest = way
        try:
            instance = self._claim(request, weight, home)
        except BaseException:  # an interrupt, perhaps after the claim
            errands.run(self._recover_claim, request)
            raise
        if instance is None:
            return self._queue_up(get_ident(), request, weight, *way)
        error: BaseException | None = None
        idle, serial = self._idle_list, instance.unqueued
        try:
            error = self._run_alone(instance, request, self._node)
            request["data"] = data
            if not self._give_back(instance, error):
                self._lead(instance, idle)
        except BaseException as raised:
            if instance.holder is request:
                instance.ident = 0  # a new thread may get the identifier of this one
            errands.add((self._recover, instance, request, serial, idle))
            self._recovered(instance, request, data, raised, idle)
            raise
        try:
            if error is not None:
                self._node.failures.note(error, request)
                raise_failure(request, error)
        finally:
            del error  # see `Entry.take_error`
        return rest  # type: ignore[no-any-return]

    def _claim(self, request: Request, weight: int, home: SchedulerBase | None) -> Instance | None:
        """Claim an instance for a caller's own request, if the request may skip the queue."""
        node = self._node
        with node.section, node.lock:
            if (
                weight <= self._unqueued_max
                and (home is not None or not self._quota.waiting or not node.full)
                and (not self._linger or node.idle_count == len(self.instances))
                and node.collect_one()
                and self._may_start(node.free[0])
            ):
                instance, me = node.free[0], get_ident()
                # No call from here on, so that an exception finds the whole claim.
                instance.ident = me
                instance.unqueued += 1
                instance.holder = request
                node.free.pop(0)
                if node.free and not node.queue.count:
                    node.publish()
                return instance
        return None

    def _may_start(self, instance: Instance) -> bool:
        """Tell whether a newcomer may run its own request on an instance. Under the lock."""
        if instance.mean_s >= SWIFT_S:
            ask = self._driver
            return not (self._queue.count or ask.is_waking(instance) or ask.crowded(instance))
        if not self._queue.count:
            return True
        (oldest,) = self._queue.head(1)
        return self._node.clock() - oldest.arrival < BARGE_S

    # Giving an instance back.

    def _put_back(self, instance: Instance, idle: IdleList, error: BaseException | None) -> None:
        """Give an instance back after a failure, or where its backend has become slow, or swift."""
        node = self._node
        if may_lock():
            if not self._give_back(instance, error):
                self._lead(instance, idle)
            return
        if not instance.serves:
            run = errands.run if holds_a_lock() else errand
            run(self._give_back, instance, error)
            run(self._dispatch_after, instance, idle)
            return
        code = "" if error is None else code_of(error)
        failures = instance.failures
        count = failures.get(code, 0) + 1
        node.measure_speed((instance,))
        # atomic: an interrupt finds the instance held, or counted and free.
        if error is not None:
            failures[code] = count
        instance.ident = 0
        instance.holder = None
        idle[0].append(instance)
        # end atomic
        if self._queue.count or idle is not node.idle:
            errands.run(self._dispatch_after, instance, idle)

    def _give_back(self, instance: Instance, error: BaseException | None) -> bool:
        """Give an instance back under the lock; False where a dispatch must follow."""
        node = self._node
        code = "" if error is None else code_of(error)
        with node.section, node.lock:
            if code:
                instance.failed(code)
            node.give_back(instance)
            quiet = not (code or node.queue.count or node.refusing or instance.retired)
            if quiet:
                node.publish()
            return quiet

    def _look(self, instance: Instance, idle: IdleList) -> None:
        """Have the requests dispatched that joined the queue, after an instance was put on the idle list."""
        if may_lock():
            self._lead(instance, idle)
        else:
            errands.run(self._dispatch_after, instance, idle)

    def _lead(self, instance: Instance, idle: IdleList) -> None:
        """Dispatch after an instance was given back, and run batches of other callers for a while."""
        leader = Caller(get_ident())
        try:
            work = self._dispatch_after(instance, idle, leader)
            self._driver.drive(leader, work)
        except BaseException:
            errands.run(self._leave, leader)
            raise
        leader.keep_signal()

    def _leave(self, leader: Caller) -> None:
        """Give back the instances of a thread that was interrupted while it ran batches of other callers."""
        with self._node.section, self._node.lock:
            self._driver.leave(leader)
            self._driver.dispatch(None)

    def _dispatch_after(
        self, instance: Instance, idle: IdleList, leader: Caller | None = None
    ) -> Work | None:
        """Dispatch after an instance was given back, perhaps to an idle list that was replaced meanwhile."""
        node = self._node
        with node.section, node.lock:
            node.batch_ended(instance)
            if instance.retired is None:
                node.collect(idle)
            return self._driver.dispatch(leader)

    # After an exception that is no outcome of the request, such as an interrupt.

    def _recover(self, instance: Instance, request: Request, serial: int, idle: IdleList) -> None:
        """Give back an instance that an interrupted thread still holds; a second call does nothing.

        Args:
            instance: The instance.
            request: The request for which the thread claimed the instance.
            serial: The value of `unqueued` at that claim: another value means a later claim.
            idle: The idle list at that claim, on which the thread may have put the instance.
        """
        node = self._node
        with node.section, node.lock:
            held = instance.holder is request or instance.holder is RETURNING
            if held and instance.unqueued == serial:
                if instance.holder is request:
                    instance.failed("interrupt")
                node.give_back(instance)
        self._dispatch_after(instance, idle)

    def _recover_claim(self, request: Request) -> None:
        """Give back the instance that was claimed under the lock for a request, if any was."""
        for instance in self._node.every:
            if instance.holder is request:
                self._recover(instance, request, instance.unqueued, self._idle_list)

    def _recovered(
        self, instance: Instance, request: Request, data: Any, raised: BaseException, idle: IdleList
    ) -> None:
        """Restore the request, and wait until `_recover` has run: the caller's next call finds the instance given back.

        A destructor that runs while its thread holds a lock cannot wait: `_recover` may need that lock.
        """
        try:
            restore(request, data, raised)
            run = errands.run if holds_a_lock() else errand
            run(self._recover, instance, request, instance.unqueued, idle)
        except BaseException as again:
            again.abandoned = is_abandoned(raised)  # type: ignore[attr-defined]
            raise
        if isinstance(raised, Exception) and not isinstance(raised, (RecursionError, MemoryError)):
            raise refuses_change(raised)
