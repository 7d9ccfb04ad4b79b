"""A request on its way through the nodes that no thread waits inside: each end starts the next."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from headrace._graph.each import Elements
from headrace._graph.handover import (
    MOST_REPOSTS,
    finish,
    repost_of,
    too_often,
    unable,
)
from headrace._graph.stations import entry_at
from headrace._graph.steps import EachStep, Leg, Step
from headrace._graph.taking_back import TakingBack
from headrace._graph.turn import Turn
from headrace._scheduling.entry import (
    NOBODY,
    Entry,
    refuses_change,
)
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._graph.graph import Graph, Route, Station
    from headrace._scheduling.entry import Owner
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["Walk"]


_Begin = tuple[Leg, "Station", "Request"]
"""A node that may run now, with its dict."""

_End = tuple[Leg, "Station", "Request", "BaseException | None", "Entry | None"]
"""A node that has ended, its dict, its error, and its entry, whose error it is, if it had one."""


class _Entered(NamedTuple):
    """A node with the entries that are to run there."""

    station: Station
    entries: list[Entry]


class Walk(TakingBack):
    """A walk that no thread waits inside: each node's end starts what comes after it.

    It stands in for the entry of its first node: its owner is given that when it is over.

    The ends of nodes, which may come at the same time, are seen to one after the other by the thread
    that has the *turn*. One that comes meanwhile is left to it: nobody waits for the turn but who
    gives the walk up.

    Attributes:
        request: The caller's dict.
        deadline: That of the call, on the clock of ``time.monotonic()``; None for none.
    """

    def __init__(self, graph: Graph, route: Route, entry: Entry, owner: Owner) -> None:
        self.request = entry.request
        self.deadline = entry.deadline
        self._turn = Turn()
        self._ended: deque[_End] = deque()
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
            ended = self._start(leg, station, self.request)
            if isinstance(ended, _Entered):
                self._submit(ended, stuck, internal=internal)
            else:
                self.node_done(*ended)
            return
        self._entry.owner = Step(self, leg, station)
        self._open[id(self._entry)] = (station.scheduler, self._entry)
        station.scheduler.submit(self._entry, waits_for_room=stuck, internal=internal)

    def _start(self, leg: Leg, station: Station, request: Request) -> _Entered | _End:
        """Make what a node is to run on; give its end when it ends at once."""
        deadline, priority = self.deadline, self._entry.priority
        if station.links.reposts:
            request.pop("repost", None)
        if not station.links.levels:
            owner = Step(self, leg, station)
            entry = entry_at(station, request, owner, deadline=deadline, priority=priority)
            return self._opened(station, [entry])
        try:
            elements = Elements(station.links.levels, request)
        except HeadraceError as error:
            station.scheduler.count_refused(request, error)
            return leg, station, request, error, None
        step = EachStep(self, leg, station, request, elements)
        step.entries = elements.entries(
            lambda one: entry_at(station, one, step, deadline=deadline, priority=priority),
            station.scheduler,
        )
        if not step.entries:
            return leg, station, request, elements.gather([]), None
        return self._opened(station, step.entries)

    def _opened(self, station: Station, entries: list[Entry]) -> _Entered:
        for entry in entries:
            self._open[id(entry)] = (station.scheduler, entry)
        return _Entered(station, entries)

    def _submit(
        self,
        entered: _Entered,
        stuck: Callable[[], object] | None = None,
        *,
        internal: bool = True,
    ) -> None:
        """Let entries run that are open. Who has the turn does not wait for what happens here.

        Who ends the walk says so first, and then takes back all that is open, also what has not come
        to its scheduler yet.
        """
        station, entries = entered
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
        self._open.pop(id(entry), None)

    def node_done(
        self,
        leg: Leg,
        station: Station,
        request: Request,
        error: BaseException | None,
        entry: Entry | None = None,
    ) -> None:
        """Take note of the end of a node, and start what it was waited for."""
        if self._home.outside:
            self._home.let_in()
        self._ended.append((leg, station, request, error, entry))
        self._go_on()

    def _go_on(self) -> None:
        """See to the nodes that have ended, unless another thread does."""
        while self._ended and self._turn.take():
            begun: list[_Entered] = []
            with self._turn.had():
                # No recursion: nodes that end at once may follow each other in any number.
                while self._ended:
                    begun += self._see_to(*self._ended.popleft())
            for entered in begun:
                try:
                    self._submit(entered)
                except BaseException as raised:  # noqa: BLE001 - a request must not be lost
                    self.end(unable(entered.station, raised))

    def _see_to(
        self,
        leg: Leg,
        station: Station,
        request: Request,
        error: BaseException | None,
        entry: Entry | None,
    ) -> list[_Entered]:
        """Give what comes after a node; whatever is raised there ends this walk alone."""
        begun: list[_Entered] = []
        if self._over:
            return begun
        try:
            if entry is not None:
                entry.give_back()
                error = entry.error
                if entry is not self._entry:
                    entry.error = None  # see `Entry.take_error`
            for one in self._after(leg, station, request, error):
                next_ = self._start(*one)
                if isinstance(next_, _Entered):
                    begun.append(next_)
                else:
                    self._ended.append(next_)
        except BaseException as raised:  # noqa: BLE001 - a request must not be lost
            failure = unable(station, raised)
            station.scheduler.count_late(failure)
            self.end(failure)
        return begun

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
        if self._over:
            return [], None
        ready, sinks, failed = leg.advance(station, request)
        self._sinks_left -= len(sinks)
        self._sinks += sinks
        if failed is not None:
            failed[0].scheduler.count_refused(request, failed[1])
            return [], failed[1]
        if not self._sinks_left:
            self.end(None)
        return [(leg, following, made) for following, made in ready], None

    def end(self, error: BaseException | None) -> None:
        """Give the owner the outcome, unless it has one."""
        with self._turn.waited_for():
            if self._over:
                return
            self._over = True
            if error is None:
                error = self._finish()
            if error is not None:
                for scheduler, entry in list(self._open.values()):
                    scheduler.cancel(entry)
                self._abandoned = getattr(error, "abandoned", False) is True
                if not self._abandoned:
                    self._give_back()
            self._forget()
            self._entry.error = error
            owner, self._owner = self._owner, NOBODY
        try:
            owner.finished(self._entry)
        finally:
            self._graph.ended(self)
        self._go_on()

    def _finish(self) -> BaseException | None:
        """Give the caller's dict what the sinks have; the error where that cannot be."""
        try:
            order = {name: i for i, name in enumerate(self._graph.names)}
            sinks = sorted(self._sinks, key=lambda sink: order[sink[0].name])
            finish(sinks, self.request)
            self._entry.put_back()
        except HeadraceError as missing:
            return missing
        except Exception as raised:  # noqa: BLE001 - anybody's dict
            return refuses_change(raised)
        return None

    def _forget(self) -> None:
        """Let go of what the nodes wrote: whoever keeps the future would keep all of it."""
        self._open = {}
        for leg in self._legs:
            leg.ends.clear()
        self._sinks.clear()

    def _give_back(self) -> None:
        with suppress(Exception):  # anybody's dict; the request has failed as it is
            self._entry.put_back()
            self.request.pop("result", None)
