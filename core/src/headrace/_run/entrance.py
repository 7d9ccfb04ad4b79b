"""Where requests enter a pipeline: at its only node, or at the first node of a route."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from functools import partial
from numbers import Real
from sys import modules
from threading import TIMEOUT_MAX, get_ident
from typing import TYPE_CHECKING, Any, NoReturn, cast

from headrace._run.batches.runners import wait_for
from headrace._run.contract.checked import as_int
from headrace._run.graph.graph_request import GraphRequest, send_all
from headrace._run.graph.walk import may_wait, run_and_wait, walk
from headrace._run.process import report
from headrace._run.requests.deadlocks import refuse as refuse_endless
from headrace._run.requests.entry import DATA_ALONE, DONE, NEW, OUTSIDE, Entry, check_weight
from headrace._run.requests.futures import LoopCall, LoopWaker, RequestFuture, give_up
from headrace._run.requests.refusals import endless_wait
from headrace._run.steps.box import ask, post
from headrace._run.steps.threads import Signal, check_stack, warn_in_coroutine
from headrace._run.steps.tracebacks import set_abandoned, with_cause, without_locals
from headrace._texts import error_text, repr_of
from headrace.errors import InputError, RequestsFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from headrace._run.contract.checked import Checked
    from headrace._run.graph.route import Graph, Route
    from headrace._run.node import Node
    from headrace._run.steps.box import Box
    from headrace.errors import ClosedError
    from headrace.keys import Request

    Admitted = tuple[Entry, Route | None]
    """A request on entry, and its way through the graph; None without one, or where it is done."""


class Entrance:
    """Where requests enter a pipeline.

    Attributes:
        only: The node that takes all requests. None where they go through the graph.
        graph: The graph. None where nothing goes through one.
        any_node: The node that counts and refuses requests for which no node is known.
        call: Runs one request that has no deadline, and raises its error. None where the graph does
            that.
        closing: The error of all requests. None while they are taken.
        on_way: Per ``id`` of a caller's dict that is on its way, what keeps it from being sent
            again meanwhile.
    """

    call: Callable[[Request], object] | None

    def __init__(self, box: Box, graph: Graph | None, first: Node) -> None:
        self.box = box
        self.only = first if graph is None else None
        self.graph = cast("Graph", graph)  # asked for where there is no `only`
        self.any_node = first
        self.on_way: dict[int, object] = {}
        self._begun: deque[LoopCall] = deque()
        self._waker: LoopWaker | None = None  # of the event loop that has called last
        self.closing: ClosedError | None = None
        self._unsaid: list[Callable[[], None]] = []
        self.use({})

    def use(self, enters: Mapping[type[Checked], Checked]) -> None:
        """Let ``enter`` of these classes, each with one backend, see every request from now on."""
        by_function: dict[Any, tuple[Any, Any, list[type[Checked]], Checked]] = {}
        for cls, backend in enters.items():  # classes may share one function, which is asked once
            enter: Any = cls.enter  # type: ignore[attr-defined]
            takes = getattr(enter, "__kwdefaults__", None) or ()
            by_function.setdefault(enter, (enter, "call" in takes, [], backend))[2].append(cls)
        self._enters = [*by_function.values()]
        self.call = None if self.only is None else self.only.call
        if self._enters:
            self.call = partial(self.run_one, timeout=None, priority=0)

    # Checking requests on entry.

    def close(self, error: ClosedError, unsaid: list[Callable[[], None]] | None = None) -> None:
        """Refuse all requests from now on; the first one refused logs ``unsaid``."""
        self.closing, self._unsaid = error, unsaid or []
        if unsaid:
            # In the child of a fork, where no thread of a node is left to refuse anything.
            self.call = lambda request: self.check_open([request])

    def check_open(self, requests: Sequence[object] = ()) -> None:
        """Raise ClosedError when requests are refused; they are counted, and lose ``result``."""
        if self.closing is None:
            return
        report(self._unsaid)
        error = self.closing._passing(passes=False)
        error.begun = False if requests else None
        for request in requests:
            self._refuse_closed(request, error)
        raise error

    def _refuse_closed(self, request: Any, error: ClosedError) -> None:
        """Count a request that comes after the pipeline was closed, where it would have entered."""
        node = self.any_node
        with suppress(Exception):  # the dict is the user's, and may raise anything
            if isinstance(request, dict):
                request.pop("result", None)
                node = self.only or self.graph.route_of(request).first
        node.count_refused(request, error)

    def admit(
        self,
        items: list[Any],
        timeout: float | None,
        priority: int,
        admitted: list[Admitted],
        on_way: dict[int, object],
    ) -> None:
        """Put an entry per item into ``admitted``.

        The entry of an item that is no request is done, with its error. Each claims its dict in
        ``on_way``: nobody else may send that until `Entry.leave`. Whatever is raised here or later,
        who has made ``admitted`` lets go of these: `leave_all`.
        """
        deadline, level = self._terms(timeout, priority)
        routes: dict[int, Route | None] = {}
        call: dict[Any, Any] = {}
        key, mine = 0, (None,)
        try:
            for item in items:
                key, mine, error = id(item), (item,), None
                if key in routes:
                    message = "this dict stands in the list a second time"
                    error = InputError(message, hint="Send a dict of its own per request.")
                elif isinstance(item, dict) and on_way.setdefault(key, mine) is not mine:
                    error = _on_its_way()
                # Read once it is claimed: before, a value between two backends may stand in it.
                entry, route = Entry(item, None, 1, deadline, level), None
                if error is not None:
                    self._refuse(entry, routes.get(key), error)
                else:
                    entry.on_way = on_way
                    route = routes[key] = self._admit(entry, call)
                admitted.append((entry, route))
        except BaseException:  # Ctrl-C in `enter`, or no stack left: nobody will answer this one
            if key in on_way and on_way[key] is mine:  # as in `Pipeline.__call__`
                del on_way[key]
            raise

    @staticmethod
    def _terms(timeout: float | None, priority: int) -> tuple[float | None, int]:
        """Return the deadline and the priority of a call."""
        if (type(timeout) is float or type(timeout) is int) and 0 <= timeout < TIMEOUT_MAX:
            length_s = timeout  # as `seconds`
        else:
            length_s = TIMEOUT_MAX if timeout is None else seconds(timeout)  # it never ends
        deadline = None if length_s >= TIMEOUT_MAX else time.monotonic() + max(0.0, length_s)
        level = priority if type(priority) is int else as_int(priority)
        if level is None:
            raise TypeError(f"priority is an int, got {repr_of(priority)}")
        return deadline, level

    def refuse_twice(self, request: Request) -> NoReturn:
        """Refuse a dict that is on its way through this pipeline."""
        error = _on_its_way()
        self.any_node.count_refused(request, error)
        raise error

    def _admit(self, entry: Entry, call: dict[Any, Any]) -> Route | None:
        """Check a request on entry. The entry of a wrong one is done, with its error.

        ``call`` is for functions ``enter``.

        Returns:
            Its route through the graph. None where there is no graph, or the entry is done.
        """
        request, route, node = entry.request, None, self.any_node
        try:
            if self.only is not None or not isinstance(request, dict):
                entry.weight = check_weight(request, node.name, node.needs)
            else:
                route = self.graph.route_of(request)
                entry.weight = check_weight(request, route.first.name, route.needs)
            request.pop("result", None)
        except Exception as error:  # a user's dict fails its request alone
            if isinstance(request, dict):
                with suppress(Exception):
                    request.pop("result", None)
            known = error
            if not isinstance(error, InputError):
                unread = InputError(f"the request cannot be read: {error_text(error)}")
                known = with_cause(unread, error)
            self._refuse(entry, route, known)
            return None
        if self._enters:
            entry.entered, failed = self._ask_backends(request, call)
            if failed is not None:
                self._refuse(entry, route, failed)
                return None
        return route

    def _ask_backends(
        self, request: Request, call: dict[Any, Any]
    ) -> tuple[dict[type, Any] | None, Exception | None]:
        """Return what the functions ``enter`` return for a request, or the error of one of them."""
        entered: dict[type, Any] | None = None
        for enter, takes_call, classes, backend in self._enters:
            try:
                answer = enter(request, call=call) if takes_call else enter(request)
            except Exception as error:  # any error of a backend fails its request
                return None, backend._wrap(without_locals(error))
            if answer is not None:
                entered = {**(entered or {}), **dict.fromkeys(classes, answer)}
        return entered, None

    def _refuse(self, entry: Entry, route: Route | None, error: Exception) -> None:
        """Refuse a request before it enters, and count it."""
        # A cycle: its traceback refers to frames of the call, and these to the error's future.
        entry.refuse(error.with_traceback(None))
        (route.first if route else self.any_node).count_refused(entry.request, error)

    # Running requests.

    def run(self, admitted: list[Admitted]) -> None:
        """Run requests and wait for all of them; their outcomes are in the entries."""
        warn_in_coroutine()
        if self.only is not None:
            wait_for(self.only, [entry for entry, _ in admitted if entry.state != DONE])
        else:
            run_and_wait(
                self.graph, [(route, entry) for entry, route in admitted if route is not None]
            )

    def run_one(self, data: Any, timeout: float | None, priority: int) -> None:
        """Run one request and wait for it; raises its error."""
        if self.closing is not None:
            self.check_open([data])
        only = self.only
        if only is not None and not self._enters and type(data) is dict:
            deadline, level = self._terms(timeout, priority)
            is_plain = "data" in data and "request_size" not in data and only.needs is DATA_ALONE
            weight = 1 if is_plain else only.check_entry(data)
            if "result" in data:
                del data["result"]
            if "asyncio" in modules:
                warn_in_coroutine()
            only.short_cut.wait(data, weight, deadline, level)
            return
        plain = timeout is None and priority == 0 and type(data) is dict and "data" in data
        admitted: list[Admitted] = []
        self.admit([data], timeout, priority, admitted, {})  # the call has claimed it
        ((entry, route),) = admitted
        plain = plain and entry.state != DONE and entry.entered is None
        if plain and only is not None and only.short_cut.max_weight and only.free:
            only.call(data)
        elif plain and route is not None:
            walk(self.graph, route, data)
        elif entry.state != DONE:
            self.run(admitted)
        entry.raise_error()

    def submit(
        self, admitted: list[Admitted], owners: Sequence[RequestFuture], *, waits: bool = True
    ) -> None:
        """Let requests run whose outcomes the owners take; it waits only for room in a queue."""
        fresh = []
        for (entry, route), owner in zip(admitted, owners, strict=True):
            if entry.state == DONE:
                owner._take_outcome(entry)
            else:
                owner._expects(entry)
                fresh.append((entry, route))
        self._start(fresh, waits=waits)

    def waker(self, loop: asyncio.AbstractEventLoop) -> LoopWaker:
        """Return what wakes the coroutines of an event loop."""
        waker = self._waker
        if waker is None or waker.loop is not loop:
            waker = self._waker = LoopWaker(loop)
        waker.look()
        return waker

    def begin(
        self,
        loop: asyncio.AbstractEventLoop,
        admitted: list[Admitted],
        done: Callable[[LoopCall], object],
        *,
        together: bool = False,
    ) -> list[LoopCall]:
        """Let requests run of which a loop is told; those that are done are left out.

        Args:
            loop: The running event loop.
            admitted: The requests.
            done: Called for each in the loop, in a later turn.
            together: Whether they enter at the end of this turn of the loop, with all others that
                it has begun so: one wake for all. Else they enter now.
        """
        waker, only, calls = self._waker, self.only, []
        if waker is None or waker.loop is not loop or waker.due:
            waker = self.waker(loop)
        holds_instance = only is not None and not only.free and only.is_held_by_this_thread()
        for entry, route in admitted:
            if entry.state == DONE or (route is not None and not may_wait(route, entry)):
                continue
            if holds_instance:
                self._refuse(entry, None, endless_wait(self.any_node.name))
                continue
            call = LoopCall(entry.request, done)
            call.note_entry(self.box, waker, entry, route)
            calls.append(call)
        if not together:
            self._start([(call.entry, call.route) for call in calls], waits=False)
        elif calls:
            self._begun.extend(calls)
            if not waker.comes:
                waker.comes = True
                loop.call_soon(self._enter_together, waker)
        return calls

    def _enter_together(self, waker: LoopWaker) -> None:
        """Let the requests enter that a turn of an event loop has begun."""
        waker.comes = False
        calls = self._take_begun()
        try:
            self._start([(call.entry, call.route) for call in calls], waits=False)
        except BaseException as raised:  # Ctrl-C, or no stack: who awaits is told
            for call in calls:
                call.fail(raised)

    def _take_begun(self) -> list[LoopCall]:
        begun = []
        with suppress(IndexError):
            while True:
                begun.append(self._begun.popleft())
        return [call for call in begun if call.entry.state == NEW]

    def enter_begun(self) -> None:
        """Let the requests enter that were begun before the pipeline refuses others; in a step."""
        calls = self._take_begun()
        entries = [call.entry for call in calls]
        if not entries:
            return
        if self.only is not None:
            self.only.start(entries)
            self.only.enter(entries)
        else:
            for call in calls:
                GraphRequest(self.graph, call.route, call.entry).start()

    def _start(self, fresh: list[Admitted], *, waits: bool) -> None:
        if not fresh:
            return
        entries = [entry for entry, _ in fresh]
        try:
            check_stack()
            if self.only is not None:
                firsts = [self.only]
                self.only.start(entries)
                self.only.send(entries)
            else:
                routes = [(route, entry) for entry, route in fresh if route is not None]
                begun = [GraphRequest(self.graph, *pair) for pair in routes]
                firsts = [request.first for request in begun]
                send_all(begun)
            for first in firsts if waits else ():
                if first.limits.queue_full == "wait" and first.room.is_over:
                    self._wait_for_room(first, entries)
                    break
        except BaseException as raised:
            set_abandoned(raised, ask(self.box, give_up, entries))
            raise

    def _wait_for_room(self, first: Node, entries: list[Entry]) -> None:
        if first.is_held_by_this_thread() and not first.free:
            post(self.box, refuse_endless, entries)
            return
        room = Signal()
        for entry in entries:
            entry.awaited, entry.room = get_ident(), room.wake
        # A step that lets an entry in changes its state first, and looks for `room` afterwards.
        while any(entry.state in _BEFORE for entry in entries):
            room.sleep()
        for entry in entries:
            entry.awaited = 0


def leave_all(admitted: Sequence[Admitted]) -> None:
    """Let the dicts of these be sent again."""
    for entry, _ in admitted:
        entry.leave()


_BEFORE = (NEW, OUTSIDE)
"""The states of an entry that is not in the queue yet."""


def _on_its_way() -> InputError:
    sent = "it was sent before, and has no answer yet"
    hint = "Send a dict of its own per request. One that holds the same data does: dict(request)."
    return InputError(f"this dict is on its way through this pipeline: {sent}", hint=hint)


def seconds(timeout: float | None, *, least: float | None = None) -> float:
    """Return seconds of any type as a float from -1 to the longest wait, which None means.

    Raises:
        TypeError: It is no number, or NaN.
        ValueError: It is below ``least``.
    """
    length = TIMEOUT_MAX if timeout is None else timeout
    number = isinstance(length, (int, float, Real)) and not isinstance(length, bool)
    if not number or length != length:  # NaN
        raise TypeError(f"timeout is a number of seconds, got {timeout!r}")
    if least is not None and length < least:
        raise ValueError(f"timeout is at least {least}, got {timeout!r}")
    return float(min(max(-1, length), TIMEOUT_MAX))


def raise_failed(entries: list[Entry]) -> None:
    """Raise the errors of a list of requests, if there are any."""
    if any([entry.error is not None for entry in entries]):  # as in `batch.run`
        raise RequestsFailed([entry.take_error() for entry in entries])
