"""Loop and Restart: the same again, per item, until it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pydantic import Field

from headrace._build.standing import caller_of
from headrace._build.word import Word
from headrace._options import Options as _Options
from headrace.errors import LimitError, NoResultError
from headrace.keys import REPOST, Request

if TYPE_CHECKING:
    from headrace._backend import InitContext

__all__ = ["Loop", "Restart"]


class Again(Word, ABC):
    """Base of the containers that run their child again for the items that are not done."""

    takes = 1
    _needs_of = 0
    _reentrant = True

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the child."""
        (child,) = context.children
        self.options = options
        self.child = child
        self.min, self.max = child.min, child.max
        self._call = caller_of(child, pad=self._pad)

    @abstractmethod
    def is_done(self, request: Request) -> bool:
        """Tell whether an item that has run is done; one that is not is made ready to run again."""

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the child until all items are done or have failed."""
        outcomes: list[Exception | None] = [None] * len(batch)
        left = list(range(len(batch)))
        for _ in range(self.options.limit):
            some = self._call([batch[i] for i in left])
            again = []
            for position, i in enumerate(left):
                if some is not None and some[position] is not None:
                    outcomes[i] = some[position]
                elif not (self._reposts and REPOST in batch[i]) and not self.is_done(batch[i]):
                    again.append(i)
            left = [i for i in again if self._ready(batch[i], i, outcomes)]
            if not left:
                break
        for i in left:
            outcomes[i] = LimitError(
                f"{self._label()} ran {self.options.limit} times and is not done",
                limit=self.options.limit,
                hint="Raise its option limit, or see why the item is never done.",
            )
        return outcomes if any(outcomes) else None

    def _ready(self, request: Request, index: int, outcomes: list[Exception | None]) -> bool:
        if "result" not in request:
            outcomes[index] = NoResultError(
                f"{self._last_label(request)} wrote no 'result' to go on with",
                backend=self._last_label(request),
            )
            return False
        request["data"] = request.pop("result")
        return True

    def _last_label(self, request: Request) -> str:
        return self.child._last_label(request)


class Loop(Again):
    """Run X again, its ``result`` as ``data``, until the item has a key: ``Loop(until=done)[X]``.

    Reads:
        {until}: Whether it is there.
        data: What X reads.
    Writes:
        result: What X wrote last.
    Batch:
        The range of X. Items that are done leave: fewer than its min are filled up with
        ``pad = true``, else they fail.

    Raises:
        LimitError: An item ran ``limit`` times without the key.
        NoResultError: X wrote no ``result`` to go on with.
    Source:
        own
    Example:
        ``{"data": "ab"}`` gives ``"abababab"``::

            backend = "Loop(until=enough,limit=10)[Double]"
    """

    class Options(_Options):
        """Options of Loop."""

        until: str = Field(description="The key whose presence ends the loop.")
        limit: int = Field(100, ge=1, description="How many times X may run for one item.")

    reads = ("{until}", "data")

    def is_done(self, request: Request) -> bool:
        """Tell whether the item has the key."""
        return self.options.until in request


class Restart(Again):
    """Run X again, entering at the node that the key ``restart`` names: ``Restart[DagDispatcher]``.

    Stands in ``entrypoint``. The key is taken out before X runs again, with ``result`` as ``data``.

    Reads:
        restart: Name of the node to enter at, written by a backend inside X.
        data: What X reads.
    Writes:
        result: What X wrote last.
        node_name: The node entered last.
    Batch:
        The range of X. Items that are done leave: fewer than its min are filled up with
        ``pad = true``, else they fail.

    Raises:
        LimitError: An item was restarted ``limit`` times.
        NoResultError: X wrote no ``result`` to go on with.
    Source:
        own
    Example:
        ``{"data": "a"}`` gives ``"A!!!"``::

            entrypoint = "Restart[DagDispatcher]"

            [upper]
            backend = "Upper"
            next = "grow"

            [grow]
            backend = "Grow"
    """

    class Options(_Options):
        """Options of Restart."""

        limit: int = Field(100, ge=1, description="How many times X may run for one item.")

    reads = ("restart", "data")
    writes = ("result", "node_name")

    def is_done(self, request: Request) -> bool:
        """Tell whether the item names no node to enter at; else let it enter there."""
        node = request.pop("restart", None)
        if node is None:
            return True
        request["node_name"] = node
        return False
