"""Iterate: run a backend step by step on the requests in flight. Finished requests leave, waiting requests join."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

import headrace
from headrace import PENDING
from headrace.errors import LimitError, NoResultError
from headrace.words import Place, run_child, select

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.keys import Request

__all__ = ["Iterate"]


class Steps:
    """Counts the steps of one node and the requests in flight in them. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = self._weight = 0
        self._places: int | None = 0

    def count(self, weight: int, most: int | None) -> None:
        """Count a step of requests of this weight together, of at most ``most`` (None for unbounded)."""
        with self._lock:
            self._steps += 1
            self._weight += weight
            self._places = None if most is None or self._places is None else self._places + most

    def statistics(self) -> dict[str, float | None]:
        """Return how many steps were run, the mean weight in flight in a step, and this divided by ``max``.

        Without a step the mean is 0, without a ``max``, or without a step, the occupancy is None.
        """
        with self._lock:
            steps, weight, places = self._steps, self._weight, self._places
        in_flight = weight / steps if steps else 0.0
        occupancy = weight / places if places else None
        return {"steps": steps, "in_flight": in_flight, "occupancy": occupancy}


class Iterate(headrace.Backend):
    """Run X step by step on all requests in flight, until each has a key: ``Iterate(until=done)[X]``.

    Each step is a batch of its own: X runs once on the requests in flight, at most ``max``. A request with the key
    ``until`` after a step leaves at once with its ``result``. Any other ``result`` becomes the ``data`` of the next step.
    Waiting requests take the free places before the next step. Requests in flight stay, though their place in the batch
    may change. So long requests do not hold up short requests, and no place stays empty while a request waits.

    Iterate stands outermost in its node (``BackgroundThread`` may stand around it). Let X keep its notes on a request
    between two steps in keys of the request. A deadline, a cancellation and the limit take one request out between two
    steps and disturb no other. A request of greater priority takes the next free place.
    ``Pipeline.stats()["iterate"]`` has ``steps``, ``in_flight`` (mean weight in a step) and ``occupancy`` (this divided
    by ``max``) of each node.

    Reads:
        The inputs of X. A request's own key ``until`` is removed on entry.
    Writes:
        result: The output of X in the last step.
    Batch:
        The range of X.

    Raises:
        LimitError: The request ran ``limit`` steps and has no key ``until``.
        NoResultError: X wrote no ``result`` to go on with.
    Source:
        own. Iteration-level scheduling is Yu et al., Orca (OSDI 2022).

    Example:
        ``{"data": 3}`` gives ``384``::

            backend = "Iterate(until=large,limit=20)[DoubleBelow200]"
            max = 16
    """

    class Options(headrace.Options):
        """Options of Iterate.

        Attributes:
            until: The key whose presence after a step ends a request.
            limit: How many steps one request may run.
        """

        until: str = Field(min_length=1)
        limit: int = Field(4096, ge=1)

        @field_validator("until")
        @classmethod
        def _not_read(cls, until: str) -> str:
            if until == "data":
                raise ValueError("until: every step reads 'data', so it cannot end a request")
            return until

    takes = 1
    keeps = True
    place = Place(stands="outermost")
    reads = ()  # what the child needs, and no more

    @classmethod
    def lint(cls, options: Any, largest_batch: int) -> Iterable[str]:
        """Say where no two requests can ever share a step."""
        if largest_batch == 1:
            yield "max is 1: each step runs one request, so one that is in flight keeps all others waiting"

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over the child, and find what all instances of the node share."""
        (self._child,) = context.children
        self.context = context
        self._until, self._limit = options.until, options.limit
        self._counted: Steps = context.store.pipeline.get_or_create(
            ("iterate", context.node_name), Steps
        )
        self._most = min([m for m in (context.batch.max, self._child.max) if m], default=None)
        self._weight = 0

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Run one step; an item that goes on is PENDING, and in the queue again."""
        outcomes: list[Exception | None] = [None] * len(batch)
        self._weight = 0
        own = select(batch, range(len(batch)), self._begins, outcomes, fillers=False)
        self._counted.count(self._weight, self._most)
        places = [place for place in range(len(batch)) if outcomes[place] is None]
        run_child(self._child, batch, places, outcomes, pad=self.context.batch.pad)
        for place in select(batch, own, self._goes_on, outcomes):
            outcomes[place] = PENDING
            self.context.request.resume(self.context.request.keep(batch[place]))
        return outcomes

    def _begins(self, request: Request) -> bool:
        """Look at a request before a step. Accept all."""
        self._weight += request.get("request_size", 1)
        if self.context.request.kept(request) is None:  # its first step
            request.pop(self._until, None)
        return True

    def _goes_on(self, request: Request) -> bool:
        """Tell whether a request runs another step, and make it ready for that.

        Raises:
            NoResultError, LimitError: It cannot.
        """
        if self._until in request:
            return False
        if "result" not in request:
            text = f"the backend in Iterate wrote neither 'result' nor the key {self._until!r}"
            raise NoResultError(text, hint="The result of a step is the data of the next.")
        notes = self.context.request.keep(request).notes
        steps = notes[Iterate] = notes.get(Iterate, 0) + 1
        if steps >= self._limit:
            text = f"Iterate ran {self._limit} steps and the request has no key {self._until!r}"
            hint = "Raise its option limit, or see why the request is never done."
            raise LimitError(text, limit=self._limit, hint=hint)
        request["data"] = request.pop("result")
        return True
