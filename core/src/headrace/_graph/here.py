"""A walk in its caller's thread: one node after the other, branches too while they are cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._graph.each import Elements
from headrace._graph.handover import (
    MOST_REPOSTS,
    Ends,
    finish,
    input_of,
    mapped,
    passes_by,
    repost_of,
    too_often,
)
from headrace._graph.stations import entry_at
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace._graph.graph import Graph, Route, Station
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["CHEAP_S", "is_cheap", "walk_here"]

CHEAP_S = 200e-6
"""Branches run one after the other in the caller's thread while their mean forward is below this."""


def is_cheap(route: Route) -> bool:
    """Tell whether a caller may run the branches of a route one after the other itself."""
    for scheduler in route.parallel:
        for instance in scheduler.instances:
            if instance.mean_s >= CHEAP_S:
                return False
    return True


def walk_here(graph: Graph, route: Route, request: Request, *, internal: bool = False) -> None:
    """Walk a request in the calling thread, which waits without a deadline.

    Args:
        graph: All nodes.
        route: The nodes to walk through.
        request: The request.
        internal: It comes from a front of this pipeline, which closing does not refuse; bounds do.

    Raises:
        RequestError: The request failed; its ``data`` is the caller's again, and it has no result.
    """
    data = request["data"]
    home = route.first
    walk, walking = object(), graph.walking
    try:
        walking.add(walk)
        if route.line is not None:
            home.call(request, internal=internal)
            for scheduler in route.line:
                request["data"] = request.pop("result")
                scheduler.call(request, internal=True, home=home)
                if home.outside:
                    home.let_in()
            request["data"] = data
        elif route.hops is not None:
            _hop(route, request, data, internal=internal)
        else:
            _Legs(graph, home, request, internal=internal).walk(route)
    except BaseException as error:
        if not getattr(error, "abandoned", False):
            request["data"] = data
            request.pop("result", None)
        if home.outside:
            home.let_in()
        raise
    finally:
        walking.discard(walk)
        if graph.closers:
            graph.ended(walk)


def _hop(route: Route, request: Request, data: Any, *, internal: bool) -> None:
    """Walk a route of plain nodes."""
    home = route.first
    home.call(request, internal=internal)
    ends: Ends = {route.entry.name: request}
    for name, scheduler, source, copies, pairs, station in route.hops or ():
        if source is None:
            try:
                current = mapped(station, pairs, ends)
            except HeadraceError as error:
                scheduler.count_refused(request, error)
                raise
        else:
            ended = ends[source]
            current = {**ended} if copies else ended
            current["data"] = current.pop("result")
        scheduler.call(current, internal=True, home=home)
        if home.outside:
            home.let_in()
        ends[name] = current
    if len(route.sinks) == 1:
        if current is not request:
            request.update(current)
    else:
        finish([(route.by_name[name], ends[name]) for name in route.sinks], request)
    request["data"] = data


class _Legs:
    """A walk of any kind: in several legs where a `Repost` ends one and begins another."""

    def __init__(self, graph: Graph, home: Scheduler, request: Request, *, internal: bool) -> None:
        self._graph = graph
        self._home = home
        self._request = request
        self._data = request["data"]
        self._internal = internal
        self._reposts = 0
        self._sinks: list[tuple[Station, Request]] = []
        self._todo: list[tuple[Route, Request]] = []

    def walk(self, route: Route) -> None:
        """Walk to the end."""
        self._leg(route, self._request, entered=False)
        while self._todo:
            self._leg(*self._todo.pop(), entered=True)
        finish(self._sinks, self._request)
        self._request["data"] = self._data

    def _leg(self, route: Route, request: Request, *, entered: bool) -> None:
        ends: Ends = {}
        skipped: set[str] = set()
        for station in route.stations:
            if station.name in skipped:
                continue
            if station is route.entry:
                current = request
            elif passes_by(station, ends):
                before = route.by_name[station.before[0]]
                ended = ends[before.name]
                ends[station.name] = dict(ended) if before.copied else ended
                continue
            else:
                current = self._input_of(station, route, ends)
                entered = True
            if self._run(station, current, entered=entered):
                skipped |= station.skipped
            else:
                ends[station.name] = current
        found = [name for name in route.sinks if name not in skipped]
        self._sinks += [(route.by_name[name], ends[name]) for name in found]

    def _input_of(self, station: Station, route: Route, ends: Ends) -> Request:
        try:
            return input_of(station, route.by_name, ends)
        except HeadraceError as error:
            station.scheduler.count_refused(self._request, error)
            raise

    def _run(self, station: Station, current: Request, *, entered: bool) -> bool:
        """Run one node; tell whether a `Repost` has ended the walk there."""
        home = self._home
        if station.links.reposts:
            current.pop("repost", None)
        if station.links.levels:
            self._run_each(station, current, entered=entered)
        elif station.timeout_ms is not None:
            entries = [entry_at(station, current)]
            self._run_entries(station, entries, [], entered=entered)
            if entries[0].error is not None:
                raise entries[0].take_error()  # type: ignore[misc]
        else:
            internal = entered or self._internal
            station.scheduler.call(current, internal=internal, home=home if entered else None)
        if home.outside:
            home.let_in()
        return bool(station.links.reposts) and self._reposted(station, current)

    def _run_each(self, station: Station, current: Request, *, entered: bool) -> None:
        current.pop("result", None)  # of an earlier time that the request was sent
        try:
            elements = Elements(station.links.levels, current)
        except HeadraceError as error:
            station.scheduler.count_refused(current, error)
            raise
        entries = elements.entries(lambda one: entry_at(station, one), station.scheduler)
        groups = [] if elements.may_fail_alone else [entries]
        self._run_entries(station, entries, groups, entered=entered)
        errors = [entry.take_error() for entry in entries]
        failure = elements.gather(errors)
        if failure is not None:
            if failure not in errors:
                station.scheduler.count_late(failure)
            try:
                raise failure
            finally:
                del failure, errors  # see `Entry.take_error`

    def _run_entries(
        self,
        station: Station,
        entries: list[Entry],
        groups: list[list[Entry]],
        *,
        entered: bool,
    ) -> None:
        waits = self._home.waits(entered=entered)
        for entry in entries:
            entry.waits = waits
        if entries:
            internal = entered or self._internal
            station.scheduler.call_many(entries, internal=internal, groups=groups)

    def _reposted(self, station: Station, current: Request) -> bool:
        try:
            target = repost_of(station, current)
            if target is None:
                return False
            self._reposts += 1
            if self._reposts > MOST_REPOSTS:
                raise too_often(station, target)
        except HeadraceError as error:
            station.scheduler.count_late(error)
            raise
        self._todo.append((self._graph.route_from(target), current))
        return True
