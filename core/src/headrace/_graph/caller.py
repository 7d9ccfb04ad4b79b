"""The driver in the caller's thread: one node after the other, branches too while they are cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from headrace._graph.entries import count, elements_of, entry_at
from headrace._graph.handover import finish, mapped
from headrace._graph.traversal import Failure, Traversal
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace._graph.graph import Graph
    from headrace._graph.handover import Ends
    from headrace._graph.route import Route
    from headrace._graph.traversal import Visit
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["CHEAP_S", "is_cheap", "run_in_caller"]

CHEAP_S = 200e-6
"""Branches run one after the other in the caller's thread while their mean forward is below this."""


def is_cheap(route: Route) -> bool:
    """Tell whether a caller may run the branches of a route one after the other itself."""
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
        internal: It comes from a front of this pipeline, which closing does not refuse; bounds do.

    Raises:
        RequestError: The request failed; its ``data`` is the caller's again, and it has no result.
    """
    data = request["data"]
    home = route.first
    token, in_flight = object(), graph.in_flight
    try:
        in_flight.add(token)
        if route.is_chain:
            rest = home.call(request, internal=internal, rest=route.chain)
            while rest is not None:
                scheduler, after = rest
                request["data"] = request.pop("result")
                rest = scheduler.call(request, internal=True, home=home, rest=after)
        elif route.hops is not None:
            _hop(route, request, internal=internal)
        else:
            _traverse(graph, route, request, internal=internal)
        request["data"] = data
    except BaseException as error:
        if not getattr(error, "abandoned", False):
            request["data"] = data
            request.pop("result", None)
        raise
    finally:
        in_flight.discard(token)
        if graph.closers:
            graph.ended(token)


def _hop(route: Route, request: Request, *, internal: bool) -> None:
    """Take a request through plain nodes: each runs once, and nothing is decided on the way."""
    home = route.first
    home.call(request, internal=internal)
    ends: Ends = {route.entry.name: request}
    for name, scheduler, source, copies, pairs, step in route.hops or ():
        if source is None:
            try:
                current = mapped(step, pairs, ends)
            except HeadraceError as error:
                scheduler.count_refused(request, error)
                raise
        else:
            ended = ends[source]
            current = {**ended} if copies else ended
            current["data"] = current.pop("result")
        scheduler.call(current, internal=True, home=home)
        ends[name] = current
    if len(route.sinks) > 1:
        finish([(sink, ends[sink.name]) for sink in route.sinks], request)
    elif current is not request:
        request.update(current)


def _traverse(graph: Graph, route: Route, request: Request, *, internal: bool) -> None:
    """Take a request through nodes of any kind."""
    home, entered = route.first, False
    traversal = Traversal(route, request, graph.route_from)
    ready = [traversal.begin()]
    while ready:
        visit = ready.pop()
        step = visit.step
        if step.runs_once:
            step.scheduler.call(
                visit.request, internal=entered or internal, home=home if entered else None
            )
        else:
            _run_entries(visit, home, entered=entered, internal=entered or internal)
        entered = True
        following = traversal.advance(visit)
        if isinstance(following, Failure):
            _fail(following, request)
        ready.extend(following[::-1])
    failure = traversal.finish()
    if failure is not None:
        _fail(failure, request)


def _fail(failure: Failure, request: Request) -> NoReturn:
    count(failure, request)
    try:
        raise failure.error
    finally:
        del failure  # see `Entry.take_error`


def _run_entries(visit: Visit, home: Scheduler, *, entered: bool, internal: bool) -> None:
    """Run a node with ``each``, or a second door with a limit of its own.

    Args:
        visit: The node, and the dict that it runs on.
        home: Where the request enters the graph.
        entered: Whether it has; else it is to enter here.
        internal: Whether closing does not refuse it.
    """
    step, waits = visit.step, home.waits(entered=entered)
    elements = elements_of(step, visit.request)
    entries = elements.entries(lambda one: entry_at(step, one), step.scheduler)
    for entry in entries:
        entry.waits = waits
    if entries:
        groups = [] if elements.may_fail_alone else [entries]
        step.scheduler.call_many(entries, internal=internal, groups=groups)
    errors = [entry.take_error() for entry in entries]
    failure = elements.gather(errors)
    if failure is not None:
        if failure not in errors:
            step.scheduler.count_late(failure)
        try:
            raise failure
        finally:
            del failure, errors  # see `Entry.take_error`
