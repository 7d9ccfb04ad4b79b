"""Callers that wait for requests which go through the graph."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from headrace._graph.request import GraphRequest, start
from headrace._graph.traversal import finish, no_result
from headrace._scheduling.batch import entry_here
from headrace._scheduling.cycles import cycle_of, noted
from headrace._scheduling.entry import NOBODY, Entry, checked_weight, restore
from headrace._scheduling.refusals import endless_wait, interrupted
from headrace._scheduling.threads import (
    Signal,
    calls_run,
    reentrant,
    refuse_inside,
    withdrawn_by,
)
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._graph.graph import Graph
    from headrace._graph.route import Ends, Route
    from headrace._scheduling.node import Node
    from headrace._scheduling.threads import Call
    from headrace.keys import Request


CHEAP_S = 200e-6
"""Branches run one after the other in the caller's thread while their mean forward is below this."""


def is_cheap(route: Route) -> bool:
    """Tell whether a caller may run the branches of a route one after the other itself."""
    for scheduler in route.parallel:
        for instance in scheduler.node.instances:
            if instance.mean_s >= CHEAP_S:
                return False
    return True


def run_in_caller(graph: Graph, route: Route, request: Request, *, internal: bool = False) -> None:
    """Take a request through the graph in the calling thread, which waits without a deadline; raises its error."""
    me = get_ident()
    if not route.is_walked or (route.parallel and not is_cheap(route)):
        entry = Entry(request)
        if route.start.runs_once:
            entry.weight = route.first.checked_again(request)
        run_and_wait(graph, [(route, entry)], internal=internal)
        entry.raise_error()
        return
    # No other thread takes part, so no `GraphRequest` is needed.
    data = request["data"]
    token, in_flight = object(), graph.in_flight
    try:
        in_flight[token] = me
        route.first.call(request, internal=internal)
        if route.is_chain and me not in calls_run:  # one dict all the way
            for _, _, scheduler, _ in route.hops:
                request["data"] = request.pop("result")
                scheduler.call(request, internal=True, home=route.first)
        else:
            _hop(route, request, calls_run.get(me))
        request["data"] = data
    except BaseException as error:
        restore(request, data, error)
        raise
    finally:
        in_flight.pop(token, None)
        if graph.closers:
            graph.ended(token)


def _hop(route: Route, request: Request, call: Call | None) -> None:
    """Take a request through the nodes after the first, unless the thread for which ``call`` is made was freed."""
    ends: Ends = {route.start.name: request}
    current = request
    for name, make, scheduler, before in route.hops:
        if call is not None and call.given_up:
            raise interrupted(scheduler.node, running=False)
        if before is not None and "result" in ends[before]:
            current = ends[name] = dict(ends[before])  # the node with `or` is passed by
            continue
        try:
            current = ends[name] = make(ends)
        except HeadraceError as error:
            scheduler.count_refused(request, error)
            raise
        scheduler.call(current, internal=True, home=route.first)
    if len(route.sinks) == 1 and "result" in current:
        if current is not request:
            request.update(current)
        return
    silent = finish([(sink, ends[sink.name]) for sink in route.sinks], request)
    if silent is not None:
        missing = no_result(silent)
        silent.scheduler.count_late(missing)
        raise missing


class _Waiter:
    """The owner of the requests for which one thread waits together."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._pending = set(entries)
        self.signal = Signal()
        self.requests: list[GraphRequest] = []

    def places(self) -> list[tuple[Node, object]]:
        """Return the nodes at which the requests are, and those that they have yet to visit."""
        return [place for request in self.requests for place in request.places()]

    def finished(self, entry: Entry) -> None:
        """Take note that a request is over; the last one wakes the waiting thread."""
        self._pending.discard(entry)
        if not self._pending:
            self.signal.wake()


def may_wait(route: Route, entry: Entry) -> bool:
    """Refuse a request when this thread holds an instance that the request needs, and would wait for itself."""
    for step in route.steps:
        if step.scheduler.held_by_this_thread():
            error = endless_wait(step.name)
            step.scheduler.count_refused(entry.request, error)
            entry.refuse(error)
            return False
    return True


@reentrant(later=lambda _, items, **__: refuse_inside(items[0][0].first.name))
def run_and_wait(graph: Graph, items: list[tuple[Route, Entry]], *, internal: bool = False) -> None:
    """Let several requests run, none of them in this thread, and wait for all; their outcomes are in the entries."""
    fresh = [(route, entry) for route, entry in items if may_wait(route, entry)]
    waiter = _Waiter(entry for _, entry in fresh)
    begun = [GraphRequest(graph, route, entry, waiter) for route, entry in fresh]

    def withdraw() -> bool:
        left = [one.give_up() for one in begun]
        waiter.signal.wake()
        return any(left)

    call = withdrawn_by(withdraw)
    if not begun or (call is not None and call.given_up):
        return
    start(begun, internal=internal)
    with noted(waiter):
        waiter.requests = begun
        node = cycle_of(waiter)
        if node is not None:
            for one in begun:
                one.end(endless_wait(node))
        waiter.signal.sleep()


def run_from_front(graph: Graph, request: Request) -> None:
    """Run a request that the front of the pipeline hands over, and wait; raises its error."""
    route = graph.route_of(request)
    outer = entry_here()(request)
    terms = outer.deadline, outer.priority
    if terms == (None, 0) and "data" in request and outer.entered is None:
        run_in_caller(graph, route, request, internal=True)
        return
    weight = checked_weight(request, route.first.name, route.needs)
    entry = Entry(request, NOBODY, weight, *terms)
    entry.entered = outer.entered
    run_and_wait(graph, [(route, entry)], internal=True)
    entry.raise_error()
