"""Words of the graph: the front that walks a request through it, and the end of a walk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace._backend import Backend
from headrace.errors import ClosedError, ContractError, HeadraceError
from headrace.keys import REPOST
from headrace.words._wiring import Wiring

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["DagDispatcher", "Repost"]


class Walker(Protocol):
    """Walks one request through the graph of the pipeline; raises its error."""

    def __call__(self, request: Request) -> None: ...


class DagDispatcher(Backend):
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
    """

    reads = ("data", "node_name")
    _reentrant = True
    walk: Walker | None = None

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Walk the requests."""
        if self.walk is None:
            raise ContractError("DagDispatcher was called before the graph was built")
        outcomes: list[Exception | None] = []
        for request in batch:
            try:
                self.walk(request)
            except ClosedError as error:  # the pipeline of both
                outcomes.append(error._passing())
            except HeadraceError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes if any(outcomes) else None


class Repost(Wiring):
    """End the walk here and go on at another node: ``S[Check,(or)Repost[repair]]``.

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
    """

    writes = ("result", "repost")
    word = "repost"
    takes = 1
    words = 1
    _reentrant = True
    rerun = True
    target: str = ""

    def forward(self, batch: list[Request]) -> None:
        """Mark the requests."""
        for request in batch:
            request["result"] = request["data"]
            request[REPOST] = self.target
