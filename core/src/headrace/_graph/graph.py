"""The graph of a built pipeline, and the part of it that a request entering at a node walks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace._graph.handover import Hop, hops_of
from headrace._portable import shown
from headrace._scheduling.batch import entries_running_here
from headrace._scheduling.entry import Entry
from headrace._scheduling.signal import Signal
from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace._graph.links import Links
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
        copied: Whether who takes its dict gets a shallow copy: it has several successors, or a
            later map reads the keys that it ended with.
        timeout_ms: The limit of a second door, which its node does not know; None for none.
        skipped: Itself and all after it, where a `Repost` may end the walk there.
    """

    name: str
    scheduler: Scheduler
    links: Links
    before: tuple[str, ...]
    after: tuple[str, ...]
    copied: bool
    timeout_ms: float | None
    skipped: frozenset[str] = frozenset()

    @property
    def is_plain(self) -> bool:
        """Whether it always runs, once, for as long as its node allows, and then comes ``next``."""
        links = self.links
        special = links.otherwise or bool(links.levels) or links.reposts
        return not special and self.timeout_ms is None


@dataclass(eq=False)
class Route:
    """What takes part when a request enters at one node.

    Attributes:
        stations: The nodes, each after its predecessors.
        sinks: Those without successors.
        parallel: The nodes of branches that may run at the same time, also after a `Repost`.
        line: All schedulers but the first, when each simply hands its dict to the next; else None.
        hops: All nodes but the first, when each is plain; else None.
    """

    stations: tuple[Station, ...]
    sinks: tuple[str, ...]
    parallel: tuple[Scheduler, ...]
    line: tuple[Scheduler, ...] | None
    hops: tuple[Hop, ...] | None

    def __post_init__(self) -> None:
        self.by_name = {station.name: station for station in self.stations}
        self.first = self.stations[0].scheduler
        self.last = self.stations[-1].name

    @property
    def entry(self) -> Station:
        """The node at which the request enters."""
        return self.stations[0]


