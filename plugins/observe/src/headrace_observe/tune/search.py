"""Searches for the best values of keys by climbing."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace_observe.tune.space import Dimension, Value

    Values = tuple[Value, ...]
    Places = tuple[int, ...]

__all__ = ["search"]

_MOST_DRAWN = 2_000
"""In a larger space, `_Climb.farthest` considers this many random combinations instead of all."""


def search(
    space: Sequence[Dimension], evaluate: Callable[[Values], float], trials: int, *, seed: int = 0
) -> None:
    """Evaluate at most ``trials`` different combinations of values, the configuration's own first.

    The next combinations have the configuration's values with most instances, with the largest batches, and with
    both. The climb starts from the best of these. It moves one key at a time to its next value up or down as long as
    that is better, then by two, four and more values, and then two keys at once by one step each. When no such
    combination is better, the next climb starts from the combination farthest from all known ones.

    Args:
        space: The keys that may change, with their values.
        evaluate: Gives a number that is greater for better values. Called once per combination.
        trials: The most combinations to evaluate.
        seed: The same seed gives the same search.
    """
    climb = _Climb(space, evaluate, trials, seed)
    for places in _landmarks(space):
        climb.ask(places)
    climb.up(climb.best())
    for _ in range(trials):
        climb.up(climb.farthest())


class _Climb:
    """The climbing search, with the numbers of all known combinations.

    A combination is a tuple with, for each dimension, the index of a value.

    Args:
        space, evaluate, trials, seed: See `search`.
    """

    def __init__(
        self,
        space: Sequence[Dimension],
        evaluate: Callable[[Values], float],
        trials: int,
        seed: int,
    ) -> None:
        self.space = space
        self.known: dict[Places, float] = {}
        self._evaluate = evaluate
        self._left = min(trials, math.prod(len(choice.values) for choice in space))
        self._draw: Any = random.Random(seed)  # noqa: S311 - no secret

    def ask(self, places: Places) -> float | None:
        """Return the number of a combination, evaluated if it is new; None if no trial is left for that."""
        if places not in self.known:
            if not self._left:
                return None
            self._left -= 1
            values = tuple(choice.values[k] for choice, k in zip(self.space, places, strict=True))
            self.known[places] = self._evaluate(values)
        return self.known[places]

    def farthest(self) -> Places:
        """Give a combination whose distance to the nearest known one is the greatest."""
        sizes = [len(choice.values) for choice in self.space]
        if math.prod(sizes) <= _MOST_DRAWN:
            places = list(itertools.product(*map(range, sizes)))
        else:
            draw = self._draw.randrange
            places = [tuple(draw(size) for size in sizes) for _ in range(_MOST_DRAWN)]
        self._draw.shuffle(places)

        def distance(places: Places) -> float:
            return min(
                sum(abs(a - b) / max(1, size - 1) for a, b, size in zip(places, tried, sizes))  # noqa: B905
                for tried in self.known
            )

        return max(places, key=distance)

    def best(self) -> Places:
        """Return the best combination so far."""
        return max(self.known, key=self.known.__getitem__)

    def up(self, start: Places) -> None:
        """Climb from one combination, then from the best of all by changing two keys at once, while trials are left."""
        if not self._left:
            return
        self._straight(start)
        here, better = self.best(), True
        while better:
            better = False
            for there in self._aslant(here):
                number = self.ask(there)
                if number is None:
                    return
                if number > self.known[here]:
                    self._straight(there)
                    here, better = self.best(), True
                    break

    def _straight(self, here: Places) -> None:
        """Change one key at a time as long as that is better, by jumps if no single step is better."""
        self._steps(here)
        while self._left:
            here = self.best()
            for there in self._jumps(here):
                number = self.ask(there)
                if number is None:
                    return
                if number > self.known[here]:
                    self._steps(there)
                    break
            else:
                return

    def _steps(self, here: Places) -> None:
        """Change one key at a time to its next value as long as that is better."""
        number = self.ask(here)
        if number is None:
            return
        better = True
        while better:
            better = False
            for place, step in itertools.product(range(len(here)), (1, -1)):
                while (there := self._moved(here, (place, step))) is not None:
                    point = self.ask(there)
                    if point is None:
                        return
                    if point <= number:
                        break
                    here, number, better = there, point, True

    def _jumps(self, here: Places) -> Iterator[Places]:
        """Give the combinations in which one key is two, four, eight ... values away."""
        for place, choice in enumerate(self.space):
            for power in range(1, len(choice.values).bit_length()):
                for step in (1 << power, -(1 << power)):
                    there = self._moved(here, (place, step))
                    if there is not None:
                        yield there

    def _aslant(self, here: Places) -> Iterator[Places]:
        for a, b in itertools.combinations(range(len(here)), 2):
            for steps in itertools.product((1, -1), repeat=2):
                there = self._moved(here, (a, steps[0]), (b, steps[1]))
                if there is not None:
                    yield there

    def _moved(self, here: Places, *steps: tuple[int, int]) -> Places | None:
        """Return the combination after ``steps`` (dimension, step); None if one leaves the bounds of its dimension."""
        there = list(here)
        for place, step in steps:
            there[place] += step
            if not 0 <= there[place] < len(self.space[place].values):
                return None
        return tuple(there)


def _landmarks(space: Sequence[Dimension]) -> list[Places]:
    """Return the configuration's values, and these with most instances, with the largest batches, and with both.

    If there are few trials they are best spent there: throughput rises with both keys until something else limits it.
    """
    places: dict[Places, None] = {}
    for keys in ((), ("instance_num",), ("max",), ("instance_num", "max")):
        values = [choice.values[-1] if choice.key in keys else choice.start for choice in space]
        pairs = zip(space, values, strict=True)
        places[tuple(choice.values.index(value) for choice, value in pairs)] = None
    return list(places)
