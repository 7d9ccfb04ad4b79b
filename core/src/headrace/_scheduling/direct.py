"""Callers that find an instance free and run their own request, past the queue.

While nobody waits, the free instances lie on the *racks* of the node, where a caller takes one
without the lock: those of swift backends on a rack for all callers, the others on one for the main
thread, which never takes the lock (see `headrace._scheduling.reentrant`). What keeps that safe:

- Taking one off is a single step of the interpreter, so it is taken once, and whoever took it has it.
- Who has taken one **announces it, then looks whether the rack still stands**: who takes instances out
  of service, or closes, puts up other racks first and looks for holders afterwards. One of the two
  sees the other.
- Who puts one back **looks at the line afterwards**, and whoever joins the line looks at the racks
  afterwards. One of the two sees the other.
- Everybody else takes the lock, and first takes what lies on the racks (`Node.collect`); when nobody
  waits any more it is laid out again (`Node.lay_out`).
- Whatever is raised in between, Ctrl-C at any call or the end of the stack, **the first step after it
  gives the claim to a helper thread**, in one call into C: another interrupt cannot come before it.

The interpreter must show all threads the changes in one order. Where threads run at the same time
(free-threaded builds) nothing is laid out, and every claim is made under the lock.
"""

from __future__ import annotations

import sys
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling import batch as _batch
from headrace._scheduling.claiming import Claiming, fail, refuse_inside, restore
from headrace._scheduling.entry import MISSING, refuses_change
from headrace._scheduling.errands import errands
from headrace._scheduling.executors import Caller
from headrace._scheduling.instance import RESTING, SWIFT_S
from headrace._scheduling.reentrant import (
    errand,
    holds_a_lock,
    main_thread,
    near_stack_end,
    no_room,
)
from headrace.errors import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.driving import Driver
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Rack
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["ONE_AT_A_TIME", "Direct"]

_take = deque.popleft

