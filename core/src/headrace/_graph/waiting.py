"""Requests that go through the graph by themselves while one thread waits for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._graph.caller import run_in_caller
from headrace._graph.request import GraphRequest
from headrace._scheduling.admission import inside
from headrace._scheduling.calls import call_run_here
from headrace._scheduling.entry import Entry
from headrace._scheduling.locks import Signal
from headrace._scheduling.threads import cycle_of, entries_running_here, noted

if TYPE_CHECKING:
    from headrace._graph.graph import Graph
    from headrace._graph.route import Route
    from headrace._scheduling.node import Node
    from headrace.keys import Request

__all__ = ["may_wait", "run_and_wait", "run_from_front"]


class _Waiter:
    """The owner of requests that one thread waits for."""

    def __init__(self, pending: int) -> None:
        self._pending = list(range(pending))  # the thread that pops 0 is the last
        self.signal = Signal()
        self.requests: list[GraphRequest] = []

    def places(self) -> list[tuple[Node, object]]:
        """Give all places of the requests."""
        return [place for request in self.requests for place in request.places()]

    def finished(self, entry: Entry) -> None:
        """Count one request that is over; the last wakes the thread."""
        if self._pending.pop() == 0:
            self.signal.wake()


def may_wait(route: Route, entry: Entry) -> bool:
    """Refuse a request for which this thread would wait though it holds what the request needs.

    Returns:
        Whether it may begin; else it is done, with its error.
    """
    for step in route.steps:
        if step.scheduler.held_by_this_thread():
            error = inside(step.name)
            step.scheduler.count_refused(entry.request, error)
            entry.refuse(error)
            return False
    return True


def run_and_wait(
    graph: Graph, entries: list[tuple[Route, Entry]], *, internal: bool = False
) -> None:
    """Let several requests run, none of them in this thread, and wait for all.

    Their outcomes are in the entries.

    Args:
        graph: All nodes.
        entries: Per request its route and its entry.
        internal: They come from a front of this pipeline: closing does not refuse them, bounds do.
    """
    if not entries:
        return
    fresh = [(route, entry) for route, entry in entries if may_wait(route, entry)]
    waiter = _Waiter(len(fresh))
    begun = [GraphRequest(graph, route, entry, waiter) for route, entry in fresh]
    try:
        call = call_run_here()
        if call is not None:
            call.withdrawn_by(lambda: sum([one.give_up() for one in begun]) > 0)
        for one in begun:
            if call is not None and call.given_up:
                return
            one.start(internal=internal)
        with noted(waiter):
            waiter.requests = begun
            node = cycle_of(waiter)
            for one in begun if node is not None else ():
                one.end(inside(node or ""))
            if begun:
                waiter.signal.sleep()
    except BaseException as interrupt:
        left = [one.give_up() for one in begun]
        interrupt.abandoned = any(left)  # type: ignore[attr-defined]
        raise


def run_from_front(graph: Graph, request: Request) -> None:
    """Run a request that a front of the pipeline hands over, and wait; raises its error.

    Deadline and priority are those with which it came to the front.
    """
    route = graph.route_of(request)
    front = next((one for one in entries_running_here() if one.request is request), None)
    if front is None or (front.deadline is None and not front.priority):
        run_in_caller(graph, route, request, internal=True)
        return
    entry = Entry(request, deadline=front.deadline, priority=front.priority)
    run_and_wait(graph, [(route, entry)], internal=True)
    if entry.error is not None:
        raise entry.take_error()  # type: ignore[misc]
