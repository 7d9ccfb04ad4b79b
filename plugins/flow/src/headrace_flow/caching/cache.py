"""`Cache`: keeps answers by the content of the requests."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.words import Bracket, combine_ranges, run_child, select
from headrace_flow.caching.answers import Answer, Answers, written
from headrace_flow.caching.content import UnknownContentError, content_of, keys_compared, may_read
from headrace_flow.caching.shown import Shown

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Cache"]


class Cache(headrace.Backend):
    """Give the answer of X again to a request of equal content: ``Cache(seconds=60,entries=1000)[X]``.

    Two requests are equal if these are equal or absent in both: all inputs of the backends in X, the keys in
    ``keys``, and the parameters of a served request. Bytes, texts, numbers, arrays of numpy (dtype, shape, content), and
    lists, tuples and dicts of these can be compared. If a backend in X leaves open which keys it reads, `check` demands
    ``keys``. The cache keeps copies of all outputs of X. Any other request or answer runs as without a cache, and counts
    as ``uncached`` in ``Pipeline.stats()["caches"]``. Errors are never kept, and neither are parts of an answer: a hit has
    the final answer alone. The instances of a node have one cache. It ends with its pipeline.

    Reads:
        The inputs of X, and the keys in ``keys``, to compare them.
        context: Its ``parameters``, those of a served request.
    Writes:
        result: The output of X.
    Batch:
        The range of X. Where fewer than the min of X are left to run, the others run along.

    Raises:
        The errors of X.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Cache(seconds=60,entries=1000)[Upper]"
    """

    class Options(headrace.Options):
        """Options of Cache.

        Attributes:
            seconds: For how long an answer is given, in seconds.
            entries: How many answers are kept at most.
            bytes: How many bytes the kept answers take at most.
            keys: Further keys that X reads, beside its declared inputs; required if X declares no inputs.
        """

        seconds: float = Field(60.0, gt=0)
        entries: int = Field(1000, ge=1)
        bytes: int = Field(2**28, ge=1)
        keys: tuple[str, ...] | None = None

    takes = 1
    bracket = Bracket(keys_option="keys", combine_ranges=combine_ranges)
    reads: tuple[str, ...] | type = ()  # what it compares need not be there
    clock = staticmethod(time.monotonic)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over X; the first instance of the node makes the cache."""
        (self._child,) = context.children
        self._context, self._keys = context, keys_compared(context, options.keys)
        self.reads, self._writes = may_read(self._keys), context.expression.keys_written()
        # The instances of a node have the same expression: the same place in each has the same cache.
        place = next(context.store.instance.get_or_create("headrace_flow.cache", count))
        sizes = options.seconds, options.entries, options.bytes
        kept = context.store.node.get_or_create(
            ("headrace_flow.cache", place, type(self._child)), lambda: Answers(*sizes, self.clock)
        )
        name = f"{context.node_name}.{place}" if place else context.node_name
        self._shown = context.store.pipeline.get_or_create(("caches", name), lambda: Shown(kept))
        self._answers = kept

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Answer what is known, and run X on the others."""
        self._shown.now = self._answers
        outcomes: list[Exception | None] = [None] * len(batch)
        own = set(select(batch, range(len(batch)), lambda _: True, outcomes, fillers=False))
        contents: list[bytes | None] = []
        answers: dict[int, Answer] = {}
        for i, request in enumerate(batch):
            content, answer = self._look_up(request, counts=i in own)
            contents.append(content)
            if answer is not None:
                answers[i] = answer
        left = [i for i in range(len(batch)) if i not in answers]
        if left and sum(batch[i].get("request_size", 1) for i in left) < self._child.min:
            left, answers = [*range(len(batch))], {}
        before = {i: dict(batch[i]) for i in left}
        run_child(self._child, batch, left, outcomes, pad=self._context.batch.pad)
        for i in left:
            if outcomes[i] is None:
                self._keep(contents[i], before[i], batch[i], counts=i in own)
        for i, answer in answers.items():
            batch[i].update(answer.values())
        return outcomes

    def _look_up(self, request: Request, *, counts: bool) -> tuple[bytes | None, Answer | None]:
        """Return what makes a request equal to others, None where that is unknown, and its answer if there is one."""
        content, answer, outcome = None, None, "uncached"
        try:
            content = content_of(request, self._keys)
        except UnknownContentError:
            pass
        else:
            answer = self._answers.get(content)
            outcome = "misses" if answer is None else "hits"
        if counts:  # copies that fill up the batch are not counted
            self._answers.count(outcome)
        return content, answer

    def _keep(
        self, content: bytes | None, before: Request, after: Request, *, counts: bool
    ) -> None:
        """Keep what X wrote into a request."""
        if content is None:
            return
        try:
            fits = self._answers.put(content, Answer(written(before, after, self._writes)))
        except UnknownContentError:
            fits = False
        if counts and not fits:
            self._answers.count("uncached")
