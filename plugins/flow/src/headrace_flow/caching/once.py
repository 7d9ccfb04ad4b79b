"""`Once`: equal requests that are in flight at the same time run once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import InstanceLostError
from headrace.words import Bracket, Place, combine_ranges, run_child, select
from headrace_flow.caching.answers import Answer, written
from headrace_flow.caching.content import UnknownContentError, content_of, keys_compared, may_read
from headrace_flow.caching.flights import AGAIN, Flights

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Once"]


class Once(headrace.Backend):
    """Run equal requests in flight together once, and answer all: ``Once[X]``, outermost in a node.

    Requests are equal as for `Cache`. Every caller gets an answer in memory of its own, or the error of the run. Parts of
    the answer go to the first request alone. While an equal request runs, a request is kept as `headrace.PENDING`: no
    thread waits, and its own deadline and cancellation end it. If the first request was cancelled, or its time is over,
    an error of its run stays with it, and the next request runs. A request runs alone if it cannot be compared or
    copied, and counts as ``unshared`` in ``Pipeline.stats()["once"]``.

    Reads:
        The inputs of X, and the keys in ``keys``, to compare them.
        context: Its ``parameters``, those of a served request.
    Writes:
        result: The output of X.
    Batch:
        The range of X. Where fewer than the min of X would run, all run.

    Raises:
        The errors of X.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Once[Upper]"
    """

    class Options(headrace.Options):
        """Options of Once.

        Attributes:
            keys: Further keys that X reads, beside its declared inputs; required if X declares no inputs.
        """

        keys: tuple[str, ...] | None = None

    takes = 1
    keeps = True
    place = Place(stands="outermost")
    bracket = Bracket(keys_option="keys", combine_ranges=combine_ranges)
    reads: tuple[str, ...] | type = ()  # what it compares need not be there

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over X."""
        (self._child,) = context.children
        self._context, self._keys = context, keys_compared(context, options.keys)
        self.reads, self._writes = may_read(self._keys), context.expression.keys_written()
        self._flights = context.store.pipeline.get_or_create(("once", context.node_name), Flights)

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Run what no equal request runs already, and let the others wait for it."""
        outcomes: list[Exception | None] = [None] * len(batch)
        own = select(batch, range(len(batch)), lambda _: True, outcomes, fillers=False)
        contents = {i: _content(batch[i], self._keys) for i in own}
        handles = {i: self._context.request.kept(batch[i]) for i in own}
        new = {
            i: handle
            for i, handle in handles.items()
            if not self._flights.bring(batch[i], handle, contents, i)
        }
        left, firsts, twins, waits = self._flights.begin(
            batch, new, contents, self._child.min, self._context
        )
        for i in waits:
            outcomes[i] = headrace.PENDING
        before = {i: dict(batch[i]) for i in left}
        fillers = sorted({*range(len(batch))} - {*own}) if left else []
        answers = dict[bytes, Answer | Exception | None]()
        try:
            run_child(self._child, batch, [*left, *fillers], outcomes, pad=self._context.batch.pad)
            for content, i in firsts.items():
                answers[content] = self._answer(before[i], batch[i], outcomes[i])
        finally:
            for content in firsts:  # where the thread was interrupted nobody has an answer
                self._flights.land(content, answers.get(content, AGAIN))
        alone = []
        for i, content in twins.items():
            answer = answers[content]
            if isinstance(answer, Answer):
                batch[i].update(answer.values())
            elif answer is AGAIN or answer is None:
                alone.append(i)
            else:
                outcomes[i] = answer
        run_child(self._child, batch, alone, outcomes, pad=self._context.batch.pad)
        self._flights.count("ran", len(left) + len(alone))
        self._flights.count("shared", len(own) - len(new) + len(twins) - len(alone))
        self._flights.count("unshared", sum(contents[i] is None for i in new))
        return outcomes

    def _answer(
        self, before: Request, after: Request, outcome: Exception | None
    ) -> Answer | Exception | None:
        """Return what others may get of a run: an answer, an error, None where it cannot be copied, or AGAIN."""
        if outcome is None:
            try:
                return Answer(written(before, after, self._writes))
            except UnknownContentError:
                return None
        asks = self._context.request
        ended = isinstance(outcome, InstanceLostError) or asks.unwanted(asks.keep(after))
        return AGAIN if ended else outcome


def _content(request: Request, keys: tuple[str, ...]) -> bytes | None:
    try:
        return content_of(request, keys)
    except UnknownContentError:
        return None
