"""The way of one request through the nodes, as a pure state machine: what starts next, how the request ends.

The state machine has no thread, no lock and no scheduler. A driver runs the visits that it gives, in any
order or at the same time, and tells it the end of each visit, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace._portable import caused, error_text, shown
from headrace.errors import ContractError, HeadraceError, LimitError, NoResultError
from headrace.keys import REPOST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._graph.route import Ends, Route, Step
    from headrace.keys import Request

MOST_REPOSTS = 100
"""How often one request may be reposted, where `Repost` does not say it."""


class Leg:
    """A part of a traversal: from the node where it begins to the sinks, or to a `Repost`.

    Attributes:
        route: The nodes that take part.
        ends: The dicts of the nodes that have ended.
        left: For each node with several predecessors, for how many of them it still waits.
    """

    __slots__ = ("ends", "left", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.ends: Ends = {}
        self.left = route.joins.copy()


class Visit(NamedTuple):
    """A node that may run now.

    Attributes:
        leg: The part of the traversal to which the visit belongs.
        step: The node.
        request: The dict on which the node runs.
    """

    leg: Leg
    step: Step
    request: Request


new_visit: Callable[..., Visit] = tuple.__new__
"""As the class makes one, without a call of Python."""


class Failure(NamedTuple):
    """Why a request fails between two nodes.

    Attributes:
        step: The node that answers for the failure.
        error: The error of the request.
        has_run: Whether that node has run, without an error of its own; if not, it never starts.
    """

    step: Step
    error: HeadraceError
    has_run: bool


class Traversal:
    """The way of one request through the nodes.

    Attributes:
        request: The caller's dict.
        legs: The parts of the traversal, one more with every `Repost`.
        sinks_left: How many sinks have not ended; after the last one the driver calls `finish`.
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
        self.sinks_left = len(route.sinks)
        self._route_from = route_from
        self._sinks: list[tuple[Step, Request]] = []

    def begin(self) -> Visit:
        """Return the first visit."""
        self.request.pop("result", None)
        (leg,) = self.legs
        return _visit(leg, leg.route.start, self.request)

    def advance(self, visit: Visit) -> list[Visit] | Failure:
        """Note that a visit has ended without an error; give the visits that may start now, or the failure."""
        leg, step, request = visit
        if step.links.reposts:
            reposted = self._reposted(visit)
            if reposted is not None:
                return reposted
        ends, left = leg.ends, leg.left
        ends[step.name] = request
        started: list[Visit] = []
        ended = [step]  # and the nodes with `or` that the request passes by
        for step in ended:
            request = ends[step.name]
            if not step.next:
                self._sinks.append((step, request))
                self.sinks_left -= 1
            for following in step.next:
                name = following.name
                if name in left:
                    left[name] -= 1
                    if left[name]:
                        continue
                if following.links.otherwise and "result" in request:
                    ends[name] = dict(request) if following.takes_copy else request
                    ended.append(following)
                    continue
                try:
                    made = following.make(ends)
                except HeadraceError as error:
                    return Failure(following, error, has_run=False)
                started.append(_visit(leg, following, made))
        return started

    def _reposted(self, visit: Visit) -> list[Visit] | Failure | None:
        """Begin another leg if a `Repost` has ended this one, whose remaining nodes are skipped."""
        left, step, request = visit
        try:
            target = repost_of(step, request)
        except HeadraceError as error:
            return Failure(step, error, has_run=True)
        if target is None:
            return None
        most = step.links.limits.get(target, MOST_REPOSTS)
        if len(self.legs) > most:
            last = f"from node {step.name!r} to {target!r}"
            what = f"the request was reposted more than {most} times, last {last}"
            hint = "See why it never comes to an end, or raise the option limit of Repost."
            endless = LimitError(what, limit=most, node=step.name, hint=hint)
            return Failure(step, endless, has_run=True)
        leg = Leg(self._route_from(target))
        skipped = sum(sink.name in step.skipped for sink in left.route.sinks)
        self.sinks_left += len(leg.route.sinks) - skipped
        self.legs.append(leg)
        return [_visit(leg, leg.route.start, request)]

    def unvisited(self) -> list[Step]:
        """Return the nodes that have not ended; another thread may call `advance` meanwhile."""
        legs = list(self.legs)
        return [step for leg in legs for step in leg.route.steps if step.name not in leg.ends]

    def finish(self) -> Failure | None:
        """Write the results of the sinks into the caller's dict; give a failure if one has none."""
        sinks = sorted(self._sinks, key=lambda sink: sink[0].index)
        step = finish(sinks, self.request)
        if step is None:
            return None
        return Failure(step, no_result(step), has_run=True)

    def forget(self) -> None:
        """Drop the dicts of the nodes: otherwise a future that the user keeps would keep all of them."""
        for leg in self.legs:
            leg.ends.clear()
        self._sinks.clear()


def _visit(leg: Leg, step: Step, request: Request) -> Visit:
    if step.links.reposts:
        request.pop(REPOST, None)
    return new_visit(Visit, (leg, step, request))


def repost_of(step: Step, request: Request) -> str | None:
    """Take the target of a `Repost` out of a dict; None when no `Repost` has ended the leg here.

    Raises:
        ContractError: The key names a node that is the target of no `Repost` in this one.
        NoResultError: There is no ``result`` to go on with.
    """
    target = request.pop(REPOST, None)
    if target is None:
        return None
    if type(target) is not str or target not in step.links.reposts:
        what = f"the key {REPOST!r} holds {shown(target)}: it is written by Repost[node] only"
        raise ContractError(what, node=step.name)
    if "result" not in request:
        what = f"node {step.name!r} gave no 'result' to repost to {target!r}"
        raise NoResultError(what, node=step.name)
    request["data"] = request.pop("result")
    return str(target)


def unable(step: Step, error: BaseException) -> ContractError:
    """Make the error of a request that cannot go on from a node, since its dict or a value raises."""
    what = f"the request cannot go on: {error_text(error)}"
    return caused(ContractError(what, node=step.name), error)


def no_result(step: Step) -> NoResultError:
    """Make the error of a request of which a last node gave no ``result``."""
    return NoResultError(f"node {step.name!r} gave no 'result'", node=step.name)


def finish(sinks: Sequence[tuple[Step, Request]], request: Request) -> Step | None:
    """Put the ``result`` of the sinks into the caller's dict, and of a single sink all other keys as well.

    The driver has to put the caller's ``data`` back afterwards.

    Returns:
        A sink without a ``result``, which fails the request; None when there is none.
    """
    for step, ended in sinks:
        if "result" not in ended:
            return step
    if len(sinks) == 1:
        ((_, ended),) = sinks
        if ended is not request:
            request.update(ended)
    else:
        request["result"] = {step.name: ended["result"] for step, ended in sinks}
    return None
