"""Loop: run a backend again on the unfinished requests of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.errors import LimitError, NoResultError
from headrace.keys import DATA
from headrace.words import run_child, select

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Loop"]


class Again(headrace.Backend):
    """Base of the containers that run their child again for unfinished items.

    A subclass names the key written for it by backends inside, and tells whether an item is done.
    """

    takes = 1
    reads = ()  # what the child needs, and no more

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over the child."""
        (self._child,) = context.children
        self._limit, self._fills_up = options.limit, context.batch.pad
        self._key: str = options.until

    def _begins(self, request: Request) -> bool:
        """Remove the key from a new request. Accept all."""
        if self._key != DATA:  # which ends a loop after one run
            request.pop(self._key, None)
        return True

    def _is_done(self, request: Request) -> bool:
        """Tell whether an item that has run is done, and make one that is not done ready to run again."""
        return self._key in request

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Run the child until all items are done or have failed."""
        outcomes: list[Exception | None] = [None] * len(batch)
        left = select(batch, range(len(batch)), self._begins, outcomes)
        for _ in range(self._limit):
            run_child(self._child, batch, left, outcomes, pad=self._fills_up)
            left = select(batch, left, self._runs_again, outcomes)
            if not left:
                break
        for place in left:
            text = f"{type(self).__name__} ran {self._limit} times and is not done"
            hint = "Raise its option limit, or see why the item is never done."
            outcomes[place] = LimitError(text, limit=self._limit, hint=hint)
        return outcomes

    def _runs_again(self, request: Request) -> bool:
        """Tell whether an item runs again, and make its result the data of that run.

        Raises:
            NoResultError: It has none.
        """
        if self._is_done(request):
            return False
        if "result" not in request:
            text = f"the backend in {type(self).__name__} wrote no 'result' to go on with"
            raise NoResultError(text, hint="The result of a run is the data of the next.")
        request["data"] = request.pop("result")
        return True


class Loop(Again):
    """Run X again, its ``result`` as ``data``, until the item has a key: ``Loop(until=done)[X]``.

    A request's own key ``until`` is removed first: the same dict, sent again, loops again.

    Reads:
        The inputs of X.
    Writes:
        result: The last output of X.
        {until}: The value with which X ended the loop.
    Batch:
        The range of X. Finished items leave the batch. When fewer than the min of X are left,
        ``pad = true`` fills the batch up, otherwise they fail.

    Raises:
        LimitError: An item ran ``limit`` times without the key.
        NoResultError: X wrote no ``result`` to go on with.
    Source:
        own
    Example:
        ``{"data": "ab"}`` gives ``"abababab"``::

            backend = "Loop(until=enough,limit=10)[Double]"
    """

    class Options(headrace.Options):
        """Options of Loop.

        Attributes:
            until: The key that X writes to end the loop.
            limit: How many times X may run for one item.
        """

        until: str
        limit: int = Field(100, ge=1)

    writes: tuple[str, ...] | type = ("result", "{until}")
