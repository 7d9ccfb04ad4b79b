"""The way of one request through the nodes, as a pure state machine: what starts next, how it ends.

It has no thread, no lock and no scheduler. A driver runs the visits that it gives, in any order or at
the same time, and tells it of the end of each, one after the other. What goes from node to node is the
same dict, a shallow copy, or what a map makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace._graph.route import KEPT
from headrace._portable import error_text, shown
from headrace.errors import ContractError, HeadraceError, InputError, LimitError, NoResultError
from headrace.keys import REPOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace._graph.route import Route, Step
    from headrace.keys import Request

__all__ = [
    "MOST_REPOSTS",
    "Ends",
    "Failure",
    "Leg",
    "Traversal",
    "Visit",
    "finish",
    "mapped",
    "unable",
]

MOST_REPOSTS = 100
"""How often one request may go on at another node."""

Ends = dict[str, "Request"]
"""Per node of a route, its dict as it was at its end."""


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
        sinks_left: How many sinks have not been reached; after the last one `finish` is to follow.
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
            if not step.links.next:
                self._sinks.append((step, ends[step.name]))
                self.sinks_left -= 1
            for name in step.links.next:
                left[name] -= 1
                if left[name]:
                    continue
                following = by_name[name]
                before = ends[step.name]
                if following.links.otherwise and "result" in before:
                    ends[name] = dict(before) if following.takes_copy else before
                    ended.append(following)
                    continue
                try:
                    made = input_of(following, ends)
                except HeadraceError as error:
                    return Failure(following, error, has_run=False)
                started.append(_visit(leg, following, made))
        return started

    def _go_on_at(self, target: str, visit: Visit) -> list[Visit] | Failure:
        """Begin another leg; what would come after the node in this one is skipped."""
        left, step, request = visit
        if len(self.legs) > MOST_REPOSTS:
            error = LimitError(
                f"the request was reposted more than {MOST_REPOSTS} times, last from node "
                f"{step.name!r} to {target!r}",
                limit=MOST_REPOSTS,
                node=step.name,
                hint="See why it never comes to an end.",
            )
            return Failure(step, error, has_run=True)
        leg = Leg(self._route_from(target))
        skipped = sum(sink.name in step.skipped for sink in left.route.sinks)
        self.sinks_left += len(leg.route.sinks) - skipped
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
        request.pop(REPOST, None)
    return Visit(leg, step, request)


# What goes from node to node.


def input_of(step: Step, ends: Ends) -> Request:
    """Make the dict that a node runs on.

    Raises:
        NoResultError: A predecessor gave no result.
        InputError: A source that the map names is missing.
    """
    otherwise = step.links.otherwise
    for name in () if otherwise else step.before:
        if "result" not in ends[name]:
            raise NoResultError(f"node {name!r} gave no 'result' for node {step.name!r}", node=name)
    if step.source is None:
        return mapped(step, ends)
    request = dict(ends[step.source]) if step.takes_copy else ends[step.source]
    if not otherwise:
        request["data"] = request.pop("result")
    return request


def mapped(step: Step, ends: Ends) -> Request:
    """Make the dict that a map describes.

    Raises:
        InputError: A source is missing, or nothing brings ``data``.
    """
    request: Request = {}
    for name, source, target in step.pairs:
        ended = ends[name]
        if source in ended:
            request[target] = ended[source]
        elif source == "result" and step.links.otherwise:
            request[target] = ended["data"]
        else:
            raise InputError(
                f"node {name!r} ended without the key {source!r} that the map of node "
                f"{step.name!r} asks for",
                key=source,
                node=name,
            )
        if "context" in ended or "request_id" in ended:
            for key in KEPT:
                if key in ended and key not in request:
                    request[key] = ended[key]
    if "data" not in request:
        raise InputError(
            f"nothing on this way brings 'data' to node {step.name!r}",
            key="data",
            node=step.name,
        )
    return request


def repost_of(step: Step, request: Request) -> str | None:
    """Take out of a dict at which node its request is to go on, if a `Repost` ended its leg here.

    Raises:
        ContractError: The key names a node that no `Repost` of this one does.
        NoResultError: There is no ``result`` to go on with.
    """
    target = request.pop(REPOST, None)
    if target is None:
        return None
    if type(target) is not str or target not in step.links.reposts:
        raise ContractError(
            f"the key {REPOST!r} holds {shown(target)}: it is written by Repost[node] only",
            node=step.name,
        )
    if "result" not in request:
        raise NoResultError(
            f"node {step.name!r} gave no 'result' to repost to {target!r}", node=step.name
        )
    request["data"] = request.pop("result")
    return str(target)


def unable(step: Step, error: BaseException) -> ContractError:
    """Make the error of a request that cannot go on from a node, for its dict or a value raises."""
    failure = ContractError(f"the request cannot go on: {error_text(error)}", node=step.name)
    failure.__cause__ = error
    return failure


def finish(sinks: Sequence[tuple[Step, Request]], request: Request) -> Step | None:
    """Give the caller's dict what the sinks have: ``result`` and, from a single one, its keys.

    Its ``data`` is that of the sink, and is to be put back.

    Returns:
        A sink that gave no result, which fails the request; else None.
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
