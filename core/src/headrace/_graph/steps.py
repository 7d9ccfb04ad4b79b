"""What a walk that no thread waits inside knows of its nodes, and who is told of the end of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._graph.handover import input_of, passes_by, unable
from headrace.errors import HeadraceError, OverloadedError

if TYPE_CHECKING:
    from headrace._graph.each import Elements
    from headrace._graph.graph import Route, Station
    from headrace._graph.handover import Ends
    from headrace._graph.walk import Walk
    from headrace._scheduling.entry import Entry
    from headrace.keys import Request

__all__ = ["EachStep", "Leg", "Step"]

_Advance = tuple[
    "list[tuple[Station, Request]]",
    "list[tuple[Station, Request]]",
    "tuple[Station, HeadraceError] | None",
]


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

    def advance(self, station: Station, request: Request) -> _Advance:
        """Take note of the end of a node.

        Returns:
            The nodes that may run now, with their dicts; the sinks that have been reached, with
            theirs; and the node whose dict cannot be made, with the error.
        """
        ends, by_name = self.ends, self.route.by_name
        ready: list[tuple[Station, Request]] = []
        sinks: list[tuple[Station, Request]] = []
        ends[station.name] = request
        ended = [station]
        while ended:
            one = ended.pop()
            if not one.after:
                sinks.append((one, ends[one.name]))
            for name in one.after:
                self.left[name] -= 1
                if self.left[name]:
                    continue
                following = by_name[name]
                if passes_by(following, ends):
                    before = ends[one.name]
                    ends[name] = dict(before) if one.copied else before
                    ended.append(following)
                    continue
                try:
                    ready.append((following, input_of(following, by_name, ends)))
                except HeadraceError as error:
                    return ready, sinks, (following, error)
        return ready, sinks, None


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
        self.walk.node_done(self.leg, self.station, entry.request, entry.error, entry)


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
        self.left = list(range(len(elements.requests)))  # who takes out 0 is the last

    def finished(self, entry: Entry) -> None:
        """Count one element; with the last, or one that fails the request, let the walk go on."""
        entry.give_back()
        last = self.left.pop() == 0
        self.walk.forget(entry)
        error = entry.error
        alone = self.elements.may_fail_alone and not isinstance(error, OverloadedError)
        if error is None or alone:
            if not last:
                return
            errors = [one.error for one in self.entries]
            try:
                error = self.elements.gather(errors, self.walk.deadline)
            except Exception as raised:  # noqa: BLE001 - anybody's dict
                error = unable(self.station, raised)
            if error is not None and error not in errors:
                self.station.scheduler.count_late(error)
        self.walk.node_done(self.leg, self.station, self.request, error)
        for one in self.entries if last else ():
            one.error = None  # see `Entry.take_error`
