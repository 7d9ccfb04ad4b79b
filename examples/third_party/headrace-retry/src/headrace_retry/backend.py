"""`Retry`: contract and options. What it decides is in `compute`, which `init` imports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import headrace
import pydantic
from headrace import words

if TYPE_CHECKING:
    from headrace import keys

__all__ = ["Retry"]


class Retry(headrace.Backend):
    """Run X again for the items that it has failed with an error that may pass: ``Retry(3)[X]``.

    An item whose time is over, or that was cancelled, is not tried again. Each attempt begins with the request as it
    came.

    Reads:
        data: What X reads.

    Writes:
        result: What X writes.

    Batch:
        The range of X. When fewer items than the min of X are left for another attempt, they are filled up with
        ``pad = true``; otherwise they fail.

    Raises:
        What X raises at the last attempt.

    Source:
        own
    """

    class Options(headrace.Options):
        """How often, and after which errors.

        Attributes:
            attempts: How many times X runs for one item at most.
            errors: The exceptions after which it is tried again (names of classes); classes below
                them count.
        """

        positional = ("attempts",)
        attempts: int = pydantic.Field(default=3, ge=1)
        errors: tuple[str, ...] = ("OSError",)

    takes = 1
    bracket = words.Bracket(combine_ranges=words.combine_ranges)

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Take over X, and the options."""
        from headrace_retry import compute

        (self._child,) = context.children
        self._context, self._options = context, options
        self._may_pass = compute.may_pass
        self.reads = ()  # just the keys that X reads

    def forward(self, batch: list[keys.Request]) -> list[Exception | None]:
        """Run X, and again those that may be tried again."""
        before = [dict(request) for request in batch]
        outcomes: list[Exception | None] = [None] * len(batch)
        places = list(range(len(batch)))
        for attempt in range(1, self._options.attempts + 1):
            words.run_child(self._child, batch, places, outcomes, pad=self._context.batch.pad)
            places = [i for i in places if self._may_pass(outcomes[i], self._options.errors)]
            if not places or attempt == self._options.attempts:
                break
            places = [i for i in places if self._has_time(batch[i])]
            for i in places:
                outcomes[i] = None
                batch[i].clear()
                batch[i].update(before[i])
        return outcomes

    def _has_time(self, request: keys.Request) -> bool:
        asks = self._context.request
        if asks.unwanted(asks.keep(request)):
            return False
        deadline = asks.deadline(request)
        return deadline is None or time.monotonic() < deadline
