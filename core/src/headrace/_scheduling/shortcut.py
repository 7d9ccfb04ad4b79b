"""The short cut: a caller that waits without a deadline runs its own request on an idle instance, past the queue.

It pops the instance without the lock, runs it and puts it back. Without this tiny backends would lose half of their speed; and
without the second short cut, that the main thread may do so too, the main thread would lose nine tenths. All else goes
through the queue, for the main thread in a helper (see `headrace._scheduling.threads`).

**Ctrl-C.** While the main thread runs its own request, the interrupt is raised in its backend, as in any program. The instance was
popped and named in one step, so it is found, and given back by one call into C. While the main thread waits, the
interrupt frees it at once: what waits is taken back, and what runs goes on without it (``abandoned``).
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._checked import PENDING
from headrace._scheduling.batch import judged, run_alone, wrapped
from headrace._scheduling.entry import (
    MISSING,
    NOBODY,
    Entry,
    raise_failure,
    refuses_change,
    restore,
)
from headrace._scheduling.node import Waiter
from headrace._scheduling.threads import (
    handed_over,
    helpers,
    in_section,
    main_thread,
    refuse_inside,
    run_on_helper,
    sections,
)
from headrace.errors import code_of

if TYPE_CHECKING:
    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node
    from headrace.keys import Request

_pop = list.pop


class ShortCut:
    """Runs single requests in the threads of their callers.

    Attributes:
        max_weight: The greatest weight of a request that may skip the queue; 0 where none may.
        keeps_main_away: Whether the main thread runs nothing itself: a probe that may not be re-entered hears of it.
        checks_all: Whether the request must have other keys than ``data``.
    """

    def __init__(self, node: Node, dispatcher: Dispatcher, scheduler: Any) -> None:
        self._node, self._dispatcher, self._scheduler = node, dispatcher, scheduler
        self.keeps_main_away = self.checks_all = False
        self.measure()

    def measure(self) -> None:
        """Work out which requests may skip the queue, after keys, policies or instances have changed."""
        node, limits = self._node, self._node.limits
        usable = (
            limits.shortcut
            and self._dispatcher.policies[0].sends_when_idle
            and not self._dispatcher.picks
            and limits.timeout_ms is None
            and len({(one.min, one.max) for one in node.instances}) == 1
            and node.min == 1
            and not limits.batch_sizes
            and all(one.thread is None for one in node.instances)
            and node.refusing is None
        )
        self.max_weight = 0 if not usable else 2**63 if node.max is None else node.max
        self._lingers = limits.batching_timeout_ms > 0 and node.max != 1

    def call(  # noqa: C901, PLR0912, PLR0915 - every call of a function is felt here
        self, request: Request, *, internal: bool = False, home: Any = None
    ) -> None:
        """Run one request for a caller that waits without a deadline; raises its error.

        Args:
            request: The request.
            internal: Whether it comes from another node, and may enter while newcomers are refused.
            home: Where the request has entered; None for here.
        """
        node, me, weight = self._node, get_ident(), 1
        if me in sections and (me != main_thread.ident or self.keeps_main_away):
            self._call_slowly(request, internal, home)
            return
        if "data" not in request or "request_size" in request or self.checks_all:
            weight = self._scheduler.checked(request)
            if "data" not in request:
                self._call_slowly(request, internal, home)
                return
        data = request["data"]
        if "result" in request:
            del request["result"]
        idle = node.idle
        if not (
            idle
            and weight <= self.max_weight
            and not (node.queue.count or node.special)
            and (home is not None or not node.quota.waiting or not node.full)
            and (not self._lingers or len(idle) == len(node.instances))
        ):
            self._call_slowly(request, internal, home)
            return
        instance: Instance | None = None
        error: BaseException | None = None
        is_kept = False
        try:
            # One step: Ctrl-C comes before it, or finds the instance named.
            (instance,) = map(_pop, (idle,), (0,))
            instance.ident, instance.holder = me, request
            instance.unqueued += 1
            if not instance.unqueued & instance.mask:
                error = self._run_alone(instance, request)
            else:  # not timed: what `run_alone` does, without the call
                try:
                    outcomes = instance.run([request])
                except Exception as raised:  # noqa: BLE001 - past the backend's own guard
                    error = wrapped(node.name, instance, raised)
                else:
                    if outcomes is not None or "result" not in request:
                        error = judged(instance, request, outcomes, node)
            if error is None:
                request["data"] = data
                if instance.retired is None:
                    instance.ident, instance.holder = 0, None
                    idle.append(instance)
                    if node.queue.count or node.special:
                        self._lead(me)
                    return
            elif error is PENDING:
                is_kept = True
                error = self._scheduler.wait_kept(instance, request, data, weight, home)
            else:
                request["data"] = data
            if not is_kept:
                self._end_alone(instance, request, error)
        except BaseException as raised:
            if instance is not None:
                helpers.put((self._end_here, (instance, request, raised, False)))
                raise self._recovered(instance, request, data, raised) from None
            if not isinstance(raised, IndexError):  # the interrupt came first
                raise
        if instance is None:  # another caller was quicker
            self._call_slowly(request, internal, home)
        elif error is not None:
            try:
                self._raise(request, error, is_noted=is_kept)
            finally:
                del error  # see `Entry.take_error`

    def _call_slowly(self, request: Request, internal: bool, home: Any) -> None:
        """Run one request that has found no idle instance, or that only a helper may run."""
        me = get_ident()
        if me == main_thread.ident:
            data = request.get("data", MISSING)
            try:
                run_on_helper(self._call_slowly, request, internal, home)
            except BaseException as raised:
                restore(request, data, raised)
                raise
            return
        if me in sections and in_section(me):
            refuse_inside(self._node.name)
        weight = self._scheduler.checked_again(request)
        request.pop("result", None)
        quota = None if home is None else home.new_quota()
        entry = Entry(request, NOBODY, weight, None, 0, quota)
        self._scheduler.wait_for((entry,), internal=internal)
        entry.raise_error()

    def _recovered(
        self, instance: Instance, request: Request, data: Any, raised: BaseException
    ) -> BaseException:
        """Give the instance back after an interrupt, or an error of the user's dict; give what the caller raises."""
        # This waits, so that the next call finds the instance.
        self._end_alone(instance, request, raised)
        restore(request, data, raised)
        return refuses_change(raised) if isinstance(raised, Exception) else raised

    def _run_alone(self, instance: Instance, request: Request) -> BaseException | None:
        reporter = self._node.reporter
        if reporter is None:
            return run_alone(instance, request, self._node)
        return reporter.run_alone(instance, request, self._node)

    def _lead(self, me: int) -> None:
        """Look at the queue after a request of one's own; run batches of others for a while."""
        if me == main_thread.ident:
            handed_over.give(self._node.move_up)
            return
        leader = Waiter(me, self._node)
        with self._node.section:
            work = self._dispatcher.dispatch(leader)
        self._dispatcher.drive(work, leader)

    def _end_alone(self, instance: Instance, request: Request, error: BaseException | None) -> None:
        """Give an instance back after a caller's own request, where there is more to do than usual."""
        if get_ident() == main_thread.ident:
            run_on_helper(self._end_here, instance, request, error, False)
        else:
            self._end_here(instance, request, error)

    def _end_here(
        self, instance: Instance, request: Request, error: BaseException | None, leads: bool = True
    ) -> None:
        node = self._node
        leader = Waiter(get_ident(), node) if leads else None
        with node.section:
            if instance.holder is request:  # else it was given back before the interrupt came
                if error is not None:
                    instance.failed(code_of(error) if isinstance(error, Exception) else "interrupt")
                node.give_back(instance)
            work = self._dispatcher.dispatch(leader)
        if leader is not None:
            self._dispatcher.drive(work, leader)

    def _raise(self, request: Request, error: BaseException, *, is_noted: bool = False) -> None:
        """Raise the error of a request that its caller has run."""
        try:
            if not is_noted:
                self._node.failures.note(error, request)
            raise_failure(request, error)
        finally:
            del error  # see `Entry.take_error`
