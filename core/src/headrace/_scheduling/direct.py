"""Callers that find an instance free and run their own request, past the queue.

While nobody waits, the free instances of a swift backend lie on the *rack* of the node, where a
caller takes one without the lock. What keeps that safe:

- Taking one off is a single step of the interpreter, so it is taken once, and whoever took it has it.
- Who has taken one **announces it, then looks whether the rack still stands**: who takes instances out
  of service, or closes, puts up another rack first and looks for holders afterwards. One of the two
  sees the other.
- Who puts one back **looks at the line afterwards**, and whoever joins the line looks at the rack
  afterwards. One of the two sees the other.
- Everybody else takes the lock, and first takes what lies on the rack (`Node.collect`); when nobody
  waits any more it is laid out again (`Node.lay_out`).

The interpreter must show all threads the changes in one order. Where threads run at the same time
(free-threaded builds) nothing is laid out, and every claim is made under the lock.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling import batch as _batch
from headrace._scheduling.executors import Caller
from headrace._scheduling.instance import BARGE_S, RESTING, SWIFT_S
from headrace.errors import code_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.driving import Driver
    from headrace._scheduling.elsewhere import Elsewhere
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.line import WaitingLine
    from headrace._scheduling.mending import Mender
    from headrace._scheduling.node import Limits, Node, Rack
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["ONE_AT_A_TIME", "Direct"]

_take = deque.popleft

ONE_AT_A_TIME: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether threads take turns in the interpreter, so that all see changes in the same order."""


class Direct:
    """The shortcut of a scheduler."""

    name: str
    limits: Limits
    instances: list[Instance]
    checked: Callable[..., int]
    needs: Sequence[str]
    _queue_up: Callable[..., None]
    _node: Node
    _dispatcher: Dispatcher
    _driver: Driver
    _mender: Mender
    _lock: threading.Lock
    _line: WaitingLine
    _elsewhere: Elsewhere
    _rack: Rack
    _direct_max: int
    _linger: bool

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
                self._queue_up(request, weight, home, internal=internal)
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
            self._call_locked(request, data, weight, home, internal=internal)
            return
        try:
            # Off the rack and into the name in one step: an interrupt loses nothing.
            (instance,) = map(_take, rack)
        except IndexError:  # another caller was quicker
            self._call_locked(request, data, weight, home, internal=internal)
            return
        error: BaseException | None = None
        idle = True
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
                idle = not self._line.count and rack is self._rack
            else:
                idle = False
                with self._lock:
                    if error is not None:
                        instance.failed(code_of(error))
                    if live or instance.holder is RESTING:  # else a mender has seen to it
                        self._node.rest(instance)
        except BaseException as interrupt:
            self._interrupted(request, data, interrupt)
            raise
        if not idle:
            self._lead(instance, rack)
        if not live:
            self._call_locked(request, data, weight, home, internal=internal)
        elif error is not None:
            request.pop("result", None)
            try:
                raise error
            finally:
                del error  # see `Entry.take_error`

    def _call_locked(
        self, request: Request, data: Any, weight: int, home: Scheduler | None, *, internal: bool
    ) -> None:
        """Run one request on an instance that is claimed under the lock, or let it wait."""
        node = self._node
        error: BaseException | None = None
        idle = True
        instance: Instance | None = None
        if weight <= self._direct_max and node.rests:
            try:
                instance = self._claim(request, weight, home)
                if instance is not None:
                    error = self._run_alone(instance, request)
                    request["data"] = data
                    with self._lock:
                        if error is not None:
                            instance.failed(code_of(error))
                        idle = not node.line.count and not node.refusing and not instance.retired
                        idle = idle and error is None
                        node.rest(instance)
                        if idle:
                            node.lay_out()
            except BaseException as interrupt:
                self._interrupted(request, data, interrupt)
                raise
        if instance is None:
            self._queue_up(request, weight, home, internal=internal)
            return
        if not idle:
            self._lead(instance, self._rack)
        if error is not None:
            request.pop("result", None)
            try:
                raise error
            finally:
                del error  # see `Entry.take_error`

    def _claim(self, request: Request, weight: int, home: Scheduler | None) -> Instance | None:
        """Claim an instance for a caller's own request, if it may skip the queue."""
        me = get_ident()
        node = self._node
        with self._lock:
            node.collect()
            free = node.free
            if (
                free
                and (not node.line.count or self._may_barge())
                and weight <= self._direct_max
                and (home is not None or self._elsewhere.count < self.limits.queue_size)
                and (not self._linger or len(free) == len(self.instances))
                and (free[0].mean_s < SWIFT_S or self._may_start(free[0]))
            ):
                # No call between the claim and the note of it: an interrupt loses nothing.
                instance = free[0]
                instance.ident = me
                instance.direct += 1
                instance.holder = request
                del free[0]
                if free and not node.line.count:
                    node.lay_out()
                return instance
        return None

    def _may_barge(self) -> bool:
        """Tell whether a newcomer may take a free instance though others wait. Under the lock."""
        (oldest,) = self._line.head(1)
        swift = self._node.free[0].mean_s < SWIFT_S
        return swift and self._node.clock() - oldest.arrival < BARGE_S

    def _may_start(self, instance: Instance) -> bool:
        """Tell whether a caller may run an instance that is not swift. Under the lock."""
        return not self._dispatcher.wakes(instance) and not self._dispatcher.crowded(instance)

    def _run_alone(self, instance: Instance, request: Request) -> BaseException | None:
        """Run a caller's own request on the instance it claimed; give its error."""
        try:
            if instance.direct & instance.mask:
                outcomes = instance.run([request])
            else:
                begun = time.perf_counter()
                outcomes = instance.run([request])
                instance.timed(time.perf_counter() - begun)
                instance.waited.add(0.0)
        except Exception as error:  # noqa: BLE001 - raised past the backend's own guard
            return _batch.wrapped(self.name, instance, error)
        return self._judged(instance, request, outcomes)

    def _judged(
        self, instance: Instance, request: Request, outcomes: list[Exception | None] | None
    ) -> BaseException | None:
        """Give the error of a request that was run alone, if it has one."""
        if outcomes is not None and outcomes[0] is not None:
            return _batch.outside(outcomes.pop(0))  # see `Entry.take_error`
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

    def _lead(self, instance: Instance, rack: Rack) -> None:
        """See to those who have come meanwhile, after a caller's own request has ended."""
        leader = Caller(get_ident())
        node = self._node
        try:
            with node.lock:
                retire = node.retire
                if instance.retired is not None:
                    instance.retired.wake()
                elif rack is not node.rack:
                    node.collect(rack)
                work = self._dispatcher.dispatch(leader)
                settled = node.take_settled()
            node.tell(settled)
            if retire is not None:
                retire(instance)
            self._driver.drive(leader, work)
        except BaseException:
            self._mender.withdraw(leader, ())
            raise
