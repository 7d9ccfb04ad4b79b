"""`Shadow`: another backend beside the one that answers, and where they differ."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

import headrace
from headrace.words import Bracket, run_child, select
from headrace_flow.beside import Beside, Counts, Job
from headrace_flow.comparing import comparison

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Shadow"]


class Shadow(headrace.Backend):
    """Answer with A, and run B beside on some of the requests: ``Shadow(share=0.1,compare=equal)[A,B]``.

    B has a thread of its own, and runs on copies after A has answered: no caller waits for it, and it changes nothing.
    While ``waiting`` requests wait for B, further requests are dropped. Each difference is logged, with the key
    ``request_id`` of the request. ``Pipeline.stats()["shadows"]`` counts ``compared``, ``differences``, ``failed`` (B
    failed), ``uncompared`` (not to be copied or compared, as on a device) and ``dropped``.

    Reads:
        The inputs of A and B.
    Writes:
        result: The output of A.
    Batch:
        The range of A. B gets the waiting copies, filled up to its min.

    Raises:
        The errors of A.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Shadow(share=0.1)[Upper,Identity]"
    """

    class Options(headrace.Options):
        """Options of Shadow."""

        share: float = Field(0.1, ge=0, le=1, description="The part of the requests that B runs.")
        compare: str = Field("equal", description="``equal`` or ``allclose(rtol=...,atol=...)``.")
        waiting: int = Field(64, ge=1, description="How many requests may wait for B.")

        @field_validator("compare")
        @classmethod
        def _known(cls, text: str) -> str:
            comparison(text)
            return text

    takes = 2
    bracket = Bracket(combine_ranges=lambda children: children[0].range)  # that of A
    reads = ()  # just the keys that A and B read

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over A and B."""
        self._child, other = context.children
        self._context, self._options = context, options
        self._draw = random.Random().random  # noqa: S311 - nothing is to be kept secret
        place = next(context.store.instance.get_or_create("headrace_flow.shadow", count))
        name = f"{context.node_name}.{place}" if place else context.node_name
        self._counts = context.store.pipeline.get_or_create(("shadows", name), Counts)
        self._beside = Beside(other, comparison(options.compare), self._counts, context.logger)

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Run A, and leave copies for B."""
        outcomes: list[Exception | None] = [None] * len(batch)
        copies: dict[int, Request] = {}
        for i in select(batch, range(len(batch)), self._is_drawn, outcomes, fillers=False):
            if len(self._beside) + len(copies) >= self._options.waiting:
                self._counts.count("dropped")
            elif (copy := self._copy(batch[i])) is not None:
                copies[i] = copy
        places = range(len(batch))
        run_child(self._child, batch, places, outcomes, pad=self._context.batch.pad)
        for i, request in copies.items():
            if outcomes[i] is None and "result" in batch[i]:
                answer = self._copy({"result": batch[i]["result"]})
                if answer is not None:
                    self._beside.add(Job(request, answer))
        return outcomes

    def _is_drawn(self, request: Request) -> bool:
        return bool(self._draw() < self._options.share)

    def _copy(self, request: Request) -> Request | None:
        try:
            return deepcopy({**request})
        except Exception:  # noqa: BLE001 - a value may raise anything
            self._counts.count("uncompared")
            return None

    def close(self) -> None:
        """Drop what waits for B, and wait for the batch that it runs."""
        self._beside.close()
