"""The way of one request through the nodes, a pure state machine: what starts next, and the end.

The state machine has no thread, no lock and no node that runs. A driver runs the visits that it
gives, in any order or at the same time, and tells it the end of each visit, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace._run.steps.tracebacks import with_cause
from headrace._texts import error_text
from headrace.errors import ContractError, HeadraceError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._run.graph.route import Ends, Route, Step
    from headrace.keys import Request


class Visit(NamedTuple):
    """A node that may run now.

    Attributes:
        step: The node.
        request: The dict on which the node runs.
    """

    step: Step
    request: Request


new_visit: Callable[..., Visit] = tuple.__new__
"""As the class makes one, without a call of Python."""


class Failure(NamedTuple):
    """Why a request fails between two nodes.

    Attributes:
        step: The node that answers for the failure.
        error: The error of the request.
        has_run: Whether that node has run, without an error of its own. If not, it never starts.
    """

    step: Step
    error: HeadraceError
    has_run: bool


class Traversal:
    """The way of one request through the nodes.

    Attributes:
        request: The caller's dict.
        sinks_left: How many sinks have not ended. After the last one the driver calls `finish`.
    """

    def __init__(self, request: Request) -> None:
        self.request = request

    def begin(self, route: Route, request: Request) -> Visit:
        """Return the first visit of a route. What is left of an earlier one is dropped.

        Args:
            route: The nodes that take part.
            request: The dict on which the first of them runs.
        """
        self.sinks_left = len(route.sinks)
        self._left = route.joins.copy()  # for how many predecessors each join still waits
        self._ends: Ends = {}
        self._sinks: list[tuple[Step, Request]] = []
        request.pop("result", None)
        return Visit(route.start, request)

    def advance(self, visit: Visit) -> list[Visit] | Failure:
        """Note that a visit has ended well; give the visits that may start now, or the failure."""
        step, request = visit
        ends, left = self._ends, self._left
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
                    entry = following.make(ends)
                except HeadraceError as error:
                    return Failure(following, error, has_run=False)
                started.append(new_visit(Visit, (following, entry)))
        return started

    def finish(self) -> Failure | None:
        """Write the results of the sinks into the caller's dict; give a failure if one has none."""
        sinks = sorted(self._sinks, key=lambda sink: sink[0].index)
        step = finish(sinks, self.request)
        if step is None:
            return None
        return Failure(step, no_result(step), has_run=True)

    def remove(self) -> None:
        """Drop the dicts of the nodes, which a future that the user keeps would keep."""
        self._ends, self._sinks = {}, []


def unable(step: Step, error: BaseException) -> ContractError:
    """Make the error of a request whose dict or value raises as it goes on from a node."""
    message = f"the request cannot go on: {error_text(error)}"
    return with_cause(ContractError(message, node=step.name), error)


def no_result(step: Step) -> NoResultError:
    """Make the error of a request of which a last node gave no ``result``."""
    return NoResultError(f"node {step.name!r} gave no 'result'", node=step.name)


def finish(sinks: Sequence[tuple[Step, Request]], request: Request) -> Step | None:
    """Put the ``result`` of the sinks into the caller's dict, of a single sink all keys.

    The driver has to put the caller's ``data`` back afterwards.

    Returns:
        A sink without a ``result``, which fails the request. None when there is none.
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
