"""CatSplit: gather the items of a batch into one, infer, and split again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._build.standing import caller_of
from headrace._build.word import Word
from headrace._checked import weight_of
from headrace._plan.element import Range, elements_run
from headrace.errors import ClosedError, InputError, InstanceLostError, NoResultError, RequestError

if TYPE_CHECKING:
    from headrace._backend import Backend, InitContext
    from headrace._checked import Outcomes
    from headrace._plan.ranges import Ranged
    from headrace._plan.word import Use
    from headrace.keys import Request

__all__ = ["CatSplit"]


class CatSplit(Word):
    """Gather, infer, split: ``CatSplit[cat,infer,split]``.

    cat runs on all items; the ``result`` of the first becomes ``data`` of one gathered item, whose
    ``request_size`` is the sum, and infer runs on that. split runs on all items, each with that
    ``result`` as ``data``, and writes each its own. An error of infer fails all; if infer says
    ``rerun``, each item is gathered and run alone instead.

    Reads:
        data: What cat reads.
    Writes:
        result: What split writes.
    Batch:
        The range of infer.

    Raises:
        NoResultError: cat or infer wrote no ``result``.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "CatSplit[Join,Upper,Pick]"
    """

    takes = 3
    _needs_of = 0

    @classmethod
    def combine_ranges(cls, children: list[Ranged]) -> Range:
        """Give the range of the one in the middle."""
        return children[1].range

    @classmethod
    def _check(cls, use: Use) -> bool:
        """Refuse a Repost of the one item that stands for many."""
        good = True
        for one in elements_run(use.planning.nodes, use.element.children[1:2]):
            if one.target is not None and not use.scope.lenient:
                message = (
                    f"Repost[{one.target[0]}] cannot stand in the middle of CatSplit: what runs "
                    "there is no request, but many gathered into one"
                )
                use.planning.problems.add("graph", message, **one.target[1])
                good = False
        return good

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the three parts."""
        self._cat_backend, self._infer, self._split_backend = context.children
        self._cat = caller_of(self._cat_backend, pad=self._pad)
        self._split = caller_of(self._split_backend, pad=self._pad)
        self.min, self.max = self._infer.min, self._infer.max

    def forward(self, batch: list[Request]) -> Outcomes:
        """Gather, infer and split."""
        if self._infer.rerun and len(batch) > 1 and self.min <= 1:
            before = [dict(request) for request in batch]
            outcomes = self._once(batch)
            if outcomes is not None and self._infer_failed:
                for request, copy in zip(batch, before, strict=True):
                    request.clear()
                    request.update(copy)
                alone = [self._once([request]) for request in batch]
                outcomes = [None if one is None else one[0] for one in alone]
            return outcomes if outcomes is not None and any(outcomes) else None
        return self._once(batch)

    def _once(self, batch: list[Request]) -> Outcomes:
        self._infer_failed = False
        outcomes: list[Exception | None] = [None] * len(batch)
        self._note(outcomes, range(len(batch)), self._cat(batch))
        alive = [i for i, error in enumerate(outcomes) if error is None]
        if not alive:
            return outcomes
        first = batch[alive[0]]
        if "result" not in first:
            error = self._no_result(self._cat_backend, first)
            return [o or error.copy() for o in outcomes]
        gathered = dict(first)
        gathered["data"] = gathered.pop("result")
        gathered["request_size"] = weight_of([batch[i] for i in alive])
        failed = self._infer([gathered])
        if failed is None and "result" not in gathered:
            failed = [self._no_result(self._infer, gathered)]
        if failed is not None and failed[0] is not None:
            self._infer_failed = not isinstance(failed[0], InstanceLostError)
            return [o or _copy(failed[0]) for o in outcomes]
        for i in alive:
            batch[i].pop("result", None)
            batch[i]["data"] = gathered["result"]
        self._note(outcomes, alive, self._split([batch[i] for i in alive]))
        return outcomes if any(outcomes) else None

    def _note(self, outcomes: list[Exception | None], places: Any, some: Outcomes) -> None:
        if some is not None:
            for i, error in zip(places, some, strict=True):
                outcomes[i] = error

    def _last_label(self, request: Request) -> str:
        return self._split_backend._last_label(request)

    def _no_result(self, backend: Backend, request: Request) -> NoResultError:
        silent = backend._last_label(request)
        return NoResultError(
            f"{silent} wrote no 'result'",
            node=self._node,
            backend=silent,
            instance=self._index,
        )


def _copy(error: Exception) -> Exception:
    if isinstance(error, ClosedError):
        return error._passing()
    return error.copy() if isinstance(error, RequestError) else InputError(str(error))
