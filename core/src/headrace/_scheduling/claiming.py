"""Claims under the lock, and what is common to all callers that run their own request."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling import batch as _batch
from headrace._scheduling.entry import MISSING
from headrace._scheduling.errands import errands
from headrace._scheduling.instance import BARGE_S, SWIFT_S
from headrace.errors import ContractError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.elsewhere import Elsewhere
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.line import WaitingLine
    from headrace._scheduling.node import Limits, Node, Rack
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["Claiming", "fail", "refuse_inside", "restore"]


def refuse_inside(scheduler: Claiming, *_: Any, **__: Any) -> None:
    """Refuse a call that would wait, in a destructor that runs while its thread holds a lock."""
    raise ContractError(
        "a destructor called a pipeline that would have to wait, in the midst of its scheduler",
        node=scheduler.name,
        hint="Use submit, which does not wait.",
    )


class Claiming:
    """The shortcut of a scheduler, as far as it takes the lock."""

    name: str
    limits: Limits
    instances: list[Instance]
    _queue_up: Callable[..., None]
    _queue_up_in_main: Callable[..., None]
    _lead: Callable[..., None]
    _recover: Callable[..., None]
    _recovered: Callable[..., None]
    _node: Node
    _dispatcher: Dispatcher
    _line: WaitingLine
    _elsewhere: Elsewhere
    _rack: Rack
    _direct_max: int
    _linger: bool

    def _call_locked(
        self, request: Request, data: Any, weight: int, home: Scheduler | None, *, internal: bool
    ) -> None:
        """Run one request on an instance that is claimed under the lock, or let it wait."""
        node = self._node
        error: BaseException | None = None
        instance: Instance | None = None
        if data is not MISSING and weight <= self._direct_max and node.rests:
            instance = self._claim(request, weight, home)
        if instance is None:
            self._queue_up(request, weight, home, internal=internal)
            return
        serial = instance.direct
        try:
            error = self._run_alone(instance, request)
            request["data"] = data
            code = "" if error is None else code_of(error)
            with node.lock:
                if error is not None:
                    instance.failed(code)
                idle = not node.line.count and not node.refusing and not instance.retired
                idle = idle and error is None
                node.rest(instance)
                if idle:
                    node.lay_out()
            if not idle:
                self._lead(instance, self._rack)
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

    def _claim(self, request: Request, weight: int, home: Scheduler | None) -> Instance | None:
        """Claim an instance for a caller's own request, if it may skip the queue."""
        node = self._node
        with node.lock:
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
                instance = free.pop(0)
                instance.ident = get_ident()
                instance.direct += 1
                instance.holder = request
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

    # The request itself.

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
        return _batch.no_result(self.name, instance, request)


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
