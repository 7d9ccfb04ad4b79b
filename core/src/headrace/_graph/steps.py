"""What a walk that no thread waits inside knows of its nodes, and who is told of the end of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import OverloadedError

if TYPE_CHECKING:
    from headrace._build.each import Elements
    from headrace._graph.graph import Route, Station
    from headrace._graph.handover import Ends
    from headrace._graph.walk import Walk
    from headrace._scheduling.entry import Entry
    from headrace.keys import Request

__all__ = ["EachStep", "Leg", "Step"]


class Leg:
    """A part of a walk: from a node at which it enters to its ends, or to a `Repost`.

    Attributes:
        route: What it walks through.
        ends: How its nodes have ended.
        left: Per node, for how many predecessors it waits.
    """

    __slots__ = ("ends", "left", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.ends: Ends = {}
        self.left = {station.name: len(station.before) for station in route.stations}


class Step:
    """The owner of the entry of one node of a walk."""

    __slots__ = ("leg", "station", "walk")

    def __init__(self, walk: Walk, leg: Leg, station: Station) -> None:
        self.walk = walk
        self.leg = leg
        self.station = station

    def finished(self, entry: Entry) -> None:
        """Let the walk go on."""
        self.walk.forget(entry)
        self.walk.node_done(self.leg, self.station, entry.request, entry.error)
        if entry is not self.walk._entry:  # that has the outcome of the whole
            entry.error = None  # see `Entry.take_error`


class EachStep:
    """The owner of the entries of all elements of one node of a walk."""

    __slots__ = ("elements", "entries", "left", "leg", "request", "station", "walk")

    def __init__(
        self, walk: Walk, leg: Leg, station: Station, request: Request, elements: Elements
    ) -> None:
        self.walk = walk
        self.leg = leg
        self.station = station
        self.request = request
        self.elements = elements
        self.entries: list[Entry] = []
        self.left = len(elements.requests)

    def finished(self, entry: Entry) -> None:
        """Count one element; with the last, or one that fails the request, let the walk go on."""
        with self.walk.lock:
            self.left -= 1
            last = self.left == 0
        self.walk.forget(entry)
        error = entry.error
        alone = self.elements.may_fail_alone and not isinstance(error, OverloadedError)
        if error is None or alone:
            if not last:
                return
            errors = [one.error for one in self.entries]
            error = self.elements.gather(errors, self.walk.deadline)
            if error is not None and error not in errors:
                self.station.scheduler.count_late(error)
        self.walk.node_done(self.leg, self.station, self.request, error)
        for one in self.entries if last else ():
            one.error = None  # see `Entry.take_error`
