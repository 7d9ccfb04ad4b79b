"""One request on its way through the graph: the one driver.

`GraphRequest.ended` advances the traversal by a node that has ended, and gives the visits that may start now. Who gets
them lets them into the queues of their nodes (`launch`); then the thread that ends such a node comes here again (`go_on`).
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Protocol

from headrace._graph.entries import FREES_CALLER, Elements, count
from headrace._graph.traversal import Failure, Traversal, unable
from headrace._portable import is_abandoned
from headrace._scheduling.entry import (
    DONE,
    NOBODY,
    QUEUED,
    RUNNING,
    WAITING,
    put_back,
    refuses_change,
)
from headrace._scheduling.node import deliver
from headrace._scheduling.scheduler import cancel_all
from headrace._scheduling.threads import took_token
from headrace.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._graph.graph import Graph
    from headrace._graph.route import Route
    from headrace._graph.traversal import Visit
    from headrace._scheduling.entry import Entry, Owner
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler


class GraphRequest:
    """A request on its way through the graph; its owner is notified once, and is given the entry of the call.

    Attributes:
        open: The entries without an outcome, each with its scheduler.
    """

    def __init__(self, graph: Graph, route: Route, entry: Entry, owner: Owner) -> None:
        self._graph, self._entry, self._owner = graph, entry, owner
        self._traversal = Traversal(route, entry.request, graph.route_from)
        self._quota = route.first.new_quota(entered=route.start.runs_once)
        # Held while the traversal advances. A thread that holds it may enter sections, never the other way round.
        self._turn = RLock()
        self.open: dict[Entry, Scheduler] = {}
        self._deadline = entry.deadline  # of the call; a node may lower that of its entry
        self._over = self._abandoned = self._internal = False
        self._untold: list[None] = [None]

    # From node to node.

    def begin(self, *, internal: bool = False) -> tuple[Scheduler, list[Entry]]:
        """Return the scheduler at which the request enters, and the entries that are to run there."""
        self._graph.in_flight[self] = 0
        self._internal = internal
        visit = self._traversal.begin()
        entries, following = self._entries(visit, self._entry if visit.step.runs_once else None)
        self._internal = True
        self.launch(following)
        self._tell()
        if self._over:  # it was given up before it entered
            self._graph.ended(self)
        return visit.step.scheduler, entries

    def launch(self, visits: Sequence[Visit]) -> None:
        """Let visits into the queues of their nodes."""
        left = list(visits)
        while left:
            visit = left.pop(0)
            try:
                entries, following = self._entries(visit)
                left += following
                if entries:
                    visit.step.scheduler.enqueue(*entries, internal=True)
            except BaseException as raised:  # noqa: BLE001 - the request must get an outcome
                self.end(unable(visit.step, raised))

    def _entries(self, visit: Visit, entry: Entry | None = None) -> tuple[list[Entry], list[Visit]]:
        """Make the entries of a visit; those that cannot run end at once.

        Args:
            visit: The visit.
            entry: The entry of the call, where the first node runs once; else new ones are made.

        Returns:
            The entries that are to run; where there is nothing to run, the visits that may start now.
        """
        call = self._entry
        with self._turn:
            if self._over:
                return [], []
            owner = _VisitOwner(self, visit)
            terms = {"deadline": self._deadline, "priority": call.priority, "quota": self._quota}
            elements = Elements(visit.step, visit.request, owner, entry, **terms)
            owner.elements = elements
            owner.left = len(elements.entries)
            self.open.update(dict.fromkeys(elements.entries, visit.step.scheduler))
        alive = [one for one in elements.entries if one.state != DONE]
        refused = None
        if not alive and not self._internal:  # else its queue refuses it, where the node is closed
            refused = visit.step.scheduler.refusal(visit.request)
        if refused is not None or not elements.entries:
            return [], self.ended(visit, refused or elements.gather())
        elements.enter_with(call.entered)
        for one in list(elements.entries):
            if one.error is not None:
                one.owner = NOBODY  # no cycle is left
                owner.finished(one)
        return [one for one in alive if one.state != DONE], []

    def go_on(self, visit: Visit, error: BaseException | None) -> None:
        """Advance by a visit that ended in any thread, and launch those after it."""
        self.launch(self.ended(visit, error))
        self._tell()

    def ended(self, visit: Visit, error: BaseException | None) -> list[Visit]:
        """Advance by a visit that has ended; give the visits that may start now."""
        with self._turn:
            if self._over:
                return []
            try:
                if error is None:
                    following = self._traversal.advance(visit)
                    if isinstance(following, Failure):
                        count(following, self._traversal.request)
                        error = following.error
                    elif self._traversal.sinks_left:
                        return following
                self._end(error)
            except BaseException as raised:  # noqa: BLE001
                failure = unable(visit.step, raised)
                visit.step.scheduler.count_late(failure)
                self._end(failure)
            return []

    # The outcome.

    def end(self, error: BaseException) -> None:
        """End the request with an error, unless it has its outcome already."""
        with self._turn:
            self._end(error)
        self._tell()

    def _end(self, error: BaseException | None) -> None:
        """Decide the outcome, unless it is decided. Under the turn."""
        if self._over:
            return
        if error is None:
            error = self._finish()
        self._over, self._abandoned = True, is_abandoned(error)
        is_interrupt = error is not None and not isinstance(error, Exception)
        frees = is_interrupt or isinstance(error, FREES_CALLER)
        if self.open and self._cancel_open(frees=frees):
            error.abandoned = self._abandoned = True  # type: ignore[union-attr]
        self._entry.error = error
        self._leave(give_back=error is not None and not self._abandoned)

    def _tell(self) -> None:
        """Notify the owner once the request is over; the thread that takes the token does so."""
        if self._over and self._untold and took_token(self._untold):
            owner, self._owner = self._owner, NOBODY
            self._entry.owner = NOBODY  # no cycle is left
            deliver(owner, self._entry)
            self._graph.ended(self)

    def _cancel_open(self, *, frees: bool = False) -> bool:
        """Cancel all entries that wait; where this ``frees`` the caller, tell whether a backend runs on another one."""
        together: dict[Scheduler, list[Entry]] = {}
        for entry, scheduler in list(self.open.copy().items()):
            together.setdefault(scheduler, []).append(entry)
        for scheduler, entries in together.items():
            scheduler.cancel_together(entries)
        left = list(self.open.copy().items()) if frees else ()
        return any(s.abandon(one) if one.lent else one.state == RUNNING for one, s in left)

    def _finish(self) -> BaseException | None:
        """Put the results of the sinks into the caller's dict; give the error if one is missing."""
        try:
            failure = self._traversal.finish()
            if failure is not None:
                count(failure, self._traversal.request)
                return failure.error
            put_back(self._entry.request, self._entry.data)
        except Exception as raised:  # noqa: BLE001
            return refuses_change(raised)
        return None

    def _leave(self, *, give_back: bool) -> None:
        if give_back:
            with suppress(BaseException):  # of the user's dict
                put_back(self._entry.request, self._entry.data)
                self._entry.request.pop("result", None)
        self.open = {}
        self._traversal.forget()

    def stop(self, error: BaseException) -> None:
        """End the request with an error also where a backend runs on it."""
        with self._turn:
            if not self._over:
                left = [one.abandon(entry) for entry, one in list(self.open.copy().items())]
                error.abandoned = any(left)  # type: ignore[attr-defined]
        self.end(error)

    # Where the request is, and cancelling it: all branches or none.

    @property
    def state(self) -> str:
        """DONE after the end, QUEUED while all open entries wait, RUNNING otherwise."""
        if self._over:
            return DONE
        states = {entry.state for entry in list(self.open)}
        return QUEUED if states and states.issubset(WAITING) else RUNNING

    def held_here(self) -> bool:
        """Tell whether the calling thread holds an instance of a node that has not ended."""
        unvisited = [] if self._over else self._traversal.unvisited()
        return any(step.scheduler.held_by_this_thread() for step in unvisited)

    def places(self) -> list[tuple[Node, object]]:
        """Return the nodes at which the request is, and those that it has yet to visit."""
        if self._over:
            return []
        found: list[tuple[Node, object]] = [
            (one.node, entry) for entry, one in list(self.open.copy().items())
        ]
        return found + [(step.scheduler.node, None) for step in self._traversal.unvisited()]

    def cancel(self) -> bool:
        """Withdraw the request while it waits; False when a backend runs on it, or it is done."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if self._over or not self.open or not cancel_all(list(self.open.copy().items())):
                return False
            self._over = True
            self._leave(give_back=True)
            self._owner = NOBODY
        finally:
            self._turn.release()
        self._tell()
        return True

    def give_up(self) -> bool:
        """Cancel all entries that wait; give whether a backend still runs on another entry."""
        with self._turn:
            over, self._over = self._over, True
            self._cancel_open()
            for entry, scheduler in list(self.open.copy().items()):
                self._abandoned = scheduler.abandon(entry) or self._abandoned
            if not over:
                self._owner = NOBODY
                self._leave(give_back=not self._abandoned)
        self._tell()
        return self._abandoned


class Begun(Protocol):
    """A request that has yet to enter; see `GraphRequest`."""

    def begin(self, *, internal: bool = False) -> tuple[Scheduler, Sequence[Entry]]: ...
    def held_here(self) -> bool: ...
    def give_up(self) -> bool: ...


def start(
    requests: Sequence[Begun],
    *,
    waits_for_room: bool = False,
    internal: bool = False,
    waits: bool = False,
) -> None:
    """Let requests enter; those that enter at the same node arrive there together."""
    stuck = (lambda: any(one.held_here() for one in requests)) if waits_for_room else None
    together: dict[Scheduler, list[Entry]] = {}
    try:
        for one in requests:
            scheduler, entries = one.begin(internal=internal)
            together.setdefault(scheduler, []).extend(entries)
        for scheduler, entries in together.items():
            scheduler.enqueue(*entries, waits_for_room=stuck, internal=internal, waits=waits)
    except BaseException:
        for one in requests:
            one.give_up()
        raise


class _VisitOwner:
    """The owner of the entries of one visit: one, or with ``each`` one per element."""

    __slots__ = ("elements", "left", "request", "visit")
    elements: Elements
    left: int

    def __init__(self, request: GraphRequest, visit: Visit) -> None:
        self.request, self.visit = request, visit

    def finished(self, entry: Entry) -> None:
        """Count one entry; the last one, and one that fails the request, end the visit."""
        request, elements = self.request, self.elements
        with request._turn:
            if request._over:
                return
            if request.open.pop(entry, None) is not None:  # else it is told twice
                self.left -= 1
            entry.give_back()
            error = entry.error
            # A cancelled element does not end the visit: the failed one for which it was cancelled does so.
            may_go_on = elements.may_fail_alone and not isinstance(error, OverloadedError)
            if error is None or may_go_on or isinstance(error, CancelledError):
                if self.left:
                    return
                error = elements.gather()
            else:
                elements.forget()
        request.go_on(self.visit, error)
