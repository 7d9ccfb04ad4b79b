"""The driver without a thread of its own: the thread that ends a node starts the nodes that come after it."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace._graph.entries import FREES_CALLER, EntriesOfOne, count, entry_at
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
from headrace._scheduling.locks import drained
from headrace._scheduling.node import deliver
from headrace._scheduling.scheduler import cancel_all
from headrace.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._graph.graph import Graph
    from headrace._graph.route import Route, Step
    from headrace._graph.traversal import Visit
    from headrace._scheduling.entry import Entry, Owner
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler


class GraphRequest:
    """A request on its way through the graph; any thread takes it from node to node.

    Its owner is notified once, after the last node, and is given the entry of the call.
    Two threads may end nodes of parallel branches at the same time. Both put the end into a queue and try to acquire the
    turn, a lock. Who gets it advances the traversal for both. Only a thread that ends or gives up the request waits.

    Attributes:
        deadline: The deadline of the call, on the clock of ``time.monotonic()``; None for none.
        open: The entries without an outcome, each with its scheduler.
        caller: The caller's thread where it takes part, 0 otherwise.
        give: Called with a scheduler and entries that may start; tells whether the caller lets them in.
    """

    caller = 0
    give: Callable[[Scheduler, list[Entry]], bool] = staticmethod(lambda *_: False)

    def __init__(self, graph: Graph, route: Route, entry: Entry, owner: Owner) -> None:
        self.deadline = entry.deadline
        self._graph = graph
        self._entry = entry
        self._owner = owner
        enters_once = route.start.runs_once
        self._quota = route.first.new_quota(entered=enters_once, is_one=route.is_chain)
        self._traversal = Traversal(route, entry.request, graph.route_from)
        self._turn = threading.Lock()
        # The visits that have ended, each with a function that gives its error. It is called under the turn, since
        # it may write into the request, and is told whether the request is over: then the dict is the caller's again.
        self._ended: deque[tuple[Visit, Callable[[bool], BaseException | None]]] = deque()
        self.open: dict[Entry, Scheduler] = {}
        self._over = self._abandoned = False  # abandoned: over, and a backend still runs on it
        # Filled once the request is over: the thread that pops the owner notifies it.
        self._to_notify: list[Owner] = []

    # From node to node.

    def begin(self, *, internal: bool = False) -> tuple[Scheduler, list[Entry]]:
        """Give the scheduler at which the request enters, and the entries that are to run there.

        There are none when the first node has ended without running, as with ``each`` over an empty list.
        """
        # A thread in `give_up` has the turn before this one, which then begins nothing, or after it: it finds `open`.
        with self._turn:
            visit = self._traversal.begin()
            step, entries = visit.step, [self._entry]
            if self._over:
                return step.scheduler, []
            self._graph.in_flight[self] = self.caller
            if step.runs_once:
                # The entry of the call is used at the first node, whose queue counts it on entry.
                self._entry.owner = _NodeOwner(self, visit)
                self.open[self._entry] = step.scheduler
            else:
                self._entry.owner = NOBODY  # the future, which refers to this request
                entries = self._entries(visit, internal=internal)
        if self._ended:
            self._go_on()
        return step.scheduler, entries

    def _entries(self, visit: Visit, *, internal: bool = True) -> list[Entry]:
        """Make the entries of a visit and put them into `open`; entries that cannot run end at once."""
        step, priority = visit.step, self._entry.priority
        terms: Any = {"deadline": self.deadline, "priority": priority, "quota": self._quota}
        if not step.levels:
            entries = [entry_at(step, visit.request, _NodeOwner(self, visit), **terms)]
        else:
            owner = _EachOwner(self, visit, **terms)
            entries = owner.elements.entries
            if not entries:
                error = None if internal else step.scheduler.refusal(visit.request)
                self._ended.append((visit, partial(owner.outcome, error, True)))
        # Another thread may end the request meanwhile, and cancels all entries in `open`. If an entry is in
        # its queue by then, it is taken out; if it has yet to get there, `let_in` finds it done and leaves it.
        self.open.update(dict.fromkeys(entries, step.scheduler))
        for entry in entries:
            entry.entered = self._entry.entered
            if entry.error is not None:
                # The owner refers to its entries: the entry lets go of it, so that no cycle is left.
                its_owner, entry.owner = entry.owner, NOBODY
                its_owner.finished(entry)
        return [entry for entry in entries if entry.state != DONE]

    def _go_on(self) -> None:
        """Advance the traversal by all visits that have ended, one after the other, and start the nodes after them.

        A thread that finds the turn taken leaves that to the thread that has it: it adds an end first and looks at the
        turn then; the other thread releases the turn first and looks for ends then. So no end is left behind.
        """
        step = self._traversal.legs[0].route.start
        while self._ended and not self._turn.locked():
            started: list[tuple[Step, list[Entry]]] = []
            try:
                with self._turn:
                    while self._ended:
                        self._advance(*self._ended[0], started)
                        self._ended.popleft()
                for step, entries in started:
                    if not self.give(step.scheduler, entries):
                        step.scheduler.let_in(*entries, internal=True)
            except BaseException as raised:  # noqa: BLE001 - the request must get an outcome
                self.end(unable(step, raised))
        for owner in drained(self._to_notify.pop):
            deliver(owner, self._entry)
            self._graph.ended(self)

    def _advance(
        self,
        visit: Visit,
        outcome: Callable[[bool], BaseException | None],
        started: list[tuple[Step, list[Entry]]],
    ) -> None:
        """Find the visits that start after one has ended; an error here ends this request alone."""
        step = visit.step
        if step.name in visit.leg.ends:  # told twice, after an exception from outside
            return
        try:
            error = outcome(self._over)
            if self._over:
                return
            if error is None:
                following = self._traversal.advance(visit)
                if isinstance(following, Failure):
                    count(following, self._traversal.request)
                    error = following.error
                elif self._traversal.sinks_left:
                    started += [(one.step, self._entries(one)) for one in following]
                    return
            self._end(error)
        except BaseException as raised:  # noqa: BLE001 - the request must get an outcome
            failure = unable(step, raised)
            step.scheduler.count_late(failure)
            self._end(failure)

    def _taken(self, entry: Entry, over: bool) -> BaseException | None:
        """Take the entry of a visit that has ended out of `open`, and give its error. Under the turn."""
        if over:
            return None
        # `give_up` needs the turn as well. It comes before this and finds the entry in `open`, or after all of
        # `_advance` and finds there the entries that follow.
        self.open.pop(entry, None)
        entry.give_back()
        return entry.take_error()

    # The outcome.

    def end(self, error: BaseException) -> None:
        """End the request with an error, unless it has its outcome already."""
        with self._turn:
            self._end(error)
        self._go_on()

    def _end(self, error: BaseException | None) -> None:
        """Decide the outcome, unless it is decided. Under the turn."""
        if self._over:
            return
        if error is None:
            error = self._finish()
        self._abandoned = is_abandoned(error)
        self._over = True  # only now: what raises above ends the request too, see `_advance`
        try:
            if self.open and self._cancel_open(frees=isinstance(error, FREES_CALLER)):
                error.abandoned = self._abandoned = True  # type: ignore[union-attr]
        finally:
            # Only now: where the entry of the call was still open, it has got the error of a cancelled one.
            self._entry.error = error
            self._leave(self._owner, give_back=error is not None and not self._abandoned)

    def _still_open(self) -> list[tuple[Entry, Scheduler]]:
        """Copy `open`, from which other threads remove entries meanwhile.

        ``list(self.open)`` is one step of the interpreter; tuples of ``items()`` may start the garbage collector.
        """
        found = [(entry, self.open.get(entry)) for entry in list(self.open)]
        return [(entry, scheduler) for entry, scheduler in found if scheduler is not None]

    def _cancel_open(self, *, frees: bool = False) -> bool:
        """Cancel all entries that wait; where this ``frees`` the caller, tell whether a backend runs on another one."""
        together: dict[Scheduler, list[Entry]] = {}
        for entry, scheduler in self._still_open():
            together.setdefault(scheduler, []).append(entry)
        for scheduler, entries in together.items():
            scheduler.cancel_together(entries)
        left = self._still_open() if frees else ()  # an entry that is lent can be taken back
        return any(s.abandon(one) if one.lent else one.state == RUNNING for one, s in left)

    def _finish(self) -> BaseException | None:
        """Put the results of the sinks into the caller's dict; give the error if one is missing."""
        try:
            failure = self._traversal.finish()
            if failure is not None:
                count(failure, self._traversal.request)
                return failure.error
            put_back(self._entry.request, self._entry.data)
        except Exception as raised:  # noqa: BLE001 - the dict is the user's, and may raise anything
            return refuses_change(raised)
        return None

    def _leave(self, owner: Owner, *, give_back: bool) -> None:
        """Drop all references, and queue ``owner``, which is notified after the turn. Under the turn."""
        try:
            if give_back:
                with suppress(BaseException):  # the dict may raise
                    put_back(self._entry.request, self._entry.data)
                    self._entry.request.pop("result", None)
            self.open = {}
            self._traversal.forget()
        finally:
            self._owner = NOBODY
            self._to_notify.append(owner)

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
        """Give the nodes at which the request is, and those that it has yet to visit."""
        if self._over:
            return []
        found = [scheduler.place(entry) for entry, scheduler in self._still_open()]
        return found + [step.scheduler.place(None) for step in self._traversal.unvisited()]

    def cancel(self) -> bool:
        """Withdraw the request while it waits; False when a backend runs on it, or it is done."""
        if not self._turn.acquire(blocking=False):
            return False  # another thread is taking the request from one node to the next
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
        """Cancel all entries that wait; give whether a backend still runs on another entry.

        Once this has returned, no node begins on the request any more.
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

    def begin(self, *, internal: bool = False) -> tuple[Scheduler, Sequence[Entry]]:
        """Give the scheduler at which the request enters, and its entries."""

    def held_here(self) -> bool:
        """Tell whether the calling thread holds an instance that the request needs."""

    def give_up(self) -> bool:
        """Cancel all its entries that wait; give whether a backend still runs on another entry."""


def start(
    requests: Sequence[Begun],
    *,
    waits_for_room: bool = False,
    internal: bool = False,
    waits: bool = False,
) -> None:
    """Let requests enter; those that enter at the same node arrive there together.

    Args:
        requests: All requests of one call.
        waits_for_room: Whether the calling thread waits while the queue is full.
        internal: Whether they come from the front of this pipeline: closing does not refuse them then.
        waits: Whether the calling thread is the event loop in which a coroutine waits for them.
    """
    stuck = (lambda: any(one.held_here() for one in requests)) if waits_for_room else None
    together: dict[Scheduler, list[Entry]] = {}
    try:
        for one in requests:
            scheduler, entries = one.begin(internal=internal)
            together.setdefault(scheduler, []).extend(entries)
        for scheduler, entries in together.items():
            scheduler.let_in(*entries, waits_for_room=stuck, internal=internal, waits=waits)
    except BaseException:
        for one in requests:
            one.give_up()
        raise


class _NodeOwner:
    """The owner of the entry of a visit that runs once."""

    __slots__ = ("request", "visit")

    def __init__(self, request: GraphRequest, visit: Visit) -> None:
        self.request = request
        self.visit = visit

    def finished(self, entry: Entry) -> None:
        """Let the request go on."""
        request = self.request
        request._ended.append((self.visit, partial(request._taken, entry)))
        request._go_on()


class _EachOwner:
    """The owner of the entries of a visit with ``each``."""

    __slots__ = ("elements", "left", "request", "visit")

    def __init__(self, request: GraphRequest, visit: Visit, **terms: Any) -> None:
        self.request = request
        self.visit = visit
        self.elements = elements = EntriesOfOne(visit.step, visit.request, self, **terms)
        # The thread that pops 0 ends the last element.
        self.left = list(range(len(elements.entries)))

    def finished(self, entry: Entry) -> None:
        """Count one element; the last one, and one that fails the request, end the visit."""
        entry.give_back()
        last = self.left.pop() == 0
        self.request.open.pop(entry, None)
        error = entry.error
        # A cancelled element does not end the visit: the failed element for which it was cancelled does so,
        # in its own thread, now or in a moment.
        if (
            error is None
            or isinstance(error, CancelledError)
            or (self.elements.may_fail_alone and not isinstance(error, OverloadedError))
        ):
            if not last:
                return
            error = None
        self.request._ended.append((self.visit, partial(self.outcome, error, last)))
        self.request._go_on()

    def outcome(self, error: BaseException | None, last: bool, over: bool) -> BaseException | None:
        """Give the error of the visit, else put the results together, unless the request is over. Under the turn."""
        try:
            return error if over or error is not None else self.elements.gather()
        finally:
            if last:
                self.elements.forget()
