"""The way of one request through the nodes, as a pure state machine: what starts next, how it ends.

It has no thread, no lock and no scheduler. A driver runs the visits that it gives, in any order or at
the same time, and tells it of the end of each, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace._graph.handover import finish, input_of, passes_by, repost_of
from headrace.errors import HeadraceError, LimitError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace._graph.handover import Ends
    from headrace._graph.route import Route, Step
    from headrace.keys import Request

__all__ = ["MOST_REPOSTS", "Failure", "Leg", "Traversal", "Visit"]

MOST_REPOSTS = 100
"""How often one request may go on at another node."""


class Leg:
    """A part of a traversal: from a node at which it enters to its sinks, or to a `Repost`.

    Attributes:
        route: The nodes that take part.
        ends: How those that have ended did so.
        left: Per node, for how many predecessors it waits.
    """

    __slots__ = ("ends", "left", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.ends: Ends = {}
        self.left = route.waits_for.copy()


class Visit(NamedTuple):
    """A node that may run now.

    Attributes:
        leg: The part of the traversal that it belongs to.
        step: The node.
        request: The dict that it runs on.
    """

    leg: Leg
    step: Step
    request: Request


class Failure(NamedTuple):
    """Why a request fails between two nodes.

    Attributes:
        step: The node that answers for it.
        error: The error of the request.
        has_run: Whether that node has run, and ended well by itself; else it never starts.
    """

    step: Step
    error: HeadraceError
    has_run: bool


class Traversal:
    """The way of one request through the nodes.

    Attributes:
        request: The caller's dict.
        legs: Its parts, one more with every `Repost`.
        is_done: Whether all sinks have been reached: `finish` is to follow.
    """

    def __init__(self, route: Route, request: Request, route_from: Callable[[str], Route]) -> None:
        """Stand before the first node.

        Args:
            route: The nodes that take part.
            request: The caller's dict.
            route_from: Gives the route from a node that a `Repost` names.
        """
        self.request = request
        self.legs = [Leg(route)]
        self.is_done = False
        self._route_from = route_from
        self._reposts = 0
        self._sinks: list[tuple[Step, Request]] = []
        self._sinks_left = len(route.sinks)

    def begin(self) -> Visit:
        """Give the first visit."""
        self.request.pop("result", None)
        (leg,) = self.legs
        return _visit(leg, leg.route.entry, self.request)

    def advance(self, visit: Visit) -> list[Visit] | Failure:
        """Take note that a visit has ended well; give what may start now, or why the request fails."""
        leg, step, request = visit
        if step.links.reposts:
            try:
                target = repost_of(step, request)
            except HeadraceError as error:
                return Failure(step, error, has_run=True)
            if target is not None:
                return self._go_on_at(target, visit)
        ends, left, by_name = leg.ends, leg.left, leg.route.by_name
        ends[step.name] = request
        started: list[Visit] = []
        ended = [step]  # also the nodes with `or` that are passed by
        for step in ended:
            if not step.after:
                self._sinks.append((step, ends[step.name]))
                self._sinks_left -= 1
            for name in step.after:
                left[name] -= 1
                if left[name]:
                    continue
                following = by_name[name]
                if following.links.otherwise and passes_by(following, ends):
                    before = ends[step.name]
                    ends[name] = dict(before) if step.copied else before
                    ended.append(following)
                    continue
                try:
                    made = input_of(following, by_name, ends)
                except HeadraceError as error:
                    return Failure(following, error, has_run=False)
                started.append(_visit(leg, following, made))
        self.is_done = not self._sinks_left
        return started

    def _go_on_at(self, target: str, visit: Visit) -> list[Visit] | Failure:
        """Begin another leg; what would come after the node in this one is skipped."""
        left, step, request = visit
        self._reposts += 1
        if self._reposts > MOST_REPOSTS:
            return Failure(step, _too_often(step, target), has_run=True)
        leg = Leg(self._route_from(target))
        skipped = sum(sink.name in step.skipped for sink in left.route.sinks)
        self._sinks_left += len(leg.route.sinks) - skipped
        self.legs.append(leg)
        return [_visit(leg, leg.route.entry, request)]

    def unvisited(self) -> Iterator[Step]:
        """Give the nodes that have not ended; another thread may advance meanwhile."""
        for leg in list(self.legs):
            for step in leg.route.steps:
                if step.name not in leg.ends:
                    yield step

    def finish(self) -> Failure | None:
        """Write what the sinks have into the caller's dict, all but ``data``; or tell what is missing."""
        sinks = self._sinks
        if len(sinks) > 1:
            sinks = sorted(sinks, key=lambda sink: sink[0].index)
        step = finish(sinks, self.request)
        if step is None:
            return None
        error = NoResultError(f"node {step.name!r} gave no 'result'", node=step.name)
        return Failure(step, error, has_run=True)

    def forget(self) -> None:
        """Let go of what the nodes wrote: a future that is kept would keep all of it."""
        for leg in self.legs:
            leg.ends.clear()
        self._sinks.clear()


def _visit(leg: Leg, step: Step, request: Request) -> Visit:
    if step.links.reposts:
        request.pop("repost", None)
    return Visit(leg, step, request)


def _too_often(step: Step, target: str) -> LimitError:
    return LimitError(
        f"the request was reposted more than {MOST_REPOSTS} times, last from node "
        f"{step.name!r} to {target!r}",
        limit=MOST_REPOSTS,
        node=step.name,
        hint="See why it never comes to an end.",
    )