class Graph:
    """All nodes of a pipeline and how they are linked.

    Attributes:
        names: All nodes, in file order.
        roots: The nodes at which a request may begin that names none.
        only: The route from the only root; None where there are several.
        walking: What stands for each walk that has begun and not ended: between two nodes it is in
            neither, and yet closing waits for it.
        closers: Those who wait for the end of walks.
    """

    def __init__(
        self,
        links: Mapping[str, Links],
        schedulers: Mapping[str, Scheduler],
        own_ms: Mapping[str, float | None],
    ) -> None:
        self._schedulers = schedulers
        self.walking: set[object] = set()
        self.closers: list[Signal] = []
        self.link(links, own_ms)

    def link(self, links: Mapping[str, Links], own_ms: Mapping[str, float | None]) -> None:
        """Link the nodes, anew; requests that are on their way go on as they began."""
        self._links = links
        self._own_ms = own_ms
        self.names = tuple(links)
        self.roots = roots(links)
        self._routes: dict[str, Route] = {}
        self._only = self.roots[0] if len(self.roots) == 1 else None
        # Where an `or` follows, no result is no error; several doors may lead to one scheduler.
        self._lenient = {
            id(self._schedulers[name])
            for name, one in links.items()
            if any(links[following].otherwise for following in one.next)
        }
        for scheduler in self._schedulers.values():
            scheduler.needs_result(id(scheduler) not in self._lenient)
        self.only = self.route_of({}) if self._only is not None else None

    def walk(self, request: Request) -> None:
        """Walk a request that a front of the pipeline hands over; raises its error.

        Deadline and priority are those with which it came to the front.
        """
        from headrace._graph.here import walk_here
        from headrace._graph.together import walk_together

        route = self.route_of(request)
        front = next((one for one in entries_running_here() if one.request is request), None)
        if front is None or (front.deadline is None and not front.priority):
            walk_here(self, route, request, internal=True)
            return
        entry = Entry(request, None, deadline=front.deadline, priority=front.priority)
        walk_together(self, [(route, entry)], internal=True)
        if entry.error is not None:
            raise entry.take_error()  # type: ignore[misc]

    def may_repost(self, links: Mapping[str, Links], timeout_s: float) -> bool:
        """Let no walk be on its way that could not end where a `Repost` of ``links`` ends it.

        Until `link` is called again, walks end at the targets of both: those linked now, and ``links``.

        Returns:
            False when the time was over before the walks that knew nothing of it had ended; then
            nothing has changed.
        """
        old = self._links
        if not any(set(links[name].reposts) - set(one.reposts) for name, one in old.items()):
            return True
        both = {
            name: replace(one, reposts=tuple(dict.fromkeys((*one.reposts, *links[name].reposts))))
            for name, one in old.items()
        }
        self.link(both, self._own_ms)
        begun = set(self.walking)
        if self._wait(lambda: not begun.isdisjoint(set(self.walking)), timeout_s):
            return True
        self.link(old, self._own_ms)
        return False

    def ended(self, walk: object) -> None:
        """Take note that a walk is over, which may be known."""
        self.walking.discard(walk)
        for signal in tuple(self.closers):
            signal.wake()

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait until no walk is on its way; False when the time was over first."""
        return self._wait(lambda: bool(self.walking), timeout_s)

    def _wait(self, goes_on: Callable[[], bool], timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        signal = Signal()
        self.closers.append(signal)
        try:
            while goes_on():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                signal.sleep(left)
            return True
        finally:
            self.closers.remove(signal)

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
                else f"no node is called {shown(name)}",
                key="node_name",
                expected=f"one of {', '.join(self.roots)}",
                got=None if name is None else shown(name),
            )
        return self.route_from(name)

    def route_from(self, name: str) -> Route:
        """Give the route of what enters at a node."""
        route = self._routes.get(name)
        if route is None:
            route = self._routes[name] = self._route(name)
        return route

    def follows(self, name: str) -> bool:
        """Tell whether something comes after a node."""
        return bool(self._links[name].next)

    def _route(self, entry: str) -> Route:
        links = self._links
        reached = _reached(links, [entry])
        before: dict[str, list[str]] = {name: [] for name in reached}
        for name in links:
            if name in reached:
                for following in links[name].next:
                    before[following].append(name)
        order = _in_order(links, entry, before)
        mapped = {n for name in order[1:] for n in (links[name].map or ())}
        stations = tuple(self._station(name, before[name], mapped) for name in order)
        sinks = tuple(name for name in order if not links[name].next)
        plain = all(s.is_plain and id(s.scheduler) not in self._lenient for s in stations)
        is_line = plain and all(len(s.after) <= 1 and not s.copied for s in stations)
        is_line = is_line and all(s.links.map is None for s in stations[1:])
        line = tuple(s.scheduler for s in stations[1:]) if is_line else None
        hops = hops_of(stations) if plain else None
        parallel = tuple(self._schedulers[name] for name in self._parallel(entry))
        return Route(stations, sinks, parallel, line, hops)

    def _station(self, name: str, before: Iterable[str], mapped: set[str]) -> Station:
        links = self._links[name]
        # An `or` that is passed by stands for its predecessor, whatever its map says.
        following = [self._links[n] for n in links.next]
        takes_dict = any(one.map is None or one.otherwise for one in following)
        return Station(
            name,
            self._schedulers[name],
            links,
            tuple(before),
            links.next,
            takes_dict and (len(links.next) > 1 or name in mapped),
            self._own_ms.get(name),
            frozenset(_reached(self._links, [name])) if links.reposts else frozenset(),
        )

    def _parallel(self, entry: str) -> list[str]:
        """Give the nodes that may run beside another one, wherever a walk from ``entry`` leads."""
        links = self._links
        all_reached = _reached(links, [entry], reposts=True)
        found: dict[str, None] = {}
        for name in links:
            if name not in all_reached or len(links[name].next) < 2:
                continue
            branches = [_reached(links, [following]) for following in links[name].next]
            common = set.intersection(*branches)
            found.update((n, None) for branch in branches for n in branch - common)
        return [name for name in links if name in found]


def roots(links: Mapping[str, Links]) -> tuple[str, ...]:
    """Give the nodes at which a request may begin that names none: nothing leads there.

    What leads to a node is another one before it, a `Repost`, or an expression that calls it. Of
    several nodes that lead to each other in a circle, by `Repost`, the first in the file is one.
    """
    following = {name for one in links.values() for name in one.next}
    found: list[str] = []
    candidates = [name for name in links if name not in following]
    reached = {name: _reached(links, [name], reposts=True, calls=True) for name in candidates}
    for name in candidates:
        leads = [other for other in candidates if other != name and name in reached[other]]
        # One of a circle that stands later in the file is led to by the first.
        if not any(other not in reached[name] or other in found for other in leads):
            found.append(name)
    return tuple(found)


def _reached(
    links: Mapping[str, Links], start: list[str], *, reposts: bool = False, calls: bool = False
) -> set[str]:
    """Give the nodes reached from some, these included."""
    found, todo = set(start), list(start)
    while todo:
        name = todo.pop()
        one = links[name]
        ways = [*one.next, *(one.reposts if reposts else ())]
        if calls and not (one.door_to and name in start):
            ways += one.calls
        for following in ways:
            if following in links and following not in found:
                found.add(following)
                todo.append(following)
    return found


def _in_order(links: Mapping[str, Links], entry: str, before: Mapping[str, list[str]]) -> list[str]:
    """Give the nodes of a route, each after its predecessors."""
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
    return order
