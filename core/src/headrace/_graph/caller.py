"""Callers that wait for their requests.

`run_in_caller` is the driver in the caller's thread: it runs one node after the other, branches too. Where
branches are slow, the caller runs one node at a time in `run_along`, and runners run the others meanwhile. In
`run_and_wait` the caller sleeps until other threads have taken all its requests through the graph.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from headrace._graph.entries import EntriesOfOne, count
from headrace._graph.request import GraphRequest, start
from headrace._graph.traversal import Failure, Traversal, finish
from headrace._scheduling.admission import endless_wait
from headrace._scheduling.base import refuse_inside
from headrace._scheduling.batch import entry_here
from headrace._scheduling.calls import reentrant, withdrawn_by
from headrace._scheduling.entry import DONE, NOBODY, Entry, checked_weight, raise_failure, restore
from headrace._scheduling.locks import Signal, took_token
from headrace._scheduling.node import deliver
from headrace._scheduling.process_threads import errands
from headrace._scheduling.threads import cycle_of, noted
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._graph.graph import Graph
    from headrace._graph.route import Ends, Route
    from headrace._graph.traversal import Visit
    from headrace._scheduling.entry import Owner, Quota
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

CHEAP_S = 200e-6
"""Branches run one after the other in the caller's thread while their mean forward is below this."""


def is_cheap(route: Route) -> bool:
    """Tell whether a caller may run the branches of a route one after the other itself.

    A route without branches is always cheap.
    """
    for scheduler in route.parallel:
        for instance in scheduler.instances:
            if instance.mean_s >= CHEAP_S:
                return False
    return True


def run_in_caller(graph: Graph, route: Route, request: Request, *, internal: bool = False) -> None:
    """Take a request through the graph in the calling thread, which waits without a deadline.

    Args:
        graph: All nodes.
        route: The nodes that take part.
        request: The request.
        internal: Whether the request comes from the front of this pipeline: closing does not refuse it
            then, but a full queue does.

    Raises:
        RequestError: The request failed; its ``data`` is the caller's again, and it has no ``result``.
    """
    data = request["data"]
    home = route.first
    token, in_flight = object(), graph.in_flight
    try:
        in_flight[token] = get_ident()
        if route.is_chain:
            rest = home.call(request, internal=internal, rest=route.chain)
            while rest is not None:
                scheduler, after = rest
                request["data"] = request.pop("result")
                rest = scheduler.call(request, internal=True, home=home, rest=after)
        elif route.is_plain:
            _hop(route, request, internal=internal)
        else:
            _traverse(graph, route, request, internal=internal)
        request["data"] = data
    except BaseException as error:
        restore(request, data, error)
        raise
    finally:
        in_flight.pop(token, None)
        if graph.closers:
            graph.ended(token)


def _hop(route: Route, request: Request, *, internal: bool) -> None:
    """Take a request through plain nodes, each of which runs once, so that nothing is decided on the way.

    `Traversal` would do the same in twice the time.
    """
    home = route.first
    home.call(request, internal=internal)
    ends: Ends = {route.start.name: request}
    for name, make, scheduler in route.hops:
        try:
            current = ends[name] = make(ends)
        except HeadraceError as error:
            scheduler.count_refused(request, error)
            raise
        scheduler.call(current, internal=True, home=home)
    if len(route.sinks) > 1:
        finish([(sink, ends[sink.name]) for sink in route.sinks], request)
    elif current is not request:
        request.update(current)


def _traverse(graph: Graph, route: Route, request: Request, *, internal: bool) -> None:
    """Take a request through nodes of any kind."""
    home, entered = route.first, False
    traversal = Traversal(route, request, graph.route_from)
    ready = [traversal.begin()]
    failure: Failure | None = None
    while ready and failure is None:
        visit = ready.pop()
        scheduler, internal = visit.step.scheduler, entered or internal
        if visit.step.runs_once:
            scheduler.call(visit.request, internal=internal, home=home if entered else None)
        else:
            _run_entries(visit, home.new_quota(entered=entered), internal=internal)
        entered = True
        following = traversal.advance(visit)
        if isinstance(following, Failure):
            failure = following
        else:
            ready.extend(following[::-1])
    failure = failure or traversal.finish()
    if failure is not None:
        count(failure, request)
        try:
            raise failure.error
        finally:
            del failure, following  # see `Entry.take_error`


