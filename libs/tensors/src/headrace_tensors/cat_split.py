"""CatSplit, which gathers a batch to one item and divides the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import BatchRangeError, InstanceLostError, NoResultError
from headrace.isolation import batch_alone
from headrace.words import Bracket, combine_ranges, fill_up, run_child, select
from headrace_tensors.devices import hands_on

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["CatSplit"]

Outcomes = list[Exception | None]


def _of_gathered(ranges: Sequence[Any]) -> tuple[int, int | None]:
    """Return the range of infer within those of cat and split."""
    cat, infer, split = ranges
    return combine_ranges([infer, *(word for word in (cat, split) if word.range[1] != 1)])


def _own(batch: list[Request], places: Sequence[int]) -> list[int]:
    """Return the places of the items that are no copies, which fill a batch up."""
    return select(batch, places, lambda _: True, [None] * len(batch), fillers=False)


def _weight(batch: Sequence[Request]) -> int:
    return sum(request.get("request_size", 1) or 1 for request in batch)


class CatSplit(headrace.Backend):
    """Concatenate, infer, split: ``CatSplit[cat,infer,split]``.

    cat runs on all items. The ``result`` of the first becomes ``data`` of one joined item with the sum
    as ``request_size``, and infer runs on it. split runs on all items, each with the
    ``result`` of infer as ``data``, and writes each its own. An error of infer fails all. If infer says
    ``rerun``, each item runs alone instead.

    Reads:
        data: The inputs of cat.
    Writes:
        result: The output of split.
    Batch:
        The range of infer, within those of cat and split. One of these with a max of 1 is called item by
        item and does not count. If cat fails so many items that the others are fewer than its min, these
        are joined again and filled up with ``pad = true``, else they fail.

    Raises:
        NoResultError: cat or infer wrote no ``result``.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "CatSplit[Join,Upper,Pick]"
    """

    takes = 3
    devices = staticmethod(hands_on)
    bracket = Bracket(combine_ranges=_of_gathered, keys_of_child=0)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over the three parts."""
        self._cat, self._infer, self._split = context.children
        self._pads = context.batch.pad
        self._fills_up = self._pads and self._infer.min > 1

    def forward(self, batch: list[Request]) -> Outcomes:
        """Gather, infer and split."""
        if not self._infer.rerun or len(_own(batch, range(len(batch)))) == 1:
            return self._once(batch)
        before = [dict(request) for request in batch]
        outcomes = self._once(batch)
        failure = self._infer_failure
        failed = [i for i, error in enumerate(outcomes) if error is not None and error is failure]
        for i in failed:  # cat has failed the others
            batch[i].clear()
            batch[i].update(before[i])
            if (alone := batch_alone(self, batch[i])) is not None:
                outcomes[i] = self._once(alone)[0]
        return outcomes

    def _once(self, batch: list[Request]) -> Outcomes:
        self._infer_failure: BaseException | None = None
        before = [dict(request) for request in batch] if self._fills_up else []
        outcomes: Outcomes = [None] * len(batch)
        run_child(self._cat, batch, range(len(batch)), outcomes, pad=self._pads)
        places = [i for i, error in enumerate(outcomes) if error is None]
        if before and len(places) < len(batch) and self._fill_up(batch, before, places, outcomes):
            return outcomes
        if not places:
            return outcomes
        alive = [batch[i] for i in places]
        first = alive[0]
        if "result" not in first:
            error = NoResultError("cat wrote no 'result'")
            return [error if o is None else o for o in outcomes]
        gathered = dict(first)
        gathered["data"] = gathered.pop("result")
        gathered["request_size"] = sum(request.get("request_size", 1) for request in alive)
        failed: Outcomes = [None]
        # Without `pad`: the gathered item must not be filled up with copies of itself.
        run_child(self._infer, [gathered], [0], failed, pad=False)
        if failed[0] is None and "result" not in gathered:
            failed = [NoResultError("infer wrote no 'result'")]
        if failed[0] is not None:
            if not isinstance(failed[0], InstanceLostError):
                self._infer_failure = failed[0]
            return [failed[0] if o is None else o for o in outcomes]
        for i in places:
            try:
                batch[i].pop("result", None)
                batch[i]["data"] = gathered["result"]
            except Exception as error:  # noqa: BLE001 - the dict is the user's, and may raise anything
                outcomes[i] = error
        left = [i for i in places if outcomes[i] is None]
        run_child(self._split, batch, left, outcomes, pad=self._pads)
        return outcomes

    def _fill_up(
        self,
        batch: list[Request],
        before: Sequence[Request],
        places: Sequence[int],
        outcomes: Outcomes,
    ) -> bool:
        """Gather the items that cat has not failed once more, filled up to the min of infer, and run them.

        Returns:
            Whether this was done: the items left were too few, and cat had failed one that is no filler.
        """
        own = len(_own(batch, range(len(batch))))
        left = _own(batch, places)
        if _weight([batch[i] for i in places]) >= self._infer.min or not left or len(left) == own:
            return False
        for i in left:
            batch[i].clear()
            batch[i].update(before[i])
        alive = [batch[i] for i in left]
        filled = fill_up(alive, self._infer)
        short: Outcomes = [self._too_few(alive)] * len(alive)
        result = short if filled is None else self._once(filled)
        for i, error in zip(left, result, strict=False):  # without the fillers
            outcomes[i] = error
        return True

    def _too_few(self, alive: list[Request]) -> BatchRangeError:
        weight, least, most = _weight(alive), self._infer.min, self._infer.max
        problem = f"only a weight of {weight} is left for infer, whose min is {least}: the other items of the batch failed"
        return BatchRangeError(
            problem, weight=weight, min=least, max=most, hint="Send smaller weights."
        )
