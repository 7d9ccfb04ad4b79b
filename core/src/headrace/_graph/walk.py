"""A request on its way through the nodes: in its caller's thread, or from end to end of nodes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from headrace._graph.handover import Ends, elements, finish, gather, input_of, passes_by
from headrace._scheduling.admission import inside
from headrace._scheduling.entry import Entry
from headrace._scheduling.signal import Signal
from headrace.errors import HeadraceError, NoResultError

if TYPE_CHECKING:
    from headrace._graph.graph import Route, Station
    from headrace._scheduling.entry import Owner
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["CHEAP_S", "Walk", "is_cheap", "walk_here", "walk_together"]

CHEAP_S = 200e-6
"""Branches run one after the other in the caller's thread while their mean forward is below this."""


def is_cheap(route: Route) -> bool:
    """Tell whether a caller may run the branches of a route one after the other itself."""
    if not route.branches:
        return True
    return all(
        instance.mean_s < CHEAP_S
        for station in route.stations[1:]
        for instance in station.scheduler.instances
    )


def walk_here(route: Route, request: Request, *, internal: bool = False) -> None:
    """Walk a request in the calling thread, which waits without a deadline.

    Args:
        route: The nodes to walk through.
        request: The request.
        internal: It comes from a front of this pipeline, which closing does not refuse.

    Raises:
        RequestError: The request failed; its ``data`` is the caller's again, and it has no result.
    """
    data = request["data"]
    try:
        if route.line is not None:
            _walk_line(route, request, internal=internal)
        else:
            _walk_graph(route, request, data, internal=internal)
    except BaseException:
        request["data"] = data
        request.pop("result", None)
        raise


def _walk_line(route: Route, request: Request, *, internal: bool) -> None:
    first, *others = route.line or ()
    data = request["data"]
    first.call(request, internal=internal)
    for scheduler in others:
        request["data"] = request.pop("result")
        scheduler.call(request, internal=True, home=first)
        if first.outside:
            first.let_in()
    request["data"] = data


def _walk_graph(route: Route, request: Request, data: Any, *, internal: bool) -> None:
    ends = Ends()
    home = route.entry.scheduler
    for station in route.stations:
        if station is route.entry:
            current = request
        elif passes_by(station, ends):
            ends.dicts[station.name] = ends.dicts[station.before[0]]
            continue
        else:
            current = input_of(station, route, ends)
        if station is route.entry:
            _run_station(station, current, None, internal=internal)
        else:
            _run_station(station, current, home, internal=True)
            if home.outside:
                home.let_in()
        ends.note(station, current)
    finish(route, ends, request, data)


def _run_station(
    station: Station, current: Request, home: Scheduler | None, *, internal: bool
) -> None:
    if station.links.each is None and station.timeout_ms is None:
        station.scheduler.call(current, internal=internal, home=home)
        return
    waits = home.waits() if home is not None else None
    if station.links.each is None:
        entry = _element(current, station)
        entry.waits = waits
        station.scheduler.call_many([entry], internal=internal)
        if entry.error is not None:
            raise entry.error
        return
    copies = elements(station, current)
    entries = [_element(copy, station) for copy in copies]
    for entry in entries:
        entry.waits = waits
    if entries:
        station.scheduler.call_many(entries, internal=internal)
    error = gather(station, current, copies, [entry.error for entry in entries])
    if error is not None:
        raise error


def _element(
    copy: Request,
    station: Station,
    owner: Owner | None = None,
    *,
    deadline: float | None = None,
    priority: int = 0,
) -> Entry:
    if station.timeout_ms is not None:
        own = time.monotonic() + station.timeout_ms / 1000
        deadline = own if deadline is None else min(own, deadline)
    entry = Entry(copy, owner, deadline=deadline, priority=priority)
    try:
        entry.weight = station.scheduler.checked(copy)
    except HeadraceError as error:
        entry.refuse(error)
    return entry


class _Waiter:
    """The owner of walks that one thread waits for."""

    def __init__(self, pending: int) -> None:
        self._pending = pending
        self._lock = threading.Lock()
        self.signal = Signal()

    def finished(self, entry: Entry) -> None:
        """Count one walk that is over; the last wakes the thread."""
        with self._lock:
            self._pending -= 1
            last = self._pending == 0
        if last:
            self.signal.wake()


def walk_together(walks: list[tuple[Route, Entry]]) -> None:
    """Let several requests walk, none of them in this thread, and wait for all.

    Their outcomes are in the entries.
    """
    if not walks:
        return
    for route, entry in walks:
        for station in route.stations:
            if station.scheduler.held_by_this_thread():
                entry.refuse(inside(station.name))
                break
    fresh = [(route, entry) for route, entry in walks if entry.error is None]
    waiter = _Waiter(len(fresh))
    begun = [Walk(route, entry, waiter) for route, entry in fresh]
    try:
        for walk in begun:
            walk.start()
        if begun:
            waiter.signal.sleep()
    except BaseException as interrupt:
        left = [walk.give_up() for walk in begun]
        interrupt.abandoned = any(left)  # type: ignore[attr-defined]
        raise


class _Step:
    """The owner of the entry of one node of a walk."""

    __slots__ = ("station", "walk")

    def __init__(self, walk: Walk, station: Station) -> None:
        self.walk = walk
        self.station = station

    def finished(self, entry: Entry) -> None:
        """Let the walk go on."""
        self.walk.node_done(self.station, entry.request, entry.error)


