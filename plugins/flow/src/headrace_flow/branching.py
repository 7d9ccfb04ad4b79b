"""`HasKey`, `NotHasKey` and `Random`: each item goes one way or the other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

import headrace
from headrace.keys import DATA
from headrace.words import Bracket, run_child, select

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["HasKey", "NotHasKey", "Random"]


class Branches(headrace.Backend):
    """The container that decides per item: a branch for yes, and perhaps one for no. Its words give a decision and options."""

    takes = (1, 2)
    bracket = Bracket(divides=True)
    reads: tuple[str, ...] | type = ()
    decision: Callable[[Any, int], Callable[[Request], bool]]
    """From the options and the index of the instance to the function that decides for one item."""

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over the branches, and say which keys a request needs, beside those that both branches need."""
        self._says_yes = self.decision(options, context.instance_index)
        self._branches, self._fills_up = context.children, context.batch.pad
        key = getattr(options, "key", None)
        needs: dict[str, Any] = {} if key is None else {key: NotRequired[Any]}
        read = [context.expression.keys_read(place) for place in range(len(self._branches))]
        # An item may need its data in a branch, or to pass.
        if len(read) == 1 or any(DATA in keys or silent for keys, silent in read):
            needs[DATA] = Any
        typed_dict: Any = TypedDict
        self.reads = typed_dict("Reads", needs)

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Run each branch on its items. Without a branch for no the other items pass."""
        outcomes: list[Exception | None] = [None] * len(batch)
        chosen = select(batch, range(len(batch)), self._says_yes, outcomes)
        others = sorted({k for k, error in enumerate(outcomes) if error is None}.difference(chosen))
        run_child(self._branches[0], batch, chosen, outcomes, pad=self._fills_up)
        if len(self._branches) == 2:
            run_child(self._branches[1], batch, others, outcomes, pad=self._fills_up)
        else:
            select(batch, others, _pass_by, outcomes)
        return outcomes


def _pass_by(request: Request) -> None:
    request["result"] = request["data"]


class HasKey(Branches):
    """Send items with a key to A, the others to B: ``HasKey(mask)[A,B]``.

    Without B the others pass: their ``result`` is their ``data``.

    Reads:
        The inputs of the branches, and whether the key is there.
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

    class Options(headrace.Options):
        """Options of HasKey and NotHasKey.

        Attributes:
            key: The key of the request that decides.
        """

        positional = ("key",)
        key: str

    decision = staticmethod(lambda options, _: lambda request: options.key in request)


class NotHasKey(HasKey):
    """Send items without a key to A, the others to B: ``NotHasKey(mask)[A,B]``.

    Without B the others pass: their ``result`` is their ``data``.

    Reads:
        The inputs of the branches, and whether the key is there.
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

    decision = staticmethod(lambda options, _: lambda request: options.key not in request)


class Random(Branches):
    """Send each item to A with probability p, else to B: ``Random(0.5)[A,B]``.

    Without B the others pass: their ``result`` is their ``data``.

    Reads:
        The inputs of the branches.
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

    class Options(headrace.Options):
        """Options of Random.

        Attributes:
            p: Probability of the first branch, 0 to 1.
            seed: Seed of the random numbers, for runs that can be repeated.
        """

        positional = ("p",)
        p: float = Field(ge=0, le=1)
        seed: int | None = None

    @classmethod
    def auto_instances(cls, options: Any, device: str | None, threads: int) -> int | None:
        """Return 1 with a seed: which of several instances draws for a request is no part of a run that can be repeated."""
        return None if options.seed is None else 1

    @staticmethod
    def decision(options: Any, index: int) -> Callable[[Request], bool]:
        """Draw from random numbers of this instance's own."""
        seed = None if options.seed is None else options.seed + index
        draw = random.Random(seed).random  # noqa: S311 - no secret
        return lambda _: draw() < options.p
