"""Callers that find an instance free and run their own request, past the queue.

While nobody waits, the free instances lie on the *idle lists* of the node, where a caller takes one
without the lock: those of swift backends on a list for all callers, the others on one for the main
thread, which never takes the lock (see `headrace._scheduling.calls`). What keeps that safe:

- Popping an instance is a single step of the interpreter: the thread that pops an instance owns it.
- A caller that has popped an instance **announces it, then looks whether the idle list still stands**. A
  thread that takes instances out of service, or closes, puts up other idle lists first and looks for
  holders afterwards. Either the caller announces before that thread looks, which then finds it; or it
  looks after the other lists stand, and gives the instance back.
- A caller that puts an instance back **looks at the queue afterwards**, and a thread that joins the
  queue looks at the idle lists afterwards. Either the caller sees the request, or that thread sees the
  instance.
- Everybody else takes the lock, and first takes what lies on the idle lists (`Node.collect`); when
  nobody waits any more the free instances are published there again (`Node.publish`).
- Whatever is raised in between, Ctrl-C at any call or the end of the stack, **the first step after it
  gives the claim to a helper thread**, in one call into C: another interrupt cannot come before it.

The interpreter must show all threads the changes in one order. Where threads run at the same time
(free-threaded builds) nothing is published, and every claim is made under the lock.

What stands between ``# atomic`` and ``# end atomic`` cannot be torn by an interrupt: the interpreter
looks for one only after calls, at the begin of a function and where a loop goes back. A test walks the
syntax tree of these sections.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling.base import refuse_inside
from headrace._scheduling.batch import judged, wrapped
from headrace._scheduling.calls import errand
from headrace._scheduling.claiming import Claiming, fail, restore
from headrace._scheduling.entry import MISSING
from headrace._scheduling.instance import RETURNING, SWIFT_S
from headrace._scheduling.locks import holds_a_lock, main_thread, near_stack_end, no_room
from headrace._scheduling.process_threads import errands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.base import SchedulerBase
    from headrace._scheduling.sleeper import Rest
    from headrace.keys import Request


_take = deque.popleft


class FastPath(Claiming):
    """The way of a request that finds an instance idle."""

    def need(self, keys: Sequence[str]) -> None:
        """Say which keys a request must have, where that is not ``data`` alone."""
        self.needs = keys
        self.call = self._call_with_keys  # type: ignore[method-assign]

    def _call_with_keys(self, request: Request, **how: Any) -> Rest | None:
        self.checked(request)
        return type(self).call(self, request, **how)

    def call(  # noqa: C901, PLR0912, PLR0915 - each call less in here is felt by every request
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
            internal: It comes from another node of this pipeline, which closing does not refuse.
            home: The node at which it entered, against which its wait here counts.
            rest: The nodes after this one to which workers may move it on.

        Returns:
            What is left of ``rest``, from the first node at which the request has not been.
        """
        weight = 1
        if "data" not in request or "request_size" in request:
            weight = self.checked(request)
            if "data" not in request:  # it brings other keys
                request.pop("result", None)
                return self._call_slowly(request, MISSING, weight, home, rest, internal=internal)
        data = request["data"]
        if "result" in request:
            del request["result"]
        me = get_ident()
        idle = self._idle_list
        if not (
            (idle[0] or (me == main_thread.ident and (idle := self._idle_list_in_main)[0]))
            and not self._queue.count
            and weight <= self._unqueued_max
            and (home is not None or self._quota.count < self.limits.queue_size)
            and (not self._linger or self._node.idle_count == len(self.instances))
        ):
            return self._call_slowly(request, data, weight, home, rest, internal=internal)
        try:
            # Off the idle list and into the name in one step: an interrupt loses nothing.
            (instance,) = map(_take, idle)
        except IndexError:  # another caller was quicker
            return self._call_slowly(request, data, weight, home, rest, internal=internal)
        error: BaseException | None = None
        try:
            # atomic: an interrupt finds the whole claim, and so does `statistics`.
            instance.ident = me
            instance.holder = request
            # Other idle lists: the instance has been taken out of service, or all end.
            live = idle is self._idle_list or idle is self._idle_list_in_main
            if live:
                instance.unqueued += 1
            else:
                instance.holder = RETURNING
            # end atomic
            if live:
                if instance.unqueued & instance.mask:
                    try:
                        outcomes = instance.run([request])
                    except Exception as raised:  # noqa: BLE001 - past the backend's own guard
                        error = wrapped(self.name, instance, raised)
                    else:
                        if outcomes is not None or "result" not in request:
                            error = judged(
                                instance,
                                request,
                                outcomes,
                                self.name,
                                needs_result=self._node.needs_result,
                            )
                else:
                    error = self._run_alone(instance, request)
                request["data"] = data
            if idle is self._idle_list and error is None and instance.mean_s < SWIFT_S:
                # atomic: an interrupt finds the instance held, or free.
                instance.ident = 0
                instance.holder = None
                idle[0].append(instance)
                # end atomic
                # A thread that joined the queue before this look is seen here. One that joins later
                # looks at the idle list after that, and sees the instance.
                if self._queue.count or idle is not self._idle_list:
                    self._look(instance, idle)
            else:
                self._put_back(instance, idle, error)
        except BaseException as raised:
            try:
                restore(request, data, raised)
            finally:
                if instance.holder is request:
                    instance.ident = 0  # another thread may get this one's identifier
                errands.add((self._recover, instance, request, instance.unqueued))
            self._recovered(instance, request, raised)
            raise
        if not live:
            return self._call_slowly(request, data, weight, home, rest, internal=internal)
        if error is not None:
            try:
                fail(request, error)
            finally:
                del error  # see `Entry.take_error`
        return rest

    def _call_slowly(
        self,
        request: Request,
        data: Any,
        weight: int,
        home: SchedulerBase | None,
        rest: Rest | None,
        *,
        internal: bool,
    ) -> Rest | None:
        """Run one request that finds no instance on an idle list."""
        if get_ident() != main_thread.ident:
            if holds_a_lock():
                refuse_inside(self)
            if near_stack_end():
                raise no_room()
            return self._call_locked(request, data, weight, home, rest, internal=internal)
        try:
            if self._unqueued_max and data is not MISSING:
                errand(self._call_locked, request, data, weight, home, None, internal=internal)
            else:
                self._queue_up(request, weight, home, None, internal=internal)
        except BaseException as raised:
            restore(request, data, raised)
            raise
        return rest
