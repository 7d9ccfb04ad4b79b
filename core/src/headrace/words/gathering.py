"""CatSplit, which gathers a batch to one item and divides the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._build.callees import no_result, too_few
from headrace._contract.checked import Answers, Filler, Outcomes, batch_alone, is_one, weight_of
from headrace._plan.declared import Ranged, inside
from headrace._plan.word import Word
from headrace.errors import InstanceLostError
from headrace.words import Bracket, fill_up, run_child

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._contract.backend import InitContext
    from headrace._plan.element import Range
    from headrace.keys import Request

__all__ = ["CatSplit"]


def _of_gathered(ranges: Sequence[Ranged]) -> Range:
    """Return the range of infer within those of cat and split."""
    cat, infer, split = ranges
    return inside([infer, *(one for one in (cat, split) if one.range[1] != 1)])


class CatSplit(Word):
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
    bracket = Bracket(combine_ranges=_of_gathered)
    keys_of_child = 0
    _in_turn = True

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the three parts."""
        self._cat, self._infer, self._split = context.children
        self._fills_up = self._pad and self._infer.min > 1

    def forward(self, batch: list[Request]) -> Outcomes:
        """Gather, infer and split."""
        if not self._infer.rerun or is_one(batch):
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

    def _once(self, batch: list[Request]) -> Answers:
        self._infer_failure: BaseException | None = None
        before = [dict(request) for request in batch] if self._fills_up else []
        outcomes: Answers = [None] * len(batch)
        run_child(self._cat, batch, range(len(batch)), outcomes, pad=self._pad)
        places = [i for i, error in enumerate(outcomes) if error is None]
        if before and len(places) < len(batch) and self._fill_up(batch, before, places, outcomes):
            return outcomes
        if not places:
            return outcomes
        alive = [batch[i] for i in places]
        first = alive[0]
        if "result" not in first:
            error = no_result(self._cat._last_label(first))
            return [error if o is None else o for o in outcomes]
        gathered = dict(first)
        gathered["data"] = gathered.pop("result")
        gathered["request_size"] = sum(one.get("request_size", 1) for one in alive)
        failed: Answers = [None]
        # Without `pad`: the gathered item must not be filled up with copies of itself.
        run_child(self._infer, [gathered], [0], failed, pad=False)
        if failed[0] is None and "result" not in gathered:
            failed = [no_result(self._infer._last_label(gathered))]
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
        run_child(self._split, batch, left, outcomes, pad=self._pad)
        return outcomes

    def _fill_up(
        self,
        batch: list[Request],
        before: Sequence[Request],
        places: Sequence[int],
        outcomes: Answers,
    ) -> bool:
        """Gather the items that cat has not failed once more, filled up to the min of infer, and run them.

        Returns:
            Whether this was done: the items left were too few, and cat had failed one that is no filler.
        """
        own = sum(not isinstance(request, Filler) for request in batch)
        left = [i for i in places if not isinstance(batch[i], Filler)]
        if weight_of([batch[i] for i in places]) >= self._infer.min or not left or len(left) == own:
            return False
        for i in left:
            batch[i].clear()
            batch[i].update(before[i])
        alive = [batch[i] for i in left]
        filled = fill_up(alive, self._infer)
        short: Answers = [too_few(alive, self._infer, pad=True)] * len(alive)
        found = short if filled is None else self._once(filled)
        for i, error in zip(left, found, strict=False):  # without the fillers
            outcomes[i] = error
        return True

    def _last_label(self, request: Request) -> str:
        return self._split._last_label(request)