class _EachStep:
    """The owner of the entries of all elements of one node of a walk."""

    __slots__ = ("copies", "entries", "left", "request", "station", "walk")

    def __init__(self, walk: Walk, station: Station, request: Request) -> None:
        self.walk = walk
        self.station = station
        self.request = request
        self.copies: list[Request] = []
        self.entries: list[Entry] = []
        self.left = 0

    def finished(self, entry: Entry) -> None:
        """Count one element; with the last, or one that fails the request, let the walk go on."""
        with self.walk.lock:
            self.left -= 1
            last = self.left == 0
        if entry.error is not None and not self.station.links.keep_errors:
            self.walk.node_done(self.station, self.request, entry.error)
        elif last:
            errors = [one.error for one in self.entries]
            error = gather(self.station, self.request, self.copies, errors)
            self.walk.node_done(self.station, self.request, error)


class Walk:
    """A walk that no thread waits inside: each node's end starts what comes after it.

    It stands in for the entry of its first node: it is given to its owner when it is over.

    Attributes:
        request: The caller's dict.
        error: The outcome once it is over, None for success.
        lock: Guards what the ends of several nodes change.
    """

    def __init__(
        self,
        route: Route,
        entry: Entry,
        owner: Owner,
    ) -> None:
        self.request = entry.request
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self._route = route
        self._entry = entry
        self._owner = owner
        self._ends = Ends()
        self._left = {s.name: len(s.before) for s in route.stations}
        self._sinks_left = len(route.sinks)
        self._waits = route.entry.scheduler.waits()
        self._over = False
        self._open: dict[int, tuple[Scheduler, Entry]] = {}

    @property
    def first(self) -> tuple[Scheduler, Entry]:
        """The scheduler and the entry of the node at which the request enters."""
        return self._route.entry.scheduler, self._entry

    def start(self, *, waits_for_room: bool = False) -> None:
        """Let the request enter."""
        station = self._route.entry
        if station.links.each is not None or station.timeout_ms is not None:
            self._start(station, self.request)
            return
        self._entry.owner = _Step(self, station)
        station.scheduler.submit(self._entry, waits_for_room=waits_for_room)

    def _start(self, station: Station, request: Request) -> None:
        """Let one node run on ``request``."""
        deadline, priority = self._entry.deadline, self._entry.priority
        if station.links.each is None:
            step_owner = _Step(self, station)
            entry = _element(request, station, step_owner, deadline=deadline, priority=priority)
            self._submit(station, [entry])
            return
        try:
            copies = elements(station, request)
        except HeadraceError as error:
            self.node_done(station, request, error)
            return
        step = _EachStep(self, station, request)
        step.copies = copies
        step.entries = [
            _element(copy, station, step, deadline=deadline, priority=priority) for copy in copies
        ]
        step.left = len(copies)
        if not copies:
            self.node_done(station, request, gather(station, request, [], []))
        else:
            self._submit(station, step.entries)

    def _submit(self, station: Station, entries: list[Entry]) -> None:
        with self.lock:
            if self._over:
                return
            for entry in entries:
                self._open[id(entry)] = (station.scheduler, entry)
        for entry in entries:
            if entry.error is not None:
                entry.owner.finished(entry)
            elif station is self._route.entry:
                station.scheduler.submit(entry)
            else:
                entry.waits = self._waits
                station.scheduler.submit(entry, internal=True)

    def node_done(self, station: Station, request: Request, error: BaseException | None) -> None:
        """Take note of the end of a node, and start what it was waited for."""
        home = self._route.entry.scheduler
        if home.outside:
            home.let_in()
        todo: list[tuple[Station, Request]] = []
        try:
            if error is None:
                todo = self._ready_after(station, request)
        except HeadraceError as failure:
            error = failure
        if error is not None:
            self._end(error)
            return
        for following, made in todo:
            self._start(following, made)

    def _ready_after(self, station: Station, request: Request) -> list[tuple[Station, Request]]:
        """Give the nodes that may run now, with their dicts."""
        todo: list[tuple[Station, Request]] = []
        ended = [station]
        done = False
        with self.lock:
            if self._over:
                return []
            self._ends.note(station, request)
            while ended:
                one = ended.pop()
                if not one.after:
                    self._sinks_left -= 1
                    done = self._sinks_left == 0
                for name in one.after:
                    self._left[name] -= 1
                    if self._left[name]:
                        continue
                    following = self._route.by_name[name]
                    if passes_by(following, self._ends):
                        self._ends.dicts[name] = self._ends.dicts[one.name]
                        ended.append(following)
                    else:
                        todo.append((following, input_of(following, self._route, self._ends)))
        if done:
            self._end(None)
        return todo

    def _end(self, error: BaseException | None) -> None:
        with self.lock:
            if self._over:
                return
            self._over = True
            still_open = list(self._open.values())
            self._open.clear()
        if error is None:
            try:
                finish(self._route, self._ends, self.request, self._entry.data)
            except NoResultError as missing:
                error = missing
        if error is not None:
            for scheduler, entry in still_open:
                scheduler.cancel(entry)
            if not getattr(error, "abandoned", False):
                self.request["data"] = self._entry.data
                self.request.pop("result", None)
        self.error = error
        self._entry.error = error
        self._owner.finished(self._entry)

    def give_up(self) -> bool:
        """Cancel what waits; tell whether a backend still runs on something."""
        with self.lock:
            self._over = True
            still_open = [*self._open.values(), self.first]
            self._open.clear()
        abandoned = getattr(self.error, "abandoned", False) is True
        for scheduler, entry in still_open:
            if not scheduler.cancel(entry):
                abandoned = scheduler.abandon(entry) or abandoned
        return abandoned
