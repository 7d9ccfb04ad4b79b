"""DagDispatcher: the front that walks a request through the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace._backend import Backend
from headrace.errors import ContractError, HeadraceError

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["DagDispatcher"]


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
            except HeadraceError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes if any(outcomes) else None
