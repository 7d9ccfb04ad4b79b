"""Requests that walk while one thread waits for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._graph.walk import Walk
from headrace._scheduling.admission import inside
from headrace._scheduling.calls import call_run_here
from headrace._scheduling.circles import circle_of, noted
from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from headrace._graph.graph import Graph, Route
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node

__all__ = ["may_wait", "walk_together"]


class _Waiter:
    """The owner of walks that one thread waits for."""

    def __init__(self, pending: int) -> None:
        self._pending = list(range(pending))  # who takes out 0 is the last
        self.signal = Signal()
        self.walks: list[Walk] = []

    def places(self) -> list[tuple[Node, object]]:
        """Give all places of the walks."""
        return [place for walk in self.walks for place in walk.places()]

    def finished(self, entry: Entry) -> None:
        """Count one walk that is over; the last wakes the thread."""
        if self._pending.pop() == 0:
            self.signal.wake()


def may_wait(route: Route, entry: Entry) -> bool:
    """Refuse a request for which this thread would wait though it holds what the request needs.

    Returns:
        Whether it may walk; else it is done, with its error.
    """
    for station in route.stations:
        if station.scheduler.held_by_this_thread():
            error = inside(station.name)
            station.scheduler.count_refused(entry.request, error)
            entry.refuse(error)
            return False
    return True


def walk_together(
    graph: Graph, walks: list[tuple[Route, Entry]], *, internal: bool = False
) -> None:
    """Let several requests walk, none of them in this thread, and wait for all.

    Their outcomes are in the entries.

    Args:
        graph: All nodes.
        walks: Per request its route and its entry.
        internal: They come from a front of this pipeline: closing does not refuse them, bounds do.
    """
    if not walks:
        return
    fresh = [(route, entry) for route, entry in walks if may_wait(route, entry)]
    waiter = _Waiter(len(fresh))
    begun = [Walk(graph, route, entry, waiter) for route, entry in fresh]
    try:
        call = call_run_here()
        if call is not None:
            call.withdrawn_by(lambda: sum([walk.give_up() for walk in begun]) > 0)
        for walk in begun:
            if call is not None and call.given_up:
                return
            walk.start(internal=internal)
        with noted(waiter):
            waiter.walks = begun
            node = circle_of(waiter)
            for walk in begun if node is not None else ():
                walk.end(inside(node or ""))
            if begun:
                waiter.signal.sleep()
    except BaseException as interrupt:
        left = [walk.give_up() for walk in begun]
        interrupt.abandoned = any(left)  # type: ignore[attr-defined]
        raise
