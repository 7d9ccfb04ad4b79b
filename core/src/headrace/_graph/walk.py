"""A request on its way through the nodes that no thread waits inside: each end starts the next."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace._build.each import Elements
from headrace._graph.handover import (
    MOST_REPOSTS,
    finish,
    input_of,
    passes_by,
    repost_of,
    too_often,
)
from headrace._graph.stations import entry_at
from headrace._graph.steps import EachStep, Leg, Step
from headrace._scheduling.admission import inside
from headrace._scheduling.entry import DONE, ENTERED, NOBODY, OUTSIDE, QUEUED, RUNNING, Entry
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._graph.graph import Graph, Route, Station
    from headrace._scheduling.entry import Owner
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["Walk"]

_WAITING = (QUEUED, OUTSIDE, ENTERED)


_Begin = tuple[Leg, "Station", "Request"]
"""A node that may run now, with its dict."""

_End = tuple[Leg, "Station", "Request", "BaseException | None"]
"""A node that has ended, its dict, and its error."""


class Walk:
    """A walk that no thread waits inside: each node's end starts what comes after it.

    It stands in for the entry of its first node: its owner is given that when it is over.

    Attributes:
        request: The caller's dict.
        deadline: That of the call, on the clock of ``time.monotonic()``; None for none.
        lock: Guards what the ends of several nodes change.
    """

    def __init__(self, graph: Graph, route: Route, entry: Entry, owner: Owner) -> None:
        self.request = entry.request
        self.deadline = entry.deadline
        self.lock = threading.Lock()
        self._graph = graph
        self._entry = entry
        self._owner = owner
        self._home = route.first
        self._is_plain = not route.entry.links.levels and route.entry.timeout_ms is None
        self._waits = route.first.waits(entered=self._is_plain)
        self._legs = [Leg(route)]
        self._sinks: list[tuple[Station, Request]] = []
        self._sinks_left = len(route.sinks)
        self._reposts = 0
        self._over = False
        self._abandoned = False  # over, while a backend still runs on it
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
        stuck = self._held_here if waits_for_room else None
        if not self._is_plain:
            ended = self._start(leg, station, self.request, stuck, internal=internal)
            if ended is not None:
                self.node_done(*ended)
            return
        self._entry.owner = Step(self, leg, station)
        self._open[id(self._entry)] = (station.scheduler, self._entry)
        station.scheduler.submit(self._entry, waits_for_room=stuck, internal=internal)

    def _start(
        self,
        leg: Leg,
        station: Station,
        request: Request,
        stuck: Callable[[], object] | None = None,
        *,
        internal: bool = True,
    ) -> _End | None:
        """Let one node run on ``request``; give its end when it has ended at once."""
        deadline, priority = self.deadline, self._entry.priority
        if station.links.reposts:
            request.pop("repost", None)
        if not station.links.levels:
            owner = Step(self, leg, station)
            entry = entry_at(station, request, owner, deadline=deadline, priority=priority)
            self._submit(station, [entry], stuck, internal=internal)
            return None
        try:
            elements = Elements(station.links.levels, request)
        except HeadraceError as error:
            station.scheduler.count_refused(request, error)
            return leg, station, request, error
        step = EachStep(self, leg, station, request, elements)
        step.entries = elements.entries(
            lambda one: entry_at(station, one, step, deadline=deadline, priority=priority),
            station.scheduler,
        )
        if not step.entries:
            return leg, station, request, elements.gather([])
        self._submit(station, step.entries, stuck, internal=internal)
        return None

    def _submit(
        self,
        station: Station,
        entries: list[Entry],
        stuck: Callable[[], object] | None,
        *,
        internal: bool,
    ) -> None:
        with self.lock:
            for entry in () if self._over else entries:
                self._open[id(entry)] = (station.scheduler, entry)
        for place, entry in enumerate(entries):
            if self._over:  # one of those before has ended it
                # An owner knows its entries: together they would be garbage.
                for left in entries[place:]:
                    left.owner = NOBODY
                return
            if entry.error is not None:
                entry.owner.finished(entry)
            else:
                entry.waits = self._waits
                station.scheduler.submit(entry, waits_for_room=stuck, internal=internal)

    def forget(self, entry: Entry) -> None:
        """Take note that an entry has its outcome."""
        with self.lock:
            self._open.pop(id(entry), None)

    def node_done(
        self, leg: Leg, station: Station, request: Request, error: BaseException | None
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
        self, leg: Leg, station: Station, request: Request, error: BaseException | None
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
            self.end(error)
            return []
        return todo

    def _reposted(self, station: Station, request: Request) -> Leg | None:
        """Begin another leg where a `Repost` has ended the walk."""
        target = repost_of(station, request) if station.links.reposts else None
        if target is None:
            return None
        leg = Leg(self._graph.route_from(target))
        with self.lock:
            self._reposts += 1
            if self._reposts > MOST_REPOSTS:
                raise too_often(station, target)
            skipped = [name for name in station.skipped if not self._graph.follows(name)]
            self._sinks_left += len(leg.route.sinks) - len(skipped)
            self._legs.append(leg)
        return leg

    def _ready_after(
        self, leg: Leg, station: Station, request: Request
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
            self.end(None)
        return todo, None

    def end(self, error: BaseException | None) -> None:
        """Give the owner the outcome, unless it has one."""
        with self.lock:
            if self._over:
                return
            self._over = True
            still_open, self._open = list(self._open.values()), {}
        if error is None:
            try:
                order = {name: i for i, name in enumerate(self._graph.names)}
                sinks = sorted(self._sinks, key=lambda sink: order[sink[0].name])
                finish(sinks, self.request)
                self._entry.put_back()
            except HeadraceError as missing:
                error = missing
        if error is not None:
            for scheduler, entry in still_open:
                scheduler.cancel(entry)
            self._abandoned = getattr(error, "abandoned", False) is True
            if not self._abandoned:
                self._give_back()
        self._forget_ends()
        self._entry.error = error
        self._owner.finished(self._entry)
        self._owner = NOBODY
        self._graph.ended(self)

    def _forget_ends(self) -> None:
        """Let go of what the nodes wrote: whoever keeps the future would keep all of it."""
        with self.lock:
            for leg in self._legs:
                leg.ends.clear()
            self._sinks.clear()

    def _give_back(self) -> None:
        self._entry.put_back()
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

    def places(self) -> list[tuple[Node, object]]:
        """Give the nodes at which it is, and those that it has yet to visit."""
        if self._over:
            return []
        found = [scheduler.place(entry) for scheduler, entry in list(self._open.values())]
        for leg in list(self._legs):
            stations = [one for one in leg.route.stations if one.name not in leg.ends]
            found += [station.scheduler.place(None) for station in stations]
        return found

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
            still_open, self._open = list(self._open.values()), {}
        abandoned = self._abandoned
        for scheduler, entry in still_open:
            if not scheduler.cancel(entry):
                abandoned = scheduler.abandon(entry) or abandoned
        if not abandoned and not over:
            self._give_back()
        self._forget_ends()
        if self._home.outside:
            self._home.let_in()
        if not over:
            self._owner = NOBODY
        self._graph.ended(self)
        return abandoned
