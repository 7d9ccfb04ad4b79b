"""The driver in nobody's thread: the end of each node, in whichever thread, starts what comes after."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from headrace._graph.entries import Elements, count, entry_at
from headrace._graph.traversal import Failure, Traversal, unable
from headrace._scheduling.entry import (
    DONE,
    NOBODY,
    QUEUED,
    RUNNING,
    WAITING,
    put_back,
    refuses_change,
)
from headrace._scheduling.scheduler import cancel_all
from headrace.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._graph.graph import Graph
    from headrace._graph.route import Route, Step
    from headrace._graph.traversal import Visit
    from headrace._scheduling.entry import Entry, Owner
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler


class GraphRequest:
    """A request on its way through the graph, for which no thread waits at a node.

    Its owner is notified once, when the whole way is over, and is given the entry of the call.

    Two nodes of parallel branches may end at the same time, in two threads. Both put their end into a
    queue and then try to take the turn, a lock: the thread that gets it advances the traversal for
    both, the other thread returns at once to its scheduler. Only a thread that ends the request or gives
    it up waits for the turn.

    Attributes:
        deadline: That of the call, on the clock of ``time.monotonic()``; None for none.
        open: The entries without an outcome, each with its scheduler.
    """

    def __init__(self, graph: Graph, route: Route, entry: Entry, owner: Owner) -> None:
        self.deadline = entry.deadline
        self._graph = graph
        self._entry = entry
        self._owner = owner
        enters_once = route.entry.runs_once
        self._waits = route.first.waits(entered=enters_once, is_one=route.is_chain)
        self._traversal = Traversal(route, entry.request, graph.route_from)
        self._turn = threading.Lock()
        # Visits that have ended: each with its error, or its entry, which holds that then.
        self._ended: deque[tuple[Visit, BaseException | None, Entry | None]] = deque()
        self.open: dict[Entry, Scheduler] = {}
        self._over = False
        self._abandoned = False  # the request is over, and a backend still runs on it
        self._to_notify: list[Owner] = []  # once it is over: the thread that pops it notifies it

    # Going on.

    def begin(self) -> tuple[Scheduler, list[Entry]]:
        """Give where the request enters, and as what; nothing where it has gone on without."""
        with self._turn:  # `give_up` comes before all of this, or finds what is open
            visit = self._traversal.begin()
            step, entries = visit.step, [self._entry]
            if self._over:
                return step.scheduler, []
            self._graph.in_flight.add(self)
            if step.runs_once:
                # The entry of the call is that of the node, and is counted where it enters.
                self._entry.owner = _NodeOwner(self, visit)
                self.open[self._entry] = step.scheduler
            else:
                entries = self._entries(visit)
        self._go_on()
        return step.scheduler, entries

    def _entries(self, visit: Visit) -> list[Entry]:
        """Make the entries that are to run for a visit, and note them; those that cannot run end at once."""
        step, priority = visit.step, self._entry.priority
        terms: Any = {"deadline": self.deadline, "priority": priority, "waits": self._waits}
        if not step.levels:
            entries = [entry_at(step, visit.request, _NodeOwner(self, visit), **terms)]
        else:
            elements = _EachOwner(self, visit, **terms).elements
            entries = elements.entries
            if not entries:
                self._ended.append((visit, elements.gather(), None))
        # Another thread may end the request meanwhile: it cancels all entries in `open`. Either an entry
        # is in the queue by then, and is taken out; or it has yet to get there, and `let_in` does nothing.
        self.open.update(dict.fromkeys(entries, step.scheduler))
        for entry in entries:
            if entry.error is not None:
                its_owner, entry.owner = entry.owner, NOBODY  # the owner refers to its entries
                its_owner.finished(entry)
        return [entry for entry in entries if entry.state != DONE]

    def node_done(
        self, visit: Visit, error: BaseException | None = None, entry: Entry | None = None
    ) -> None:
        """Take note of the end of a node, and start the nodes that waited for it."""
        self._ended.append((visit, error, entry))
        self._go_on()

    def _go_on(self) -> None:
        """Advance the traversal by all nodes that have ended, unless another thread does so.

        Thread A adds an end and then tries the turn; thread B gives the turn back and then looks for
        ends. If A adds its end before B looks, B finds it; if B has looked before, the turn is free
        when A tries it. So no end is left behind.
        """
        while self._ended and self._turn.acquire(blocking=False):
            started: list[tuple[Step, list[Entry]]] = []
            try:
                # No recursion: nodes that end at once may follow each other in any number.
                while self._ended:
                    self._advance(*self._ended.popleft(), started)
            finally:
                self._turn.release()
            for step, entries in started:
                try:
                    step.scheduler.let_in(*entries, internal=True)
                except BaseException as raised:  # noqa: BLE001 - a request must not be lost
                    self.end(unable(step, raised))
        while self._to_notify:
            try:
                owner = self._to_notify.pop()
            except IndexError:  # another thread was quicker
                return
            try:
                owner.finished(self._entry)
            finally:
                self._graph.ended(self)

    def _advance(
        self,
        visit: Visit,
        error: BaseException | None,
        entry: Entry | None,
        started: list[tuple[Step, list[Entry]]],
    ) -> None:
        """Find what starts after a node has ended; whatever is raised here ends this request alone."""
        if self._over:
            return
        step = visit.step
        try:
            if entry is not None:
                self.open.pop(entry, None)  # with the turn: `give_up` sees it here, or in `open`
                entry.give_back()
                error = entry.take_error()
            if error is None:
                following = self._traversal.advance(visit)
                if isinstance(following, Failure):
                    count(following, self._traversal.request)
                    error = following.error
                elif self._traversal.sinks_left:
                    started += [(one.step, self._entries(one)) for one in following]
                    return
            self._end(error)
        except BaseException as raised:  # noqa: BLE001 - a request must not be lost
            failure = unable(step, raised)
            step.scheduler.count_late(failure)
            self._end(failure)

    # The end.

    def end(self, error: BaseException) -> None:
        """Give the owner an error as the outcome, unless it has one."""
        with self._turn:
            self._end(error)
        self._go_on()

    def _end(self, error: BaseException | None) -> None:
        """Decide the outcome, unless that is done. With the turn."""
        if self._over:
            return
        self._over = True
        if error is None:
            error = self._finish()
        self._entry.error = error
        self._abandoned = getattr(error, "abandoned", False) is True
        try:
            self._cancel_open()
        finally:
            self._leave(self._owner, give_back=error is not None and not self._abandoned)

    def _still_open(self) -> list[tuple[Entry, Scheduler]]:
        """Give what is in `open`, from which other threads take entries meanwhile.

        Copying the keys is one step. A list of ``items()`` is none: making so many tuples may start the
        collector, and what that runs lets other threads go on.
        """
        found = [(entry, self.open.get(entry)) for entry in list(self.open)]
        return [(entry, scheduler) for entry, scheduler in found if scheduler is not None]

    def _cancel_open(self) -> None:
        together: dict[Scheduler, list[Entry]] = {}
        for entry, scheduler in self._still_open():
            together.setdefault(scheduler, []).append(entry)
        for scheduler, entries in together.items():
            scheduler.cancel_together(entries)

    def _finish(self) -> BaseException | None:
        """Give the caller's dict what the sinks have; the error where that cannot be."""
        try:
            failure = self._traversal.finish()
            if failure is not None:
                count(failure, self._traversal.request)
                return failure.error
            put_back(self._entry.request, self._entry.data)
        except Exception as raised:  # noqa: BLE001 - anybody's dict
            return refuses_change(raised)
        return None

    def _leave(self, owner: Owner, *, give_back: bool) -> None:
        """Let go of all; the thread notifies ``owner`` once it has given back the turn. With the turn."""
        if give_back:
            with suppress(Exception):  # anybody's dict; the request has failed as it is
                put_back(self._entry.request, self._entry.data)
                self._entry.request.pop("result", None)
        self.open = {}
        self._traversal.forget()
        self._owner = NOBODY
        self._to_notify.append(owner)

    # Cancelling, all branches or none, and looking where the request is.

    @property
    def state(self) -> str:
        """QUEUED while all entries that are open wait, RUNNING while a backend runs on one, DONE."""
        if self._over:
            return DONE
        states = {entry.state for entry in list(self.open)}
        return QUEUED if states and states.issubset(WAITING) else RUNNING

    def held_here(self) -> bool:
        """Tell whether the calling thread holds an instance of a node that has not ended."""
        unvisited = [] if self._over else self._traversal.unvisited()
        return any(step.scheduler.held_by_this_thread() for step in unvisited)

    def places(self) -> list[tuple[Node, object]]:
        """Give the nodes at which the request is, and those that it has yet to visit."""
        if self._over:
            return []
        found = [scheduler.place(entry) for entry, scheduler in self._still_open()]
        return found + [step.scheduler.place(None) for step in self._traversal.unvisited()]

    def cancel(self) -> bool:
        """Take the request back where it waits; False while a backend runs on it, or it is done."""
        if not self._turn.acquire(blocking=False):
            return False  # between two nodes
        try:
            waiting = [] if self._over else self._still_open()
            nodes = cancel_all(waiting) if waiting else None
            if nodes is not None:
                self._over = True
                self._leave(NOBODY, give_back=True)
        finally:
            self._turn.release()
        for node in nodes or ():
            node.notify()
        self._go_on()
        return nodes is not None

    def give_up(self) -> bool:
        """Cancel all entries that wait; give whether a backend still runs on another one.

        Once this returns no node begins on the request any more.
        """
        with self._turn:
            over, self._over = self._over, True
            self._cancel_open()
            for entry, scheduler in self._still_open():
                self._abandoned = scheduler.abandon(entry) or self._abandoned
            if not over:
                self._leave(NOBODY, give_back=not self._abandoned)
        self._go_on()
        return self._abandoned