ONE_AT_A_TIME: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether threads take turns in the interpreter, so that all see changes in the same order."""


class Direct(Claiming):
    """The shortcut of a scheduler."""

    checked: Callable[..., int]
    needs: Sequence[str]
    _driver: Driver
    _sorts = False  # a helper is about to lay swift instances on their rack

    def need(self, keys: Sequence[str]) -> None:
        """Say which keys a request must have, where that is not ``data`` alone."""
        self.needs = keys
        self.call = self._call_with_keys  # type: ignore[method-assign]

    def _call_with_keys(self, request: Request, **how: Any) -> None:
        self.checked(request)
        Direct.call(self, request, **how)

    def call(  # noqa: C901, PLR0912, PLR0915 - each call less in here is felt by every request
        self, request: Request, *, internal: bool = False, home: Scheduler | None = None
    ) -> None:
        """Run one request for a caller that waits without a deadline; raises its error.

        Args:
            request: The request.
            internal: It comes from another node of this pipeline, which closing does not refuse.
            home: The node at which it entered, against which its wait here counts.
        """
        weight = 1
        if "data" not in request or "request_size" in request:
            weight = self.checked(request)
            if "data" not in request:  # it brings other keys
                request.pop("result", None)
                self._call_slowly(request, MISSING, weight, home, internal=internal)
                return
        data = request["data"]
        if "result" in request:
            del request["result"]
        me = get_ident()
        rack = self._rack
        if not (
            rack[0]
            and not self._line.count
            and weight <= self._direct_max
            and (home is not None or self._elsewhere.count < self.limits.queue_size)
            and (not self._linger or len(rack[0]) == len(self.instances))
        ):
            self._call_slowly(request, data, weight, home, internal=internal)
            return
        try:
            # Off the rack and into the name in one step: an interrupt loses nothing.
            (instance,) = map(_take, rack)
        except IndexError:  # another caller was quicker
            self._call_slowly(request, data, weight, home, internal=internal)
            return
        error: BaseException | None = None
        try:
            # No call up to the count: an interrupt finds the whole claim, and so does `statistics`.
            instance.ident = me
            instance.holder = request
            # Another rack: the instance has been taken out of service, or all end.
            live = rack is self._rack
            if live:
                instance.direct += 1
            else:
                instance.holder = RESTING
            if live:
                if instance.direct & instance.mask:
                    try:
                        outcomes = instance.run([request])
                    except Exception as raised:  # noqa: BLE001 - past the backend's own guard
                        error = _batch.wrapped(self.name, instance, raised)
                    else:
                        if outcomes is not None or "result" not in request:
                            error = self._judged(instance, request, outcomes)
                else:
                    error = self._run_alone(instance, request)
                request["data"] = data
            if live and error is None and instance.mean_s < SWIFT_S and not self._line.count:
                # No call between these three: an interrupt finds the instance held, or free.
                instance.ident = 0
                instance.holder = None
                rack[0].append(instance)
                # Who came before this look sees the instance, who comes after it is seen.
                if self._line.count or rack is not self._rack:
                    self._look(instance, rack)
            else:
                self._put_back(instance, rack, error)
        except BaseException as raised:
            try:
                restore(request, data, raised)
            finally:
                if instance.holder is request:
                    instance.ident = 0  # another thread may get this one's identifier
                errands.add((self._recover, instance, request, instance.direct))
            self._recovered(instance, request, raised)
            raise
        if not live:
            self._call_slowly(request, data, weight, home, internal=internal)
        elif error is not None:
            try:
                fail(request, error)
            finally:
                del error  # see `Entry.take_error`

    def _call_slowly(
        self, request: Request, data: Any, weight: int, home: Scheduler | None, *, internal: bool
    ) -> None:
        """Run one request that finds no swift instance on the rack."""
        if get_ident() != main_thread.ident:
            if holds_a_lock():
                refuse_inside(self)
            if near_stack_end():
                raise no_room()
            self._call_locked(request, data, weight, home, internal=internal)
        elif data is MISSING or not self._call_in_main(request, data, weight, home):
            try:
                if self._direct_max and data is not MISSING:
                    errand(self._call_locked, request, data, weight, home, internal=internal)
                else:
                    self._queue_up_in_main(request, weight, home, internal=internal)
            except BaseException as raised:
                restore(request, data, raised)
                raise

    def _call_in_main(
        self, request: Request, data: Any, weight: int, home: Scheduler | None
    ) -> bool:
        """Run a request of the main thread if an instance is idle; tell whether it was run."""
        racks = self._node.racks
        rack = racks[1]
        if (
            rack[0]
            and not self._line.count
            and weight <= self._direct_max
            and (home is not None or self._elsewhere.count < self.limits.queue_size)
            and (not self._linger or len(racks[0][0]) + len(rack[0]) == len(self.instances))
        ):
            try:
                (instance,) = map(_take, rack)
            except IndexError:
                pass
            else:
                error: BaseException | None = None
                try:
                    # As in `call`.
                    instance.ident = main_thread.ident or 0
                    instance.holder = request
                    live = racks is self._node.racks
                    if live:
                        instance.direct += 1
                        error = self._run_alone(instance, request)
                        request["data"] = data
                    else:
                        instance.holder = RESTING
                    self._put_back(instance, rack, error)
                except BaseException as raised:
                    try:
                        restore(request, data, raised)
                    finally:
                        errands.add((self._recover, instance, request, instance.direct))
                    self._recovered(instance, request, raised)
                    raise
                if live:
                    try:
                        fail(request, error)
                    finally:
                        del error  # see `Entry.take_error`
                    return True
        return False

    # Giving an instance back.

    def _put_back(self, instance: Instance, rack: Rack, error: BaseException | None) -> None:
        """Give an instance back that may not simply be put back on the rack."""
        code = "" if error is None else code_of(error)
        if get_ident() != main_thread.ident and not near_stack_end():
            self._rest(instance, code)
            self._lead(instance, rack)
            return
        if not instance.living:
            errand(self._rest, instance, code)
            errand(self._dispatch_after, instance, rack)
            return
        swift, other = racks = self._node.racks
        stands = rack is swift or rack is other
        sorts = False
        if stands:
            is_swift = instance.mean_s < SWIFT_S
            rack = other if other[0] or not is_swift else swift
            # The last that has become swift: all of them go to the other rack.
            sorts = is_swift and rack is other and not self._sorts and self._all_swift(other)
            self._sorts = self._sorts or sorts
        failures = instance.failures
        count = failures.get(code, 0) + 1
        # No call between these: an interrupt finds the instance held, or counted and free.
        if error is not None:
            failures[code] = count
        instance.ident = 0
        instance.holder = None
        rack[0].append(instance)
        if self._line.count or sorts or not stands or racks is not self._node.racks:
            errands.run(self._dispatch_after, instance, rack)

    def _all_swift(self, rack: Rack) -> bool:
        return max([instance.mean_s for instance in list(rack[0])], default=0.0) < SWIFT_S

    def _rest(self, instance: Instance, code: str) -> None:
        node = self._node
        with node.lock:
            if code:
                instance.failed(code)
            node.rest(instance)

    def _look(self, instance: Instance, rack: Rack) -> None:
        """See to those who have come meanwhile, after an instance was put on a rack."""
        if get_ident() != main_thread.ident and not near_stack_end():
            self._lead(instance, rack)
        else:
            errands.run(self._dispatch_after, instance, rack)

    def _lead(self, instance: Instance, rack: Rack) -> None:
        """See to those who have come meanwhile, and run their batches for a while."""
        leader = Caller(get_ident())
        work = self._dispatch_after(instance, rack, leader)
        self._driver.drive(leader, work)
        leader.end()

    def _dispatch_after(self, instance: Instance, rack: Rack, leader: Caller | None = None) -> Any:
        node = self._node
        self._sorts = False
        with node.lock:
            retire = node.retire
            if instance.retired is not None:
                instance.retired.wake()
            elif not any(rack is one for one in node.racks):
                node.collect((rack,))
            else:
                node.collect()
            work = self._dispatcher.dispatch(leader)
            settled = node.take_settled()
        node.tell(settled)
        if retire is not None:
            retire(instance)
        return work

    # After something was raised that is no outcome of the request.

    def _recover(self, instance: Instance, request: Request, serial: int) -> None:
        """Give back an instance that a thread left behind with its claim; a second time does nothing.

        Args:
            instance: The instance.
            request: For which it was claimed.
            serial: Which of its requests it was.
        """
        node = self._node
        with node.lock:
            held = instance.holder is request or instance.holder is RESTING
            if held and instance.direct == serial:
                if instance.holder is request:
                    instance.failed("interrupt")
                node.rest(instance)
            node.collect()
        self._dispatch_after(instance, self._rack)

    def _recovered(self, instance: Instance, request: Request, raised: BaseException) -> None:
        """Wait until `_recover` has been done, so that whoever looks next finds all in order."""
        try:
            errand(self._recover, instance, request, instance.direct)
        except BaseException as again:
            again.abandoned = getattr(raised, "abandoned", False)  # type: ignore[attr-defined]
            raise
        if isinstance(raised, Exception) and not isinstance(raised, (RecursionError, MemoryError)):
            raise refuses_change(raised)
