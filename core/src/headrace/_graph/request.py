"""The driver in nobody's thread: the end of each node, in whichever thread, starts what comes after."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._graph.entries import count, elements_of, entry_at
from headrace._graph.handover import unable
from headrace._graph.traversal import Failure, Traversal
from headrace._graph.turn import Turn
from headrace._scheduling.admission import inside
from headrace._scheduling.entry import (
    DONE,
    NOBODY,
    QUEUED,
    RUNNING,
    WAITING,
    refuses_change,
)
from headrace._scheduling.scheduler import cancel_all
from headrace.errors import HeadraceError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._graph.entries import Elements
    from headrace._graph.graph import Graph
    from headrace._graph.route import Route
    from headrace._graph.traversal import Visit
    from headrace._scheduling.entry import Entry, Owner
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler

__all__ = ["GraphRequest"]


class _Ended(NamedTuple):
    """A visit that has ended, its error, and the entry that holds the error, if it had one."""

    visit: Visit
    error: BaseException | None = None
    entry: Entry | None = None


class _Started(NamedTuple):
    """A visit with the entries that are to run at its node."""

    visit: Visit
    entries: list[Entry]


class GraphRequest:
    """A request on its way through the graph, for which no thread waits at a node.

    Its owner is notified once, when the whole way is over, and is given the entry of the call.

    Two nodes of parallel branches may end at the same time, in two threads. Both put their end into a
    queue and then try to take the `Turn`: the thread that gets it advances the traversal for both, the
    other thread returns at once to its scheduler. Only a thread that ends the request or gives it up
    waits for the turn.

    Attributes:
        deadline: That of the call, on the clock of ``time.monotonic()``; None for none.
    """

    def __init__(self, graph: Graph, route: Route, entry: Entry, owner: Owner) -> None:
        self.deadline = entry.deadline
        self._turn = Turn()
        self._ended: deque[_Ended] = deque()
        self._graph = graph
        self._entry = entry
        self._owner = owner
        self._home = route.first
        self._waits = route.first.waits(entered=route.entry.runs_once)
        self._traversal = Traversal(route, entry.request, graph.route_from)
        self._over = False
        self._abandoned = False  # the request is over, and a backend still runs on it
        self._open: dict[int, tuple[Scheduler, Entry]] = {}

    # Going on.

    def start(self, *, waits_for_room: bool = False, internal: bool = False) -> None:
        """Let the request enter.

        Args:
            waits_for_room: Whether the calling thread waits while the queue is full.
            internal: It comes from a front of this pipeline: closing does not refuse it.
        """
        try:
            self._graph.in_flight.add(self)
            stuck = self._held_here if waits_for_room else None
            visit = self._traversal.begin()
            if visit.step.runs_once:
                # The entry of the call is that of the node, and is counted where it enters.
                self._entry.owner = _NodeOwner(self, visit)
                self._open[id(self._entry)] = (self._home, self._entry)
                self._home.submit(self._entry, waits_for_room=stuck, internal=internal)
                return
            started = self._start(visit)
            if isinstance(started, _Started):
                self._submit(started, stuck, internal=internal)
            else:
                self.node_done(*started)
        except BaseException:
            self.give_up()
            raise

    def _start(self, visit: Visit) -> _Started | _Ended:
        """Make the entries of a visit; give its end when it ends at once."""
        step, deadline, priority = visit.step, self.deadline, self._entry.priority
        if not step.links.levels:
            owner = _NodeOwner(self, visit)
            entry = entry_at(step, visit.request, owner, deadline=deadline, priority=priority)
            entries = [entry]
        else:
            try:
                elements = elements_of(step, visit.request)
            except HeadraceError as error:
                return _Ended(visit, error)
            several = _EachOwner(self, visit, elements)
            entries = several.entries = elements.entries(
                lambda one: entry_at(step, one, several, deadline=deadline, priority=priority),
                step.scheduler,
            )
            if not entries:
                return _Ended(visit, elements.gather([]))
        for entry in entries:
            self._open[id(entry)] = (step.scheduler, entry)
        return _Started(visit, entries)

    def _submit(
        self,
        started: _Started,
        stuck: Callable[[], object] | None = None,
        *,
        internal: bool = True,
    ) -> None:
        """Submit entries that are in `_open` already; called without the turn.

        Another thread may end the request meanwhile: it sets `_over` first and then cancels all entries
        in `_open`. Either this thread sees `_over` and submits no more; or it has passed the check, and
        the entry is cancelled in the queue, or before it gets there, and then `submit` does nothing.
        """
        scheduler, entries = started.visit.step.scheduler, started.entries
        for place, entry in enumerate(entries):
            if self._over:
                # The owner refers to its entries and they to it: a cycle that only the collector frees.
                for left in entries[place:]:
                    left.owner = NOBODY
                return
            if entry.error is not None:
                entry.owner.finished(entry)
            else:
                entry.waits = self._waits
                scheduler.submit(entry, waits_for_room=stuck, internal=internal)

    def forget(self, entry: Entry) -> None:
        """Take note that an entry has its outcome."""
        self._open.pop(id(entry), None)

    def node_done(
        self, visit: Visit, error: BaseException | None = None, entry: Entry | None = None
    ) -> None:
        """Take note of the end of a node, and start the nodes that waited for it."""
        self._ended.append(_Ended(visit, error, entry))
        self._go_on()

    def _go_on(self) -> None:
        """Advance the traversal by all nodes that have ended, unless another thread does so.

        Thread A adds an end and then tries the turn; thread B gives the turn back and then looks for
        ends. If A adds its end before B looks, B finds it; if B has looked before, the turn is free
        when A tries it. So no end is left behind.
        """
        while self._ended and self._turn.take():
            started: list[_Started] = []
            with self._turn.had():
                # No recursion: nodes that end at once may follow each other in any number.
                while self._ended:
                    self._advance(self._ended.popleft(), started)
            for one in started:
                try:
                    self._submit(one)
                except BaseException as raised:  # noqa: BLE001 - a request must not be lost
                    self.end(unable(one.visit.step, raised))

    def _advance(self, ended: _Ended, started: list[_Started]) -> None:
        """Find what starts after a node has ended; whatever is raised here ends this request alone."""
        if self._over:
            return
        (visit, error, entry), step = ended, ended.visit.step
        try:
            if entry is not None:
                entry.give_back()
                error = entry.error
                if entry is not self._entry:
                    entry.error = None  # see `Entry.take_error`
            if error is None:
                following = self._traversal.advance(visit)
                if isinstance(following, Failure):
                    count(following, self._traversal.request)
                    error = following.error
                elif not self._traversal.is_done:
                    for one in following:
                        next_ = self._start(one)
                        if isinstance(next_, _Started):
                            started.append(next_)
                        else:
                            self._ended.append(next_)
                    return
            self.end(error)
        except BaseException as raised:  # noqa: BLE001 - a request must not be lost
            failure = unable(step, raised)
            step.scheduler.count_late(failure)
            self.end(failure)

    # The end.

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
            failure = self._traversal.finish()
            if failure is not None:
                count(failure, self._traversal.request)
                return failure.error
            self._entry.put_back()
        except Exception as raised:  # noqa: BLE001 - anybody's dict
            return refuses_change(raised)
        return None

    def _forget(self) -> None:
        self._open = {}
        self._traversal.forget()

    def _give_back(self) -> None:
        with suppress(Exception):  # anybody's dict; the request has failed as it is
            self._entry.put_back()
            self._entry.request.pop("result", None)

    # Cancelling, all branches or none, and looking where the request is.

    @property
    def state(self) -> str:
        """QUEUED while all entries that are open wait, RUNNING while a backend runs on one, DONE."""
        if self._over:
            return DONE
        states = {entry.state for _, entry in list(self._open.values())}
        return QUEUED if states and states.issubset(WAITING) else RUNNING

    def check_wait(self) -> None:
        """Refuse to let this thread wait for the request while it holds what that needs.

        Raises:
            ContractError: It would wait for ever.
        """
        held = self._held_here()
        if held is not None:
            raise inside(held)

    def _held_here(self) -> str | None:
        """Give a node that has not ended and whose instance the calling thread holds, None for none."""
        if not self._over:
            for step in self._traversal.unvisited():
                if step.scheduler.held_by_this_thread():
                    return step.name
        return None

    def places(self) -> list[tuple[Node, object]]:
        """Give the nodes at which the request is, and those that it has yet to visit."""
        if self._over:
            return []
        found = [scheduler.place(entry) for scheduler, entry in list(self._open.values())]
        return found + [step.scheduler.place(None) for step in self._traversal.unvisited()]

    def cancel(self) -> bool:
        """Take the request back where it waits; False while a backend runs on it, or it is done."""
        if not self._turn.take():
            return False  # between two nodes
        with self._turn.had():
            waiting = [] if self._over else list(self._open.values())
            nodes = cancel_all(waiting) if waiting else None
            if nodes is not None:
                self._over = True
                self._give_back()
                self._forget()
                self._owner = NOBODY
        for node in nodes or ():
            node.notify()
        if nodes is not None:
            self._graph.ended(self)
        self._go_on()
        return nodes is not None

    def give_up(self) -> bool:
        """Cancel all entries that wait; give whether a backend still runs on another one.

        Once this returns no node begins on the request any more.
        """
        with self._turn.waited_for():
            over = self._over
            self._over = True
            abandoned = self._abandoned
            for scheduler, entry in list(self._open.values()):
                if not scheduler.cancel(entry):
                    abandoned = scheduler.abandon(entry) or abandoned
            if not over:
                self._owner = NOBODY
                if not abandoned:
                    self._give_back()
            self._forget()
        self._graph.ended(self)
        self._go_on()
        return abandoned


class _NodeOwner:
    """The owner of the entry of one visit."""

    __slots__ = ("request", "visit")

    def __init__(self, request: GraphRequest, visit: Visit) -> None:
        self.request = request
        self.visit = visit

    def finished(self, entry: Entry) -> None:
        """Let the request go on."""
        self.request.forget(entry)
        self.request.node_done(self.visit, entry.error, entry)


class _EachOwner:
    """The owner of the entries of all elements of one visit."""

    __slots__ = ("elements", "entries", "left", "request", "visit")

    def __init__(self, request: GraphRequest, visit: Visit, elements: Elements) -> None:
        self.request = request
        self.visit = visit
        self.elements = elements
        self.entries: list[Entry] = []
        self.left = list(range(len(elements.requests)))  # the thread that pops 0 is the last

    def finished(self, entry: Entry) -> None:
        """Count one element; with the last, or one that fails the request, let that go on."""
        entry.give_back()
        last = self.left.pop() == 0
        self.request.forget(entry)
        error: Any = entry.error
        alone = self.elements.may_fail_alone and not isinstance(error, OverloadedError)
        if error is None or alone:
            if not last:
                return
            errors = [one.error for one in self.entries]
            step = self.visit.step
            try:
                error = self.elements.gather(errors, self.request.deadline)
            except Exception as raised:  # noqa: BLE001 - anybody's dict
                error = unable(step, raised)
            if error is not None and error not in errors:
                step.scheduler.count_late(error)
        self.request.node_done(self.visit, error)
        for one in self.entries if last else ():
            one.error = None  # see `Entry.take_error`
