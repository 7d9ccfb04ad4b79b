"""Callers that claim an instance under the lock, and how every caller gives its instance back.

A caller that runs its own request, past the queue, holds the instance it has claimed. It returns the
instance to the idle list, or under the lock, and sees to those who have come meanwhile. Whatever is
raised in between, a helper thread returns the instance in its place.
"""

from __future__ import annotations

from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling.base import SchedulerBase
from headrace._scheduling.batch import run_alone
from headrace._scheduling.calls import errand
from headrace._scheduling.entry import MISSING, refuses_change
from headrace._scheduling.instance import BARGE_S, RETURNING, SWIFT_S
from headrace._scheduling.locks import holds_a_lock, main_thread, near_stack_end
from headrace._scheduling.process_threads import errands
from headrace._scheduling.threads import Caller, Work
from headrace.errors import code_of

if TYPE_CHECKING:
    from headrace._scheduling.free import IdleList
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.sleeper import Rest
    from headrace.keys import Request


class Claiming(SchedulerBase):
    """What a scheduler does for callers that run their own request, past the queue."""

    _sorts = False  # a helper thread is about to put swift instances on their idle list

    def _call_locked(
        self,
        request: Request,
        data: Any,
        weight: int,
        home: SchedulerBase | None,
        rest: Rest | None,
        *,
        internal: bool,
    ) -> Rest | None:
        """Run one request on an instance that is claimed under the lock, or let it wait."""
        node = self._node
        error: BaseException | None = None
        instance: Instance | None = None
        if self._unqueued_max and data is not MISSING and node.has_idle:
            try:
                instance = self._claim(request, weight, home)
            except BaseException:  # it hit this thread, perhaps after the claim
                errands.run(self._recover_claim, request)
                raise
        if instance is None:
            return self._queue_up(request, weight, home, rest, internal=internal)
        serial = instance.unqueued
        try:
            error = self._run_alone(instance, request)
            request["data"] = data
            self._put_back(instance, self._idle_list, error)
        except BaseException as raised:
            try:
                restore(request, data, raised)
            finally:
                if instance.holder is request:
                    instance.ident = 0  # another thread may get this one's identifier
                errands.add((self._recover, instance, request, serial))
            self._recovered(instance, request, raised)
            raise
        try:
            fail(request, error)
        finally:
            del error  # see `Entry.take_error`
        return rest

    def _claim(self, request: Request, weight: int, home: SchedulerBase | None) -> Instance | None:
        """Claim an instance for a caller's own request, if it may skip the queue."""
        node = self._node
        with node.section, node.lock:
            if (
                weight <= self._unqueued_max
                and (home is not None or self._quota.count < self.limits.queue_size)
                and (not self._linger or node.idle_count == len(self.instances))
                and node.collect_one()
                and self._may_start(node.free[0])
            ):
                instance = node.free.pop(0)
                instance.ident = get_ident()
                instance.unqueued += 1
                instance.holder = request
                if node.free and not node.queue.count:
                    node.publish()
                return instance
        return None

    def _may_start(self, instance: Instance) -> bool:
        """Tell whether a newcomer may run its own request on an instance. Under the lock."""
        if instance.mean_s >= SWIFT_S:
            dispatcher = self._dispatcher
            waits = self._queue.count or dispatcher.wakes(instance) or dispatcher.crowded(instance)
            return not waits
        if not self._queue.count:
            return True
        (oldest,) = self._queue.head(1)
        return self._node.clock() - oldest.arrival < BARGE_S

    def _run_alone(self, instance: Instance, request: Request) -> BaseException | None:
        """Run a caller's own request on the instance it claimed; give its error."""
        return run_alone(instance, request, self.name, needs_result=self._node.needs_result)

    # Giving an instance back.

    def _put_back(self, instance: Instance, idle: IdleList, error: BaseException | None) -> None:
        """Give an instance back that may not simply be put back on the idle list it came from."""
        node = self._node
        code = "" if error is None else code_of(error)
        if _may_lock():
            if not self._give_back_counted(instance, code):
                self._lead(instance, idle)
            return
        away = instance.lost is not None and instance.lost.away
        if away or not instance.living or not node.publishes:
            lets = errands.run if holds_a_lock() else errand
            lets(self._give_back_counted, instance, code)
            lets(self._dispatch_after, instance, idle)
            return
        swift, in_main = lists = node.idle_lists
        stands = idle is swift or idle is in_main
        sorts = False
        if stands:
            is_swift = instance.mean_s < SWIFT_S
            idle = swift if is_swift and not in_main[0] else in_main
            # The last that has become swift: all of them go to the other idle list.
            sorts = is_swift and idle is in_main and not self._sorts and self._all_swift(in_main)
            self._sorts = self._sorts or sorts
        failures = instance.failures
        count = failures.get(code, 0) + 1
        # atomic: an interrupt finds the instance held, or counted and free.
        if error is not None:
            failures[code] = count
        instance.ident = 0
        instance.holder = None
        idle[0].append(instance)
        # end atomic
        if self._queue.count or sorts or not stands or lists is not node.idle_lists:
            errands.run(self._dispatch_after, instance, idle)

    def _all_swift(self, idle: IdleList) -> bool:
        return max([instance.mean_s for instance in list(idle[0])], default=0.0) < SWIFT_S

    def _give_back_counted(self, instance: Instance, code: str) -> bool:
        """Give an instance back under the lock; tell whether nobody waits for it, or for its end."""
        node = self._node
        with node.section, node.lock:
            if code:
                instance.failed(code)
            node.give_back(instance)
            quiet = not (code or node.queue.count or node.refusing or instance.retired)
            if quiet:
                node.publish()
            return quiet

    def _look(self, instance: Instance, idle: IdleList) -> None:
        """See to those who have come meanwhile, after an instance was put on an idle list."""
        if _may_lock():
            self._lead(instance, idle)
        else:
            errands.run(self._dispatch_after, instance, idle)

    def _lead(self, instance: Instance, idle: IdleList) -> None:
        """See to those who have come meanwhile, and run their batches for a while."""
        leader = Caller(get_ident())
        try:
            work = self._dispatch_after(instance, idle, leader)
            self._driver.drive(leader, work)
        except BaseException:
            errands.run(self._leave, leader)
            raise
        leader.end()

    def _leave(self, leader: Caller) -> None:
        """Give back what a thread holds that was hit while it ran batches of others."""
        with self._node.section, self._node.lock:
            self._driver.leave(leader)
            self._dispatcher.dispatch(None)

    def _dispatch_after(
        self, instance: Instance, idle: IdleList, leader: Caller | None = None
    ) -> Work | None:
        node = self._node
        self._sorts = False
        with node.section, node.lock:
            node.ended(instance)
            if instance.retired is None:
                stands = any(idle is one for one in node.idle_lists)
                node.collect(None if stands else (idle,))
            return self._dispatcher.dispatch(leader)

    # After something was raised that is no outcome of the request.

    def _recover(self, instance: Instance, request: Request, serial: int) -> None:
        """Give back an instance that a thread left behind with its claim; a second time does nothing.

        Args:
            instance: The instance.
            request: For which it was claimed.
            serial: Which of its requests it was.
        """
        node = self._node
        with node.section, node.lock:
            held = instance.holder is request or instance.holder is RETURNING
            if held and instance.unqueued == serial:
                if instance.holder is request:
                    instance.failed("interrupt")
                node.give_back(instance)
            node.collect()
        self._dispatch_after(instance, self._idle_list)

    def _recover_claim(self, request: Request) -> None:
        """Give back the instance that was claimed under the lock for a request, if there is one."""
        for instance in self._node.every:
            if instance.holder is request:
                self._recover(instance, request, instance.unqueued)

    def _recovered(self, instance: Instance, request: Request, raised: BaseException) -> None:
        """Wait until `_recover` has been done, so that whoever looks next finds all in order.

        A destructor that runs while its thread holds a lock cannot wait: a helper thread may need it.
        """
        try:
            lets = errands.run if holds_a_lock() else errand
            lets(self._recover, instance, request, instance.unqueued)
        except BaseException as again:
            again.abandoned = getattr(raised, "abandoned", False)  # type: ignore[attr-defined]
            raise
        if isinstance(raised, Exception) and not isinstance(raised, (RecursionError, MemoryError)):
            raise refuses_change(raised)


def _may_lock() -> bool:
    """Tell whether the calling thread may take a lock now: see `headrace._scheduling.locks`."""
    return get_ident() != main_thread.ident and not near_stack_end() and not holds_a_lock()


def restore(request: Request, data: Any, raised: BaseException) -> None:
    """Give a caller its object back, and no result; not while a backend runs on it."""
    with suppress(Exception):  # anybody's dict, anybody's error
        abandoned = getattr(raised, "abandoned", False) is True
        raised.abandoned = abandoned  # type: ignore[attr-defined]
        if not abandoned:
            if data is MISSING:
                request.pop("data", None)
            else:
                request["data"] = data
            request.pop("result", None)


def fail(request: Request, error: BaseException | None) -> None:
    """Raise the error of a request, if it has one."""
    if error is None:
        return
    with suppress(Exception):
        request.pop("result", None)
    try:
        raise error
    finally:
        del error  # see `Entry.take_error`
