"""A request on its way through the nodes that no thread waits inside: each end starts the next."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace._build.each import Elements
from headrace._graph.handover import (
    MOST_REPOSTS,
    Ends,
    finish,
    input_of,
    passes_by,
    repost_of,
    too_often,
)
from headrace._graph.stations import entry_at
from headrace._scheduling.admission import inside
from headrace._scheduling.entry import DONE, ENTERED, OUTSIDE, QUEUED, RUNNING, Entry
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace._graph.graph import Graph, Route, Station
    from headrace._scheduling.entry import Owner
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["Walk"]

_WAITING = (QUEUED, OUTSIDE, ENTERED)


class _Leg:
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


_Begin = tuple[_Leg, "Station", "Request"]
"""A node that may run now, with its dict."""

_End = tuple[_Leg, "Station", "Request", "BaseException | None"]
"""A node that has ended, its dict, and its error."""


class _Step:
    """The owner of the entry of one node of a walk."""

    __slots__ = ("leg", "station", "walk")

    def __init__(self, walk: Walk, leg: _Leg, station: Station) -> None:
        self.walk = walk
        self.leg = leg
        self.station = station

    def finished(self, entry: Entry) -> None:
        """Let the walk go on."""
        self.walk.forget(entry)
        self.walk.node_done(self.leg, self.station, entry.request, entry.error)


class _EachStep:
    """The owner of the entries of all elements of one node of a walk."""

    __slots__ = ("elements", "entries", "left", "leg", "request", "station", "walk")

    def __init__(
        self, walk: Walk, leg: _Leg, station: Station, request: Request, elements: Elements
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
        if entry.error is not None and not self.elements.may_fail_alone:
            self.walk.node_done(self.leg, self.station, self.request, entry.error)
        elif last:
            errors = [one.error for one in self.entries]
            error = self.elements.gather(errors, self.walk.deadline)
            if error is not None and error not in errors:
                self.station.scheduler.count_late(error)
            self.walk.node_done(self.leg, self.station, self.request, error)


class Walk:
    """A walk that no thread waits inside: each node's end starts what comes after it.

    It stands in for the entry of its first node: its owner is given that when it is over.

    Attributes:
        request: The caller's dict.
        deadline: That of the call, on the clock of ``time.monotonic()``; None for none.
        error: The outcome once it is over, None for success.
        lock: Guards what the ends of several nodes change.
    """

    def __init__(self, graph: Graph, route: Route, entry: Entry, owner: Owner) -> None:
        self.request = entry.request
        self.deadline = entry.deadline
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self._graph = graph
        self._entry = entry
        self._owner = owner
        self._home = route.first
        self._waits = route.first.waits()
        self._legs = [_Leg(route)]
        self._sinks: list[tuple[Station, Request]] = []
        self._sinks_left = len(route.sinks)
        self._reposts = 0
        self._over = False
        self._open: dict[int, tuple[Scheduler, Entry]] = {}

    def start(self, *, waits_for_room: bool = False, internal: bool = False) -> None:
        """Let the request enter; ``internal`` when it comes from a front of this pipeline."""
        try:
            self._graph.walking.add(self)
            self._enter(waits_for_room, internal=internal)
        except BaseException:
            self.give_up()
            raise

    def _enter(self, waits_for_room: bool, *, internal: bool) -> None:
        (leg,) = self._legs
        station = leg.route.entry
        if station.links.reposts:
            self.request.pop("repost", None)
        if station.links.levels or station.timeout_ms is not None:
            ended = self._start(leg, station, self.request, internal=internal)
            if ended is not None:
                self.node_done(*ended)
            return
        self._entry.owner = _Step(self, leg, station)
        self._open[id(self._entry)] = (station.scheduler, self._entry)
        stuck = self._held_here if waits_for_room else None
        station.scheduler.submit(self._entry, waits_for_room=stuck, internal=internal)

    def _start(
        self, leg: _Leg, station: Station, request: Request, *, internal: bool = True
    ) -> _End | None:
        """Let one node run on ``request``; give its end when it has ended at once."""
        deadline, priority = self.deadline, self._entry.priority
        if station.links.reposts:
            request.pop("repost", None)
        if not station.links.levels:
            owner = _Step(self, leg, station)
            entry = entry_at(station, request, owner, deadline=deadline, priority=priority)
            self._submit(station, [entry], internal=internal)
            return None
        try:
            elements = Elements(station.links.levels, request)
        except HeadraceError as error:
            station.scheduler.count_refused(request, error)
            return leg, station, request, error
        step = _EachStep(self, leg, station, request, elements)
        step.entries = elements.entries(
            lambda one: entry_at(station, one, step, deadline=deadline, priority=priority),
            station.scheduler,
        )
        if not step.entries:
            return leg, station, request, elements.gather([])
        self._submit(station, step.entries, internal=internal)
        return None

    def _submit(self, station: Station, entries: list[Entry], *, internal: bool) -> None:
        with self.lock:
            if self._over:
                return
            for entry in entries:
                self._open[id(entry)] = (station.scheduler, entry)
        elsewhere = station.scheduler is not self._home
        for entry in entries:
            if self._over:  # an element before it has failed
                return
            if entry.error is not None:
                entry.owner.finished(entry)
            else:
                entry.waits = self._waits if elsewhere else None
                station.scheduler.submit(entry, internal=internal)

    def forget(self, entry: Entry) -> None:
        """Take note that an entry has its outcome."""
        with self.lock:
            self._open.pop(id(entry), None)

    def node_done(
        self, leg: _Leg, station: Station, request: Request, error: BaseException | None
    ) -> None:
        """Take note of the end of a node, and start what it was waited for."""
        if self._home.outside:
            self._home.let_in()
        ended: list[_End] = [(leg, station, request, error)]
        while ended:  # no recursion: nodes that end at once may follow each other in any number
            todo = self._after(*ended.pop())
            starts = [self._start(*one) for one in todo]
            ended += [end for end in starts if end is not None]

    def _after(
        self, leg: _Leg, station: Station, request: Request, error: BaseException | None
    ) -> list[_Begin]:
        """Give what begins when a node has ended; with an error it is the walk that ends."""
        todo: list[_Begin] = []
        if error is None:
            try:
                other = self._reposted(station, request)
                if other is not None:
                    todo = [(other, other.route.entry, request)]
            except HeadraceError as failure:
                station.scheduler.count_late(failure)
                error = failure
            else:
                if other is None:
                    todo, error = self._ready_after(leg, station, request)
        if error is not None:
            self._end(error)
            return []
        return todo

    def _reposted(self, station: Station, request: Request) -> _Leg | None:
        """Begin another leg where a `Repost` has ended the walk."""
        target = repost_of(station, request) if station.links.reposts else None
        if target is None:
            return None
        leg = _Leg(self._graph.route_from(target))
        with self.lock:
            self._reposts += 1
            if self._reposts > MOST_REPOSTS:
                raise too_often(station, target)
            skipped = [name for name in station.skipped if not self._graph.follows(name)]
            self._sinks_left += len(leg.route.sinks) - len(skipped)
            self._legs.append(leg)
        return leg

    def _ready_after(
        self, leg: _Leg, station: Station, request: Request
    ) -> tuple[list[_Begin], BaseException | None]:
        """Give the nodes that may run now, with their dicts, or the error that ends the walk."""
        todo: list[_Begin] = []
        by_name, ends = leg.route.by_name, leg.ends
        ended = [station]
        failed: tuple[Station, HeadraceError] | None = None
        with self.lock:
            if self._over:
                return [], None
            ends[station.name] = request
            while ended and failed is None:
                one = ended.pop()
                if not one.after:
                    self._sinks_left -= 1
                    self._sinks.append((one, ends[one.name]))
                for name in one.after:
                    leg.left[name] -= 1
                    if leg.left[name]:
                        continue
                    following = by_name[name]
                    if passes_by(following, ends):
                        before = ends[one.name]
                        ends[name] = dict(before) if one.copied else before
                        ended.append(following)
                        continue
                    try:
                        todo.append((leg, following, input_of(following, by_name, ends)))
                    except HeadraceError as error:
                        failed = following, error
            done = not self._sinks_left
        if failed is not None:
            failed[0].scheduler.count_refused(request, failed[1])
            return [], failed[1]
        if done:
            self._end(None)
        return todo, None

    def _end(self, error: BaseException | None) -> None:
        with self.lock:
            if self._over:
                return
            self._over = True
            still_open = self._take_open()
        if error is None:
            try:
                order = {name: i for i, name in enumerate(self._graph.names)}
                sinks = sorted(self._sinks, key=lambda sink: order[sink[0].name])
                finish(sinks, self.request, self._entry.data)
            except HeadraceError as missing:
                error = missing
        if error is not None:
            for scheduler, entry in still_open:
                scheduler.cancel(entry)
            if not getattr(error, "abandoned", False):
                self._give_back()
        self._forget_ends()
        self.error = error
        self._entry.error = error
        self._owner.finished(self._entry)
        self._graph.ended(self)

    def _forget_ends(self) -> None:
        """Let go of what the nodes wrote: whoever keeps the future would keep all of it."""
        with self.lock:
            for leg in self._legs:
                leg.ends.clear()
            self._sinks.clear()

    def _take_open(self) -> list[tuple[Scheduler, Entry]]:
        still_open = list(self._open.values())
        self._open.clear()
        return still_open

    def _give_back(self) -> None:
        self.request["data"] = self._entry.data
        self.request.pop("result", None)

    # Taking it back.

    @property
    def state(self) -> str:
        """QUEUED while all of it that is open waits, RUNNING while a backend runs, DONE."""
        with self.lock:
            if self._over:
                return DONE
            states = {entry.state for _, entry in self._open.values()}
        return QUEUED if states and states.issubset(_WAITING) else RUNNING

    def check_wait(self, entry: object = None) -> None:
        """Refuse to let this thread wait for the walk while it holds what the walk needs.

        Args:
            entry: Not used, as in `cancel`.

        Raises:
            ContractError: It would wait for ever.
        """
        held = self._held_here()
        if held is not None:
            raise inside(held)

    def _held_here(self) -> str | None:
        """Give a node which the walk has yet to visit and whose instance this thread holds."""
        with self.lock:
            legs = [] if self._over else list(self._legs)
        for leg in legs:
            for station in leg.route.stations:
                if station.name not in leg.ends and station.scheduler.held_by_this_thread():
                    return station.name
        return None

    def cancel(self, entry: object = None) -> bool:
        """Take the request back where it waits; False while a backend runs on it, or it is done.

        Args:
            entry: Not used; a walk is cancelled as an entry is.
        """
        if self.state != QUEUED:
            return False
        with self.lock:
            waiting = list(self._open.values())
        if not waiting or not waiting[0][0].cancel(waiting[0][1]):
            return False
        self.give_up()
        return True

    def give_up(self) -> bool:
        """Cancel what waits; tell whether a backend still runs on something."""
        with self.lock:
            over = self._over
            self._over = True
            still_open = self._take_open()
        abandoned = getattr(self.error, "abandoned", False) is True
        for scheduler, entry in still_open:
            if not scheduler.cancel(entry):
                abandoned = scheduler.abandon(entry) or abandoned
        if not abandoned and not over:
            self._give_back()
        self._forget_ends()
        if self._home.outside:
            self._home.let_in()
        self._graph.ended(self)
        return abandoned
