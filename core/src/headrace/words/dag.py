"""Words of the graph: the front that passes requests on to it, and a request that goes on elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._build.word import At, Building, Word
from headrace._problem import nearest
from headrace.errors import ClosedError, ContractError, HeadraceError
from headrace.keys import REPOST, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._plan.element import Element
    from headrace._plan.word import Use

__all__ = ["DagDispatcher", "Repost"]


class DagDispatcher(Word):
    """Walk each request through the nodes of the pipeline, as ``next`` and ``map`` link them.

    Stands in ``entrypoint``, for example ``S[Check,DagDispatcher]``; by itself it is the default.

    Reads:
        node_name: The node at which the request enters; only needed with several roots.
        data: What that node reads.
    Writes:
        result: What the last node wrote; a dict by name where there are several last nodes.
    Batch:
        1 or more; requests walk one after the other.

    Raises:
        InputError: The request names no node where there are several roots, or an unknown one.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            entrypoint = "S[Upper,DagDispatcher]"

            [reverse]
            backend = "Reverse"
            next = "short"

            [short]
            backend = "Short"
    """

    reads = ("data", "node_name")
    _reentrant = True
    _walks = True
    _reaches_out = True
    pass_on: Callable[[Request], None] | None = None

    @classmethod
    def _check(cls, use: Use) -> bool:
        """Check that no node walks through the graph that it stands in."""
        node = use.planning.known_node
        if node is None or use.scope.lenient:
            return True
        message = f"DagDispatcher walks through all nodes, so node {node!r} would call itself"
        hint = "Write it in entrypoint; from inside a node, Forward[node.x] calls another one."
        use.add("circle", message, hint=hint)
        return False

    def _prepare(self, building: Building, element: Element, at: At) -> None:
        """Ask for the graph, which is there once all nodes are built."""
        building.commons.dispatchers.append(self)

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Walk the requests."""
        if self.pass_on is None:
            raise ContractError("DagDispatcher was called before the graph was built")
        outcomes: list[Exception | None] = []
        for request in batch:
            try:
                self.pass_on(request)
            except ClosedError as error:  # the pipeline of both
                outcomes.append(error._passing())
            except HeadraceError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes if any(outcomes) else None


class Repost(Word):
    """End the way of a request here and go on at another node: ``S[Check,(or)Repost[repair]]``.

    The item leaves the expression: the elements of an ``S`` or ``Loop`` around it pass it by, and
    once its batch has ended it enters the node it was reposted to, as if it had been sent there:
    its own dict, with ``result`` moved to ``data``. What follows the node that it left does not run,
    nor does a ``map`` of the node it enters. Deadline, priority, cancellation, ``node_name`` and the
    bound of the node at which the request entered the pipeline stay as they are. Where several
    branches end apart, ``result`` has the nodes at which they really ended.

    It cannot stand in a branch that joins again, in a node with ``each``, in the middle of a
    ``CatSplit``, or in ``entrypoint``.

    Reads:
        data: Anything.
    Writes:
        result: The same object as ``data``.
        repost: The node to go on at; taken out when the node has ended.
    Batch:
        1 or more.

    Raises:
        LimitError: The request was reposted more than 100 times.
    Source:
        own
    Example:
        ``{"data": "abcd"}`` gives ``"dcba"``::

            [check]
            backend = "S[Short,(or)Repost[shorten]]"
            next = "upper"

            [upper]
            backend = "Upper"

            [shorten]
            backend = "Reverse"
    """

    writes = ("result", "repost")
    takes = 1
    rerun = True
    _names = 1
    _reaches_out = True
    _reentrant = True
    target: str = ""

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Take note of the node to go on at, and of the place for what the graph says to it."""
        (child,) = use.bracket.children
        name = use.name(child)
        if name is None:
            return None
        nodes = list(use.planning.shape.nodes)
        if name not in nodes and not use.scope.lenient:
            use.add(
                "graph",
                f"no node is called {name!r}",
                child,
                suggestion=nearest(name.removeprefix("node."), nodes),
                hint=f"There are: {', '.join(nodes)}.",
            )
            return None
        use.element.target = (name, use.scope.layer.place(use.element.call))
        return use.element

    def _prepare(self, building: Building, element: Element, at: At) -> None:
        """Take the node to go on at."""
        self.target = element.target[0] if element.target is not None else ""

    def forward(self, batch: list[Request]) -> None:
        """Mark the requests."""
        for request in batch:
            request["result"] = request["data"]
            request[REPOST] = self.target