class Begun(Protocol):
    """A request that has yet to enter; see `GraphRequest`."""

    def begin(self) -> tuple[Scheduler, Sequence[Entry]]:
        """Give where it enters, and as what."""

    def held_here(self) -> bool:
        """Tell whether the calling thread holds what it needs."""

    def give_up(self) -> bool:
        """Cancel it where it waits; give whether a backend still runs on it."""


def start(
    requests: Sequence[Begun],
    *,
    waits_for_room: bool = False,
    internal: bool = False,
    waits: bool = False,
) -> None:
    """Let requests enter: those that enter at one node arrive there together.

    Args:
        requests: All of one call.
        waits_for_room: Whether the calling thread waits while the queue is full.
        internal: They come from a front of this pipeline: closing does not refuse them.
        waits: The owner waits in this thread: the event loop of a coroutine.
    """
    stuck = (lambda: any(one.held_here() for one in requests)) if waits_for_room else None
    together: dict[Scheduler, list[Entry]] = {}
    try:
        for one in requests:
            scheduler, entries = one.begin()
            together.setdefault(scheduler, []).extend(entries)
        for scheduler, entries in together.items():
            scheduler.let_in(*entries, waits_for_room=stuck, internal=internal, waits=waits)
    except BaseException:
        for one in requests:
            one.give_up()
        raise


