"""The short cut: a caller without deadline runs its own request on a free instance, past the box.

Taking an instance is one call into C. Who puts one back looks at the queue afterwards. So tiny
backends keep their speed.

**Ctrl-C.** While the main thread runs its own request, the interrupt is raised in its backend, as
in any program. The instance was taken and named in one step of the interpreter, so it is found, and
a step puts it back.
"""

from __future__ import annotations

import _thread
from _thread import allocate_lock
from sys import modules
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.batches.batch import judge, wrap_own
from headrace._run.batches.runners import expire, seconds_until, withdraw
from headrace._run.records.statistics import ALONE
from headrace._run.requests.entry import (
    DATA_ALONE,
    MISSING,
    Entry,
    raise_failure,
    refuses_change,
    restore,
)
from headrace._run.requests.room import Ticket
from headrace._run.steps.box import ask, in_steps, main, post, refuse_inside
from headrace._run.steps.threads import check_stack, own_threads, warn_in_coroutine
from headrace.errors import code_of

if TYPE_CHECKING:
    from headrace._run.batches.instance import Instance
    from headrace._run.node import Node
    from headrace.keys import Request

_pop = list.pop


class ShortCut:
    """Runs single requests in the threads of their callers.

    Attributes:
        max_weight: The greatest weight of a request that may skip the queue. 0 where none may.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.set_bounds()

    def set_bounds(self) -> None:
        """Work out which requests may skip the queue, after a change of the node."""
        node, limits = self._node, self._node.limits
        self._checks_all = node.needs is not DATA_ALONE and bool(node.needs)
        usable = (
            limits.shortcut
            and node.decision.policy.sends_when_idle
            and not node.decision.picks
            and limits.timeout_ms is None
            and len({(instance.min, instance.max) for instance in node.instances}) == 1
            and node.min == 1
            and not limits.batch_sizes
            and not any(instance.thread or instance.liveness.keeps for instance in node.instances)
            and node.refusing is None
        )
        self.max_weight = 0 if not usable else 2**63 if node.max is None else node.max
        spreads = getattr(node.decision.policy, "spreads", False)
        self._starts = limits.timeout_ms is not None or node.decision.picks
        self._stands_by = bool(self.max_weight) and node.max == 1
        self._lingers = limits.batching_timeout_ms > 0 and node.max != 1 and not spreads

    def call(  # one more call of Python would cost a tenth of all that this does
        self, request: Request, *, internal: bool = False, home: Node | None = None
    ) -> None:
        """Run one request for a caller that waits without a deadline. Raises its error.

        Args:
            request: The request.
            internal: Whether it comes from another node, and may enter while newcomers are refused.
            home: The node at which the request has entered. None for this node.
        """
        node, me, weight = self._node, get_ident(), 1
        # Most event loops run in the main thread. In another one the calls that are sampled look.
        if me == main and not internal and "asyncio" in modules:
            warn_in_coroutine()
        if "data" not in request or "request_size" in request or self._checks_all:
            weight = node.check_entry(request)
            if "data" not in request:
                request.pop("result", None)
                self.wait(request, weight, None, 0, internal, home)
                return
        data = request["data"]
        if "result" in request:
            del request["result"]
        if node.crowded:
            self.wait(request, weight, None, 0, internal, home)
            return
        free, standby = node.free, node.standby
        stood_s, called = 0.0, False
        if (
            not free
            or weight > self.max_weight
            or node.queue.count
            or node.inbox
            or node.special
            or (me in in_steps and me != main)
            or (home is None and node.tickets and node.room.full)
            or (self._lingers and len(free) < len(node.instances))
            or node.decision.returning
            or (standby.until and len(free) < 2 and node.clock() < standby.until)
        ):
            if self._stands_by and not internal and home is None and weight == 1:
                stood_s = standby.wait()
            if not stood_s:
                self.wait(request, weight, None, 0, internal, home)
                return
            called = True
        instance: Instance | None = None
        error: BaseException | None = None
        try:
            # One step: Ctrl-C comes before it, or finds the instance named.
            (instance,) = map(_pop, (free,), (0,))
            instance.ident, instance.holder = me, request  # from here on as `Instance.begin` does
            if node.special:  # since the look above: perhaps all that was idle then is closed
                instance.ident = 0
                post(node.box, self._end, instance, request)
                instance = None
                raise IndexError  # as where another caller was quicker
            instance.batches += 1
            if called:
                standby.until, called = 0.0, False
                if standby.turns:
                    standby.call_in()
            sampled = not instance.batches & instance.mask
            if weight != 1 and not node.events.each:
                instance.on_cut(1, weight, ALONE)
            if sampled:
                instance.waited.add(stood_s * 1000)
                error = node.events.run_alone(instance, request, node)
            else:  # not timed: what `run_alone` does, without the call
                try:
                    outcomes = instance.run([request])
                except BaseException as raised:  # past the backend's own guard
                    error = wrap_own(node.name, instance, raised)
                else:
                    if outcomes is not None or "result" not in request:
                        error = judge(instance, request, outcomes, node)
            if error is None:
                request["data"] = data
                instance.ident, instance.holder = 0, None  # as `Node.give_back` does
                instance.returns_to.append(instance)
                if node.aside:
                    node.bring_wide()
                if standby.turns:
                    standby.left = me
                    standby.call_in()
                if node.inbox or node.queue.count or node.special:
                    node.call_worker()
                if sampled and not internal:
                    instance = None
                    warn_in_coroutine()
                return
            instance.ident = 0
            request["data"] = data
            post(node.box, self._end, instance, request, error)
        except BaseException as raised:  # raised again below, or no outcome
            if instance is not None:
                instance.ident = 0
                try:  # one call into C, which needs no stack: a second Ctrl-C comes after it
                    _thread.start_new_thread(post, (node.box, self._end, instance, request, raised))
                except RuntimeError:  # `_raise_interrupted` does it
                    pass
            self._raise_interrupted(instance, request, data, raised)
        if called:
            standby.until = 0.0
        if instance is None:
            self.wait(request, weight, None, 0, internal, home)
            return
        try:
            if error is not None:
                node.events.report_failure(request, error)
            raise_failure(request, error)
        finally:
            del error  # see `Entry.take_error`

    def _raise_interrupted(
        self, instance: Instance | None, request: Request, data: Any, raised: BaseException
    ) -> None:
        """Raise what has interrupted a request, unless another caller took the instance."""
        if instance is None:
            if not isinstance(raised, IndexError):  # the interrupt came first
                raise raised
            return
        # The step comes before what this thread does next.
        post(self._node.box, self._end, instance, request, raised)
        restore(request, data, raised)
        self._node.events.report_failure(request, raised)
        raise refuses_change(raised) if isinstance(raised, Exception) else raised from None

    def wait(  # as few calls of Python as `call`
        self,
        request: Request,
        weight: int = 1,
        deadline: float | None = None,
        priority: int = 0,
        internal: bool = False,
        home: Node | None = None,
    ) -> None:
        """Leave a request in the inbox, and sleep until it has its outcome. Raises its error.

        Who cannot wait for its answer is refused. An interrupt cancels a request that waits, and
        goes on without one that runs (``abandoned``). As few calls of Python as may be: each
        touches what other threads have touched last.
        """
        node, me = self._node, get_ident()
        if me in in_steps:
            refuse_inside(node.name)
        check_stack()
        entry = Entry(request, None, weight, deadline, priority)
        lock = entry.lock = allocate_lock()
        lock.acquire()
        entry.node, entry.awaited, entry.internal, entry.arrival = node, me, internal, node.clock()
        try:
            if self._starts:
                node.start((entry,), entry.arrival)
            if home is not None:
                entry.ticket = Ticket(home)
                entry.ticket.waits(entry)
            holds = False
            for instance in node.instances:
                if instance.ident == me:
                    holds = True
            if holds or me in own_threads:
                node.send((entry,), waits=me)
            else:  # as `send`
                inbox = node.inbox
                inbox.append(entry)
                if priority or weight != 1:
                    node.is_plain = False
                if len(inbox) + len(node.tickets) >= node.calls_at or (
                    node.free and not (node.holds_back and node.is_plain)
                ):
                    node.call_worker()
            if entry.deadline is None:
                lock.acquire()
            elif not lock.acquire(True, seconds_until(entry.deadline)):
                post(node.box, expire, (entry,))  # from here on it is done, or will be in a moment
                lock.acquire()
        except BaseException as raised:  # Ctrl-C
            raised.abandoned = ask(node.box, withdraw, (entry,))  # type: ignore[attr-defined]
            entry.give_back()
            raise
        if entry.error is None and entry.data is not MISSING:
            request["data"] = entry.data
        else:
            entry.give_back()
            entry.raise_error()

    # Steps.

    def _end(self, instance: Instance, holder: object, error: BaseException | None = None) -> None:
        """Put an instance back; without an error its holder has run nothing."""
        if instance.holder is holder:  # else it was put back before the interrupt came
            if error is not None:
                code = code_of(error) if isinstance(error, Exception) else "interrupt"
                instance.count_failure(code)
            self._node.give_back(instance)
        self._node.note_change()
