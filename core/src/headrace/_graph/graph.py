"""The graph of a built pipeline, and the part of it that a request entering at a node walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._plan.links import Links
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["Graph", "Route", "Station"]


@dataclass(eq=False)
class Station:
    """A node on a route.

    Attributes:
        name: The node.
        scheduler: Its queue and instances.
        links: How it is linked.
        before: Its predecessors on the route.
        after: Its successors on the route.
        shared: Whether several successors take its dict, so that each gets a shallow copy.
        kept: Whether a later map names it, so that its keys at its end are kept.
        timeout_ms: The limit of a second door, which its node does not know; None for none.
    """

    name: str
    scheduler: Scheduler
    links: Links
    before: tuple[str, ...]
    after: tuple[str, ...]
    shared: bool
    kept: bool
    timeout_ms: float | None


@dataclass(eq=False)
class Route:
    """What takes part when a request enters at one node.

    Attributes:
        stations: The nodes, each after its predecessors.
        sinks: Those without successors.
        line: The schedulers, when it is a plain line without map, ``or`` and ``each``; else None.
    """

    stations: tuple[Station, ...]
    sinks: tuple[str, ...]
    line: tuple[Scheduler, ...] | None

    def __post_init__(self) -> None:
        self.by_name = {station.name: station for station in self.stations}
        self.branches = any(len(station.after) > 1 for station in self.stations)

    @property
    def entry(self) -> Station:
        """The node at which the request enters."""
        return self.stations[0]


class Graph:
    """All nodes of a pipeline and how they are linked.

    Attributes:
        roots: The nodes without predecessors.
        only: The route from the only root; None where there are several.
    """

    def __init__(
        self,
        links: Mapping[str, Links],
        schedulers: Mapping[str, Scheduler],
        own_ms: Mapping[str, float | None],
    ) -> None:
        self._schedulers = schedulers
        self.link(links, own_ms)

    def link(self, links: Mapping[str, Links], own_ms: Mapping[str, float | None]) -> None:
        """Link the nodes, anew; requests that are on their way go on as they began."""
        self._links = links
        self._own_ms = own_ms
        following = {name for one in links.values() for name in one.next}
        self.roots = tuple(name for name in links if name not in following)
        self._routes: dict[str, Route] = {}
        self._only = self.roots[0] if len(self.roots) == 1 else None
        self.only = self.route_of({}) if self._only is not None else None
        for name, one in links.items():
            # Where an `or` follows, no result is no error.
            self._schedulers[name].needs_result(not any(links[n].otherwise for n in one.next))

    def walk(self, request: Request) -> None:
        """Walk a request that a front of the pipeline hands over; raises its error."""
        from headrace._graph.walk import walk_here

        walk_here(self.route_of(request), request, internal=True)

    def route_of(self, request: Request) -> Route:
        """Give the route of a request.

        Raises:
            InputError: It names no node where there are several roots, or an unknown one.
        """
        name = request.get("node_name")
        if name is None and self._only is not None:
            name = self._only
        if not isinstance(name, str) or name not in self._links:
            raise InputError(
                "the pipeline has several roots, and the request names none"
                if name is None
                else f"no node is called {name!r}",
                key="node_name",
                expected=f"one of {', '.join(self.roots)}",
                got=None if name is None else repr(name),
            )
        route = self._routes.get(name)
        if route is None:
            route = self._routes[name] = self._route(name)
        return route

    def _route(self, entry: str) -> Route:
        links = self._links
        reached = {entry}
        todo = [entry]
        while todo:
            for name in links[todo.pop()].next:
                if name not in reached:
                    reached.add(name)
                    todo.append(name)
        before: dict[str, list[str]] = {name: [] for name in reached}
        for name in links:
            if name in reached:
                for following in links[name].next:
                    before[following].append(name)
        named = {n for name in reached for n in (links[name].map or ())}
        left = {name: len(found) for name, found in before.items()}
        ready = [entry]
        order: list[str] = []
        while ready:
            name = ready.pop()
            order.append(name)
            for following in reversed(links[name].next):
                left[following] -= 1
                if not left[following]:
                    ready.append(following)
        stations = tuple(
            Station(
                name,
                self._schedulers[name],
                links[name],
                tuple(before[name]),
                links[name].next,
                len(links[name].next) > 1,
                name in named,
                self._own_ms.get(name),
            )
            for name in order
        )
        sinks = tuple(name for name in order if not links[name].next)
        plain = all(
            len(s.after) <= 1
            and s.links.each is None
            and not s.links.otherwise
            # The entry's own map is not used: nothing came before it.
            and (s.links.map is None or s.name == entry)
            and s.timeout_ms is None
            for s in stations
        )
        line = tuple(s.scheduler for s in stations) if plain else None
        return Route(stations, sinks, line)
