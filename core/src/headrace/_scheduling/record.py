"""What a probe is told of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.keys import Request

__all__ = ["BatchRecord", "BatchRequest"]


class BatchRequest(NamedTuple):
    """One request of a batch.

    Attributes:
        request: The request: the dict that ``request_done`` is given as well; read it, do not keep it.
        arrival: When it arrived at the node, in seconds.
        cut: When it was put into the batch; the arrival where its caller ran it itself.
        weight: Its ``request_size``.
    """

    request: Request
    arrival: float
    cut: float
    weight: int


class BatchRecord(NamedTuple):
    """A batch that has run.

    Attributes:
        node: The node.
        instance: Index of the instance, from 0.
        thread: Identifier of the thread that ran it, as `threading.get_ident`.
        requests: Its requests, in order; copies that ``pad`` added are none.
        started, ended: Before and after its run, in seconds on the clock of ``time.monotonic()``.
        weight: The sum of their weights.
        errors: One exception or None per request, in order.
    """

    node: str
    instance: int
    thread: int
    requests: Sequence[BatchRequest]
    started: float
    ended: float
    weight: int
    errors: Sequence[BaseException | None]
