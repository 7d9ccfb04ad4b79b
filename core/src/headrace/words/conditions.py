"""Containers that divide a batch (HasKey, NotHasKey, Random), and CatSplit, which gathers it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from headrace._build.callees import no_result, too_few
from headrace._contract.checked import Answers, Filler, Outcomes, batch_alone, is_one, weight_of
from headrace._contract.options import Options as _Options
from headrace._plan.declared import Ranged, ReadKeys, RequiredKeys, inside, keys_named
from headrace._plan.word import Word, keys_read_in, keys_required_by
from headrace._portable import none_if_all_ok
from headrace.errors import InstanceLostError
from headrace.keys import DATA, Request
from headrace.words import Bracket, combine_ranges, fill_up, run_child, select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace._contract.backend import Backend, InitContext
    from headrace._plan.element import Element, Range

__all__ = ["CatSplit", "HasKey", "NotHasKey", "Random"]


class Branches(Word, ABC):
    """Base of the containers that decide per item: a branch for yes, and perhaps one for no."""

    _divides = True

    takes = (1, 2)
    bracket = Bracket(combine_ranges=partial(combine_ranges, divides=True))

    @classmethod
    def _required_keys(cls, element: Element, built: Mapping[Element, Backend]) -> RequiredKeys:
        """Return the keys that both branches need; without a second branch items pass with their ``data``."""
        found = [keys_required_by(child, built) for child in element.children]
        some = found if len(found) == 2 else [{DATA: element.name}, {}]
        both = {key: reader for key, reader in some[0].items() if key in some[1]}
        return both | {DATA: element.name} if any(DATA in needs for needs in some) else both

    @classmethod
    def _read_keys(cls, element: Element, built: Mapping[Element, Backend]) -> ReadKeys:
        """Return what the branches read and what decides; without a second branch items pass with their ``data``."""
        own: ReadKeys = dict.fromkeys(
            keys_named(element.cls, element.options, "reads"), element.name
        )
        if len(element.children) == 2:
            own.pop(DATA, None)
        return {**own, **keys_read_in(element.children, built)}

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the branches."""
        self.options = options
        self._branches = context.children
        self._silent: dict[int, Backend] = {}

    @abstractmethod
    def says_yes(self, request: Request) -> bool:
        """Decide for one item."""

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run each branch on its items; without a branch for no the other items pass."""
        outcomes: Answers = [None] * len(batch)
        chosen = select(batch, range(len(batch)), self.says_yes, outcomes)
        others = sorted({i for i, o in enumerate(outcomes) if o is None}.difference(chosen))
        self._silent = {}
        for child in self._branches:
            run_child(child, batch, chosen, outcomes, pad=self._pad)
            self._silent |= {id(batch[i]): child for i in chosen if "result" not in batch[i]}
            chosen = others
        if len(self._branches) == 1:
            select(batch, others, self._pass_by, outcomes)
        return none_if_all_ok(outcomes)

    def _pass_by(self, request: Request) -> None:
        request["result"] = request["data"]

    def _last_label(self, request: Request) -> str:
        silent = self._silent.get(id(request))
        return self._label() if silent is None else silent._last_label(request)


class HasKey(Branches):
    """Send items with a key to A, the others to B: ``HasKey(mask)[A,B]``.

    Without B the others pass: their ``result`` is their ``data``.

    Reads:
        {key}: Whether it is there.
        data: The inputs of the branches.
    Writes:
        result: The output of the branches.
    Batch:
        1 to the smallest max of the branches. A branch with a max of 1 is run item by item.

    Raises:
        The errors of the branches.
    Source:
        own
    Example:
        ``{"data": "abc", "loud": 1}`` gives ``"ABC"``::

            backend = "HasKey(loud)[Upper,Reverse]"
    """

    class Options(_Options):
        """Options of HasKey and NotHasKey."""

        positional = ("key",)
        key: str = Field(description="The key of the request that decides.")

    reads = ("{key}", "data")

    def says_yes(self, request: Request) -> bool:
        """Tell whether the item has the key."""
        return self.options.key in request


class NotHasKey(HasKey):
    """Send items without a key to A, the others to B: ``NotHasKey(mask)[A,B]``.

    Without B the others pass: their ``result`` is their ``data``.

    Reads:
        {key}: Whether it is there.
        data: The inputs of the branches.
    Writes:
        result: The output of the branches.
    Batch:
        1 to the smallest max of the branches. A branch with a max of 1 is run item by item.

    Raises:
        The errors of the branches.
    Source:
        own
    Example:
        ``{"data": "abc", "loud": 1}`` gives ``"abc"``::

            backend = "NotHasKey(loud)[Reverse]"
    """

    def says_yes(self, request: Request) -> bool:
        """Tell whether the item lacks the key."""
        return self.options.key not in request


class Random(Branches):
    """Send each item to A with probability p, else to B: ``Random(0.5)[A,B]``.

    Without B the others pass: their ``result`` is their ``data``.

    Reads:
        data: The inputs of the branches.
    Writes:
        result: The output of the branches.
    Batch:
        1 to the smallest max of the branches. A branch with a max of 1 is run item by item.

    Raises:
        The errors of the branches.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Random(1.0)[Upper,Reverse]"
    """

    class Options(_Options):
        """Options of Random."""

        positional = ("p",)
        p: float = Field(ge=0, le=1, description="Probability of the first branch, 0 to 1.")
        seed: int | None = Field(
            None, description="Seed of the random numbers, for runs that can be repeated."
        )

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the branches, with random numbers of this instance's own."""
        super().init(options, context)
        seed = options.seed
        self._random = random.Random(seed if seed is None else seed + context.instance_index)  # noqa: S311 - no secret

    def says_yes(self, request: Request) -> bool:
        """Draw for one item."""
        return bool(self._random.random() < self.options.p)


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
    _keys_of_child = 0
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