def _run_entries(visit: Visit, quota: Quota, *, internal: bool) -> None:
    """Run a node with ``each``, or a second door with a limit of its own.

    Args:
        visit: The node, and the dict on which it runs.
        quota: The quota that counts the request while it waits.
        internal: Whether the request is already in the pipeline, so that closing does not refuse it.
    """
    elements = EntriesOfOne(visit.step, visit.request, quota=quota)
    if any(entry.state != DONE for entry in elements.entries):
        visit.step.scheduler.call_many(elements.entries, internal=internal)
    elif not internal:
        raise_failure(visit.request, visit.step.scheduler.refusal(visit.request))
    raise_failure(visit.request, elements.gather())


class _Waiter:
    """The owner of the requests for which one thread waits together."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._pending = set(entries)
        self.signal = Signal()
        self.requests: list[GraphRequest] = []

    def places(self) -> list[tuple[Node, object]]:
        """Give the nodes at which the requests are, and those that they have yet to visit."""
        return [place for request in self.requests for place in request.places()]

    def finished(self, entry: Entry) -> None:
        """Take note that a request is over; the last one wakes the waiting thread.

        Two threads that end the last two requests both discard theirs first and look then: at least one of them
        finds the set empty, and a second wake is harmless.
        """
        self._pending.discard(entry)
        if not self._pending:
            self.signal.wake()


def may_wait(route: Route, entry: Entry) -> bool:
    """Refuse a request when this thread holds an instance that the request needs, and would wait for itself.

    Returns:
        Whether the request may begin; if not, its entry is done, with its error.
    """
    for step in route.steps:
        if step.scheduler.held_by_this_thread():
            error = endless_wait(step.name)
            step.scheduler.count_refused(entry.request, error)
            entry.refuse(error)
            return False
    return True


@reentrant(later=lambda _, items, **__: refuse_inside(items[0][0].first))
def run_and_wait(graph: Graph, items: list[tuple[Route, Entry]], *, internal: bool = False) -> None:
    """Let several requests run, none of them in this thread, and wait for all.

    Their outcomes are in the entries.

    Args:
        graph: All nodes.
        items: Per request its route and its entry.
        internal: Whether they come from the front of this pipeline: closing does not refuse them then, but
            a full queue does.
    """
    fresh = [(route, entry) for route, entry in items if may_wait(route, entry)]
    waiter = _Waiter(entry for _, entry in fresh)
    begun = [GraphRequest(graph, route, entry, waiter) for route, entry in fresh]
    try:
        call = withdrawn_by(lambda: sum([one.give_up() for one in begun]) > 0)
        if call is not None and call.given_up:
            return
        start(begun, internal=internal)
        with noted(waiter):
            waiter.requests = begun
            node = cycle_of(waiter)
            if node is not None:
                for one in begun:
                    one.end(endless_wait(node))
            if begun:
                waiter.signal.sleep()
    except BaseException as interrupt:
        left = [one.give_up() for one in begun]
        interrupt.abandoned = any(left)  # type: ignore[attr-defined]
        raise


class _Companion:
    """The owner of a request whose caller runs nodes itself, one at a time, while runners run other branches.

    The caller puts an item into `_free`, ends the node that it has run, and sleeps. The thread that ends a node, the
    caller or a runner, tries to pop that item for each node that may start now. If the caller has put it there
    before, the caller gets the node; if it is still at work, nothing is there to pop, and a runner gets the node.
    """

    def __init__(self, graph: Graph, route: Route, entry: Entry) -> None:
        self._free = [None]  # the thread that pops the item gives the caller a node
        self._given: tuple[Scheduler, list[Entry]] | None = None
        self._over = False
        self._signal = Signal()
        self._request = GraphRequest(graph, route, entry, self)
        self._request.give, self._request.caller = self._give, get_ident()

    def places(self) -> list[tuple[Node, object]]:
        """Give the nodes at which the request is, and those that it has yet to visit."""
        return self._request.places()

    def finished(self, entry: Entry) -> None:
        """Wake the caller, for its request is over."""
        self._over = True
        self._signal.wake()

    def _give(self, scheduler: Scheduler, entries: list[Entry]) -> bool:
        if not entries or not took_token(self._free):
            return False
        self._given = (scheduler, entries)
        self._signal.wake()
        return True

    def run(self, *, internal: bool) -> None:
        """Run nodes in the calling thread until the request is over."""
        ended: list[tuple[Owner, Entry]] | None = None
        try:
            while (given := self._next(ended, internal)) is not None:
                scheduler, entries = given
                owners = [entry.owner for entry in entries]
                scheduler.call_many(entries, internal=internal or ended is not None)
                ended = list(zip(owners, entries, strict=True))
        except BaseException as raised:
            # `add` is one step: if Ctrl-C comes again, a helper thread gives the request up still.
            errands.add((self._request.give_up,))
            left = self._give_up()
            raised.abandoned = left or getattr(raised, "abandoned", False)  # type: ignore[attr-defined]
            raise
        finally:
            del self._request.give  # no cycle of references

    @reentrant(later=lambda self, *_: refuse_inside(self.places()[0][0]))
    def _next(
        self, ended: list[tuple[Owner, Entry]] | None, internal: bool
    ) -> tuple[Scheduler, list[Entry]] | None:
        """End the node that the caller has run; give the next one, or None once the request is over.

        Args:
            ended: The entries that have run, each with the owner that it had; None before the first node.
            internal: See `run_in_caller`.
        """
        withdrawn_by(self._request.give_up)
        if ended is None:
            scheduler, entries = self._request.begin(internal=internal)
            self._give(scheduler, entries)
        else:
            self._free.append(None)
            for owner, entry in ended:
                deliver(owner, entry)
        with noted(self):
            while self._given is None and not self._over:
                node = cycle_of(self)
                if node is not None:
                    self._request.end(endless_wait(node))
                self._signal.sleep()
        given, self._given = self._given, None
        return given

    @reentrant()
    def _give_up(self) -> bool:
        return self._request.give_up()


def run_along(graph: Graph, route: Route, entry: Entry, *, internal: bool = False) -> None:
    """Take a request through the graph: the calling thread runs nodes, and runners other branches meanwhile.

    Its outcome is in the entry.

    Args:
        graph: All nodes.
        route: The nodes that take part.
        entry: The entry of the request, without a deadline.
        internal: See `run_in_caller`.
    """
    if may_wait(route, entry):
        _Companion(graph, route, entry).run(internal=internal)


def run_from_front(graph: Graph, request: Request) -> None:
    """Run a request that the front of the pipeline hands over, and wait; raises its error.

    It keeps the deadline and priority with which it came to the front.
    """
    route = graph.route_of(request)
    outer = entry_here()(request)
    terms = outer.deadline, outer.priority
    waits_as_caller = terms == (None, 0) and "data" in request
    if waits_as_caller and is_cheap(route) and outer.entered is None:
        run_in_caller(graph, route, request, internal=True)
        return
    weight = checked_weight(request, route.first.name, route.needs)
    entry = Entry(request, NOBODY, weight, *terms)
    entry.entered = outer.entered
    if waits_as_caller:
        run_along(graph, route, entry, internal=True)
    else:
        run_and_wait(graph, [(route, entry)], internal=True)
    entry.raise_error()