class _NodeOwner:
    """The owner of the entry of one visit."""

    __slots__ = ("request", "visit")

    def __init__(self, request: GraphRequest, visit: Visit) -> None:
        self.request = request
        self.visit = visit

    def finished(self, entry: Entry) -> None:
        """Let the request go on."""
        self.request.node_done(self.visit, entry=entry)


class _EachOwner:
    """The owner of the entries of all elements of one visit."""

    __slots__ = ("_group", "elements", "left", "request", "visit")

    def __init__(self, request: GraphRequest, visit: Visit, **terms: Any) -> None:
        self.request = request
        self.visit = visit
        self.elements = elements = Elements(visit.step, visit.request, self, **terms)
        self.left = list(range(len(elements.entries)))  # the thread that pops 0 is the last
        self._group = [] if elements.may_fail_alone else list(elements.entries)

    def group_of(self, entry: Entry) -> list[Entry]:
        """Give the entries that are cancelled while they wait when this one has failed."""
        return self._group

    def finished(self, entry: Entry) -> None:
        """Count one element; with the last, or one that fails the request, let that go on."""
        entry.give_back()
        last = self.left.pop() == 0
        self.request.open.pop(entry, None)
        error: Any = entry.error
        # One that was cancelled tells nothing: that which failed does, now or in the next moment.
        if (
            error is None
            or isinstance(error, CancelledError)
            or (self.elements.may_fail_alone and not isinstance(error, OverloadedError))
        ):
            if not last:
                return
            try:
                error = self.elements.gather()
            except Exception as raised:  # noqa: BLE001 - anybody's dict
                error = unable(self.visit.step, raised)
                self.visit.step.scheduler.count_late(error)
        self.request.node_done(self.visit, error)
        for one in self.elements.entries if last else ():
            one.take_error()
