"""`Concurrency`: so many batches at a time, over the nodes of a pipeline, or over pipelines."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.words import Bracket, Place, combine_ranges, run_child, select
from headrace_flow.limits import Kept, Limit, Room, of_process

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Concurrency"]


class Concurrency(headrace.Backend):
    """Run X in so many batches at a time: ``Concurrency(name=gpu,most=2)[X]``, outermost in a node.

    All nodes of the pipeline with the same name share one limit, with ``shared = true`` all pipelines of the process.
    Requests above the limit are kept as `headrace.PENDING`: no thread and no instance waits, and their own
    deadlines and cancellations end them. Waiting nodes come in turn, a batch each. A batch counts until a device
    has done its part of it. ``Pipeline.stats()["concurrency"]`` has ``running``, ``most``, ``waiting``, ``batches``.

    Reads:
        The inputs of X.
    Writes:
        result: The output of X.
    Batch:
        The range of X.

    Raises:
        SetupError: Another place gives the name another size.
        The errors of X.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Concurrency(name=gpu,most=2)[Upper]"
    """

    class Options(headrace.Options):
        """Options of Concurrency.

        Attributes:
            name: The name of the limit, as gpu.
            most: How many batches run at a time.
            shared: Whether the pipelines of the process share it.
        """

        positional = ("name",)
        name: str = Field(min_length=1)
        most: int = Field(1, ge=1)
        shared: bool = False

    takes = 1
    keeps = True
    place = Place(stands="outermost")
    uses_pipeline = True
    reads = ()  # just the keys that X reads
    bracket = Bracket(combine_ranges=combine_ranges)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over X, and find the limit."""
        (self._child,) = context.children
        self._context = context
        self._limit: Limit = context.store.pipeline.get_or_create(
            ("concurrency", options.name), lambda: self._make(options)
        )
        self._limit.check(options.most, shared=options.shared)
        self._room = context.store.node.get_or_create(
            ("headrace_flow.concurrency", self._limit), Room
        )
        self._limit.add(self._room)
        self._runs = False
        # X registers first: what it has queued on a device is done by then.
        context.batch.at_end(self._leave)

    def _make(self, options: Any) -> Limit:
        if options.shared:
            return of_process(options.name, options.most)
        return Limit(options.name, options.most, shared=False)

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Run X, or keep the requests until it may run."""
        self._leave()  # where an interrupt has kept the last batch from it
        outcomes: list[Exception | None] = [None] * len(batch)
        own = select(batch, range(len(batch)), lambda _: True, outcomes, fillers=False)
        keep = self._context.request.keep
        kept = [Kept(keep(batch[i]), batch[i].get("request_size", 1), self._context) for i in own]
        if self._limit.enter(self._room, kept, self._takes()):
            self._runs = True
            run_child(self._child, batch, range(len(batch)), outcomes, pad=self._context.batch.pad)
        else:
            for i in own:
                outcomes[i] = headrace.PENDING
        return outcomes

    def _takes(self) -> float:
        """Return the greatest weight of a batch; without any max it is 1."""
        if self._context.batch.sizes:
            return self._context.batch.sizes[-1]
        most = min(self._context.batch.max or inf, self.max or inf)
        return 1 if most == inf else most

    def _leave(self) -> None:
        if self._runs:
            self._runs = False
            self._limit.leave()

    def describe(self) -> dict[str, Any]:
        """Return the limit."""
        limit = self._limit
        return {"concurrency": limit.name, "most": limit.most, "shared": limit.shared}

    def close(self) -> None:
        """Let the limit go."""
        self._leave()
        self._limit.remove(self._room)
