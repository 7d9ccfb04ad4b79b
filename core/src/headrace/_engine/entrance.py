"""Where requests enter a pipeline: at its only scheduler, or at the first node of a route in the graph."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from numbers import Real
from threading import TIMEOUT_MAX, get_ident
from typing import TYPE_CHECKING, Any

from headrace._checked import as_int
from headrace._engine.futures import AsyncOwner, LoopWaker, NodeRequest
from headrace._graph.caller import may_wait, run_and_wait, run_in_caller
from headrace._graph.request import GraphRequest, start
from headrace._portable import caused, error_text, shown, without_locals
from headrace._process import say
from headrace._scheduling.entry import DONE, Entry, checked_weight
from headrace._scheduling.threads import handed_over, main_thread, reentrant, withdrawn_by
from headrace.errors import InputError, RequestsFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from headrace._backend import Backend
    from headrace._engine.futures import RequestFuture
    from headrace._engine.streams import Reading
    from headrace._graph.graph import Graph
    from headrace._graph.route import Route
    from headrace._scheduling.entry import Owner
    from headrace._scheduling.scheduler import Scheduler
    from headrace.errors import ClosedError
    from headrace.keys import Request

    Admitted = tuple[Entry, Route | None]
    """A request on entry, and its way through the graph; None without one, or where it is done."""
    Pending = NodeRequest | GraphRequest


class Entrance:
    """Where requests enter a pipeline.

    Attributes:
        only: The scheduler that takes all requests; None where they go through the graph.
        graph: The graph; None where nothing goes through one.
        any_scheduler: The scheduler that counts and refuses requests for which no node is known.
        call: Runs one request that has no deadline, and raises its error; None where the graph does that.
    """

    call: Callable[[Request], object] | None

    def __init__(self, only: Scheduler | None, graph: Graph | None, first: Scheduler) -> None:
        """Make the entrance; ``first`` is `any_scheduler` where there is no ``only`` one."""
        self.only = only
        self.graph: Any = graph  # a Graph where there is no `only`
        self.any_scheduler = only or first
        self._waker: LoopWaker | None = None  # of the event loop that has called last
        self._closing: ClosedError | None = None
        self._unsaid: list[Callable[[], None]] = []
        self.use({})

    def use(self, enters: Mapping[type[Backend], Backend]) -> None:
        """Let ``enter`` of these classes, each with a backend of it, hear of every request from now on."""
        self._enters: Any = [(cls, cls.enter, backend) for cls, backend in enters.items()]  # type: ignore[attr-defined]
        self.call = None if self.only is None else self.only.call
        if self._enters:
            self.call = partial(self.run_one, timeout=None, priority=0)

    # Checking requests on entry.

    def shut(self, error: ClosedError, unsaid: list[Callable[[], None]] | None = None) -> None:
        """Refuse all requests from now on; ``unsaid`` is what the first one that is refused says to operators."""
        self._closing, self._unsaid = error, unsaid or []
        if unsaid:
            # In the child of a fork, where no thread of a scheduler is left to refuse anything.
            self.call = lambda request: self.check_open([request])

    def check_open(self, requests: Sequence[object] = ()) -> None:
        """Raise ClosedError when requests are refused; ``requests`` are counted then, and lose their ``result``."""
        if self._closing is None:
            return
        say(self._unsaid)
        error = self._closing._passing(passes=False)
        error.begun = False if requests else None
        for request in requests:
            self._refuse_closed(request, error)
        raise error

    def _refuse_closed(self, request: Any, error: ClosedError) -> None:
        """Count a request that comes after the pipeline was closed, where it would have entered."""
        scheduler = self.any_scheduler
        with suppress(Exception):  # the dict is the user's, and may raise anything
            if isinstance(request, dict):
                request.pop("result", None)
                scheduler = self.only or self.graph.route_of(request).first
        scheduler.count_refused(request, error)

    def admitted(self, items: list[Any], timeout: float | None, priority: int) -> list[Admitted]:
        """Make an entry per item; an item that is no request gets an entry that is done, with its error."""
        deadline = None if timeout is None else _deadline_after(timeout)
        level = priority if type(priority) is int else as_int(priority)
        if level is None:
            raise TypeError(f"priority is an int, got {shown(priority)}")
        admitted: list[Admitted] = []
        seen: dict[int, Route | None] = {}
        for item in items:
            entry = Entry(item, deadline=deadline, priority=level)
            route = None
            if id(item) in seen:
                what = "this dict stands in the list a second time"
                hint = "Send a dict of its own per request."
                self._refuse(entry, seen[id(item)], InputError(what, hint=hint))
            else:
                route = seen[id(item)] = self._admit(entry)
            admitted.append((entry, route))
        return admitted

    def _admit(self, entry: Entry) -> Route | None:
        """Check a request on entry; the entry of a wrong one is done, with its error.

        Returns:
            Its route through the graph; None where there is no graph, or the entry is done.
        """
        request, route, scheduler = entry.request, None, self.any_scheduler
        try:
            if self.only is not None or not isinstance(request, dict):
                entry.weight = checked_weight(request, scheduler.name, scheduler.needs)
            else:
                route = self.graph.route_of(request)
                entry.weight = checked_weight(request, route.first.name, route.needs)
            request.pop("result", None)
        except Exception as error:  # noqa: BLE001 - what a user's dict raises fails its request alone
            if isinstance(request, dict):
                with suppress(Exception):
                    request.pop("result", None)
            what = f"the request cannot be read: {error_text(error)}"
            known = error if isinstance(error, InputError) else caused(InputError(what), error)
            self._refuse(entry, route, known)
            return None
        for cls, enter, backend in self._enters:
            try:
                found = enter(request)
            except Exception as error:  # noqa: BLE001 - any error of a backend fails its request
                self._refuse(entry, route, backend._wrap(without_locals(error)))
                return None
            if found is not None:
                entry.entered = {**(entry.entered or {}), cls: found}
        return route

    def _refuse(self, entry: Entry, route: Route | None, error: Exception) -> None:
        """Refuse a request before it enters, and count it."""
        # Its traceback refers to the frames of the call, and these to the future that gets the error: a cycle.
        entry.refuse(error.with_traceback(None))
        scheduler = self.any_scheduler if route is None else route.first
        scheduler.count_refused(entry.request, error)

    def _pending(self, entry: Entry, route: Route | None, owner: Owner) -> Pending:
        """Make the object that stands for an admitted request until ``owner`` has its outcome."""
        entry.owner = owner
        if route is None:
            return NodeRequest(self.any_scheduler, entry)
        return GraphRequest(self.graph, route, entry, owner)

    # Running requests.

    def run(self, admitted: list[Admitted]) -> None:
        """Run requests and wait for all of them; their outcomes are in the entries."""
        if self.only is not None:
            self.only.call_many([entry for entry, _ in admitted])
        else:
            fresh = [(route, entry) for entry, route in admitted if route is not None]
            if fresh:
                run_and_wait(self.graph, fresh)

    def run_one(self, data: Any, timeout: float | None, priority: int) -> None:
        """Run one request and wait for it; raises its error."""
        ((entry, route),) = admitted = self.admitted([data], timeout, priority)
        plain = timeout is None and priority == 0 and type(data) is dict and "data" in data
        plain = plain and entry.state != DONE and entry.entered is None
        if plain and self.only is not None:
            self.only.call(data)
        elif plain and route is not None:
            run_in_caller(self.graph, route, data)
        else:
            self.run(admitted)
        entry.raise_error()

    @reentrant()
    def submit(self, admitted: list[Admitted], futures: Sequence[RequestFuture | Reading]) -> None:
        """Let requests run that futures answer; this waits only for room in a full queue."""
        call = withdrawn_by(lambda: sum([one.cancel() for one in futures]) < len(futures))
        begun: list[Pending] = []
        for (entry, route), future in zip(admitted, futures, strict=True):
            if call is not None and call.given_up:
                entry.refuse(CancelledError())
            if entry.state == DONE:
                future.finished(entry)
                continue
            future.pending = pending = self._pending(entry, route, future)
            begun.append(pending)
        start(begun, waits_for_room=True)

    def begin(
        self, loop: asyncio.AbstractEventLoop, admitted: list[Admitted], waiting: list[AsyncOwner]
    ) -> None:
        """Let the requests of a coroutine run, and append to ``waiting`` the owner of each that it waits for.

        In the main thread the requests begin a moment later: a helper thread takes the locks, and the event
        loop goes on meanwhile.
        """
        waker = self._waker
        if waker is None or waker.loop is not loop:
            waker = self._waker = LoopWaker(loop)
        waker.attend()
        for entry, route in admitted:
            if entry.state == DONE or (route is not None and not may_wait(route, entry)):
                continue
            owner = AsyncOwner(waker)
            owner.pending = self._pending(entry, route, owner)
            waiting.append(owner)
        # A loop that runs inside a backend of this pipeline holds the instance for which its requests would
        # wait: they begin in this thread, so that the refusal of such a wait is known at once.
        inside = self.only is not None and self.only.held_by_this_thread()
        if get_ident() == main_thread.ident and not inside:
            handed_over.give(self._begin, waiting)
        else:
            self._begin(waiting, waits=inside)

    @reentrant()
    def _begin(self, waiting: list[AsyncOwner], *, waits: bool = False) -> None:
        """Let requests begin; an error is raised in the coroutine."""
        try:
            start([owner.pending for owner in waiting], waits=waits)
        except BaseException as error:  # noqa: BLE001 - the coroutine raises it
            for owner in waiting:
                owner.fail(error)


def _deadline_after(timeout: float) -> float | None:
    """Return the deadline of a timeout that begins now, on the clock of ``time.monotonic()``; None if it never ends."""
    length = seconds(timeout)
    return time.monotonic() + max(0.0, length) if length < TIMEOUT_MAX else None


def seconds(timeout: float | None, *, least: float | None = None) -> float:
    """Return a number of seconds of any type as a float from -1 to the longest wait, which None means as well.

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
    if any(entry.error is not None for entry in entries):
        raise RequestsFailed([entry.take_error() for entry in entries])
