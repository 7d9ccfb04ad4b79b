"""A request that a graph leads from node to node, in steps; `walk` has the callers that wait.

What ended together enters the next node together, and nobody sees a request half done.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from headrace._run.graph.traversal import Failure, Traversal, unable
from headrace._run.requests.entry import (
    DONE,
    NEW,
    OUTSIDE,
    RUNNING,
    Entry,
    put_back,
    refuses_change,
)
from headrace._run.requests.node_request import FREES_CALLER, NodeRequest, waiting_for
from headrace._run.requests.refusals import withdrawn
from headrace._run.requests.room import Ticket
from headrace._run.steps.box import post
from headrace._run.steps.tracebacks import is_abandoned, set_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._run.graph.route import Graph, Route
    from headrace._run.graph.traversal import Visit
    from headrace._run.node import Node
    from headrace.keys import Request


class GraphRequest:
    """One request on its way through the graph. All but the making is steps.

    It stands as the ``node`` of the entry of the call, and offers what a node offers for its
    entries.

    Attributes:
        entry: The entry of the call.
        first: The node at which it enters.
        open: The entries at nodes that have no outcome.
    """

    def __init__(self, graph: Graph, route: Route, entry: Entry) -> None:
        self._graph, self.entry, self._internal = graph, entry, False
        self._traversal = Traversal(entry.request)
        self._ticket = Ticket(route.first, entered=False, walks=True)
        self._route, self.first = route, route.first
        self.box, self.name, self.clock = graph.box, route.start.name, route.first.clock
        self.open: dict[Entry, None] = {}
        entry.node = self

    # From node to node.

    def start(self) -> None:
        """Let the request enter; its first node has taken it out of its inbox."""
        if self.entry.state == DONE:
            return
        self._graph.open[self] = None
        self._start_visits([self._traversal.begin(self._route, self.entry.request)])
        if self.entry.state != DONE:
            self._note_entered()

    def _note_entered(self) -> None:
        """Note whether the entries of the first node are in its queue, or wait for room."""
        entry = self.entry
        outside = any(entry_here.state == OUTSIDE for entry_here in self.open)
        entry.state = OUTSIDE if outside else RUNNING
        if outside:
            for entry_here in self.open:
                entry_here.room = self._note_entered
        elif entry.room is not None:
            entry.room()

    def _start_visits(self, visits: Sequence[Visit]) -> None:
        left = list(visits)
        while left and self.entry.state != DONE:
            visit = left.pop(0)
            try:
                left += self._visit(visit)
            except BaseException as raised:  # the request must get an outcome
                self.end(unable(visit.step, raised))

    def _visit(self, visit: Visit) -> list[Visit]:
        """Let the entries of a visit into the queue of its node; without any, give what follows."""
        node, call = visit.step.node, self.entry
        internal, self._internal = self._internal, True
        at_node = NodeRequest(visit.step.node, visit.step.each, visit.request, call, self._ticket)
        entries = at_node.entries
        then = partial(self._end_entry, visit, at_node)
        for entry in entries:
            entry.then, entry.waiter, entry.internal = then, call.waiter, internal
            self.open[entry] = None
        alive = [entry for entry in entries if entry.state != DONE]
        if not alive and not internal and node.refusing is not None:
            error = node.refusing._passing(passes=False)
            error.begun = False
            return self._fail_between(Failure(visit.step, error, has_run=False))
        if not entries:
            return self._advance(visit, at_node.gather())
        for entry in [each for each in entries if each.state == DONE]:
            entry.then = None
            then(entry)
        if self.entry.state != DONE:
            node.start(alive)
            node.enter(alive)
        return []

    def _end_entry(self, visit: Visit, at_node: NodeRequest, entry: Entry) -> None:
        """Count one entry of a visit; the last, or one that fails the request, ends it."""
        if self.open.pop(entry, self) is self or self.entry.state == DONE:
            return
        try:
            self._start_visits(self._after(visit, at_node, entry))
        except BaseException as raised:  # of the user's dict; the request must get an outcome
            self.end(unable(visit.step, raised))

    def _after(self, visit: Visit, at_node: NodeRequest, entry: Entry) -> list[Visit]:
        """Give the visits that may start now that one entry of a visit has its outcome."""
        if entry.held is not None and entry.held.goes_on_at is not None:
            route = self._graph.route_from(entry.held.goes_on_at)
            return [self._traversal.begin(route, visit.request)]
        entry.give_back()
        error = entry.error
        if at_node.ends_with(entry):
            at_node.forget()
            return self._advance(visit, error)
        if any(other in self.open for other in at_node.entries):
            return []
        return self._advance(visit, at_node.gather())

    def _advance(self, visit: Visit, error: BaseException | None) -> list[Visit]:
        """Advance by a visit that has ended; give the visits that may start now."""
        failure: Failure | None = None
        try:
            if error is None:
                following = self._traversal.advance(visit)
                if isinstance(following, Failure):
                    failure = following
                elif self._traversal.sinks_left:
                    return following
                else:
                    failure = self._finish(visit)
        except BaseException as raised:
            failure = Failure(visit.step, unable(visit.step, raised), has_run=True)
        if failure is not None:
            return self._fail_between(failure)
        self.end(error)
        return []

    def _finish(self, visit: Visit) -> Failure | None:
        """Put the results of the sinks into the caller's dict; give a failure if one is missing."""
        try:
            return self._traversal.finish()
        except Exception as raised:
            return Failure(visit.step, refuses_change(raised), has_run=True)

    def _fail_between(self, failure: Failure) -> list[Visit]:
        """Count a failure between two nodes at the node that answers for it, tell of it, and end.

        Nothing follows: it gives no visits.
        """
        node = failure.step.node
        count = node.count_late if failure.has_run else node.count_refused
        count(self._traversal.request, failure.error)
        self.box.later(post, self.box, self.end, failure.error)
        return []

    # The outcome.

    def end(self, error: BaseException | None, *, frees: bool = False) -> bool:
        """Give the request its one outcome. Tell whether a backend goes on with it.

        Entries that wait are withdrawn. Where the error ``frees`` the caller, those that run are
        abandoned.
        """
        entry = self.entry
        if entry.state == DONE:
            return False
        if error is not None:
            frees |= isinstance(error, FREES_CALLER) or not isinstance(error, Exception)
        left, self.open = list(self.open), {}
        abandoned = False
        for open_entry in left:
            open_entry.then = None
            if (
                open_entry.state == DONE
            ):  # it has ended a moment ago, and a probe still reads its dict
                abandoned |= frees
            elif open_entry.node is not None and (open_entry.waits or frees):
                abandoned |= open_entry.node.fail(open_entry, withdrawn)
        if error is not None:
            set_abandoned(error, abandoned or is_abandoned(error))
        entry.error, entry.state = error, DONE
        if error is not None and not is_abandoned(error):
            with suppress(BaseException):  # of the user's dict
                put_back(entry.request, entry.data)
                entry.request.pop("result", None)
        self._traversal.remove()
        self._graph.open.pop(self, None)
        entry.node = self.first  # no cycle is left
        then, entry.then, entry.waiter = entry.then, None, None
        if entry.room is not None:
            entry.room()
        if then is not None:
            then(entry)
        self.box.look_if_quiet()
        return abandoned

    def fail(self, entry: Entry, failure: Callable[..., BaseException]) -> bool:
        """Fail the request wherever it is; tell whether a backend goes on. See `Node.fail`."""
        self._find()
        running = any(not inner.waits and not inner.lent for inner in self.open)
        return self.end(failure(self.first, running=running), frees=True)

    def _find(self) -> None:
        """Let the request enter if it lies in the inbox of its first node."""
        if self.entry.state == NEW:
            self.first.take_in()

    def fail_late(self, entry: Entry) -> None:
        """Fail the request, whose deadline has passed."""
        self._find()
        for inner in list(self.open):
            inner.node.fail_late(inner)

    def cancel(self, entry: Entry) -> bool:
        """Withdraw the request while it waits: all branches or none."""
        self._find()
        if not self.open or not all(inner.waits for inner in self.open):
            return False  # it has ended, or is about to
        entry.then = None
        self.end(withdrawn(self.first, running=False))
        return True

    def waiting_for(self, entry: Entry) -> Sequence[Entry]:
        """Return the entries that wait for an instance or room for the request; any thread."""
        return waiting_for([*self.open])

    def running(self, entry: Entry) -> bool:
        """Tell whether a backend runs on the request; in any thread."""
        return any(inner.state == RUNNING and not inner.waits for inner in [*self.open])

    def count_late(self, request: Request, error: BaseException) -> None:
        """Count as failed a request that failed after its last node."""
        self.first.count_late(request, error)


def send_all(requests: Sequence[GraphRequest]) -> None:
    """Put requests into the inboxes of their first nodes, which let them in; in any thread."""
    by_first: dict[Node, list[Entry]] = {}
    for request in requests:
        by_first.setdefault(request.first, []).append(request.entry)
    for first, entries in by_first.items():
        first.send(entries)
