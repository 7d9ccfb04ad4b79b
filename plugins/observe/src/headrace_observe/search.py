"""Searches for the best values of keys: by climbing, or by climbing first and optuna after that."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import random
from typing import TYPE_CHECKING, Any

from headrace_observe.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace_observe.space import Dimension

    Values = tuple[int, ...]

__all__ = ["SEARCHES", "search"]

SEARCHES = ("auto", "optuna", "climb")
_MOST_REPEATS = 20
_MOST_DRAWN = 2_000
"""In a larger space, `_Climb.farthest` considers this many random combinations instead of all."""


def search(
    space: Sequence[Dimension],
    evaluate: Callable[[Values], float],
    trials: int,
    *,
    how: str = "auto",
    seed: int = 0,
) -> str:
    """Evaluate at most ``trials`` different combinations of values, the configuration's own first.

    The next combinations have the configuration's values with most instances, with the largest batches, and with
    both. The climb starts from the best of these. It moves one key at a time to its next value up or down as long as
    that is better, then by two, four and more values, and then two keys at once by one step each. When no such
    combination is better, the next climb starts from the combination farthest from all known ones, or optuna goes on.

    Args:
        space: The keys that may change, with their values.
        evaluate: Gives a number that is greater for better values. Called once per combination.
        trials: The most combinations to evaluate.
        how: ``"climb"``: as above. ``"optuna"``: two climbs, then the tree-structured Parzen estimator of
            optuna. ``"auto"``: ``"optuna"`` if it is installed, else ``"climb"``.
        seed: The same seed gives the same search.

    Returns:
        The search that was used: ``"climb"`` or ``"optuna"``.

    Raises:
        MissingDependencyError: optuna was asked for and is not installed.
    """
    climb = _Climb(space, evaluate, trials, seed)
    if how == "climb" or (how == "auto" and importlib.util.find_spec("optuna") is None):
        climb.begin()
        climb.go_on(trials)
        return "climb"
    optuna = library("optuna", "tune", "tuning by optuna")
    climb.begin()
    climb.go_on(1)
    _by_optuna(optuna, climb, seed)
    return "optuna"


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
        self.known: dict[Values, float] = {}
        self._evaluate = evaluate
        self._left = min(trials, math.prod(len(one.values) for one in space))
        self._draw: Any = random.Random(seed)  # noqa: S311 - no secret

    def ask(self, places: Values) -> float | None:
        """Return the number of a combination, evaluated if it is new; None if no trial is left for that."""
        if places not in self.known:
            if not self._left:
                return None
            self._left -= 1
            values = tuple(one.values[k] for one, k in zip(self.space, places, strict=True))
            self.known[places] = self._evaluate(values)
        return self.known[places]

    def begin(self) -> None:
        """Evaluate the landmarks, and climb from the best of them."""
        for places in _landmarks(self.space):
            self.ask(places)
        self._up(self._best())

    def go_on(self, climbs: int) -> None:
        """Climb ``climbs`` times, each from the combination farthest from all known ones, while trials are left."""
        for _ in range(climbs):
            if self._left:
                self._up(self.farthest())

    def farthest(self) -> Values:
        """Give a combination whose distance to the nearest known one is the greatest."""
        sizes = [len(one.values) for one in self.space]
        if math.prod(sizes) <= _MOST_DRAWN:
            found = list(itertools.product(*map(range, sizes)))
        else:
            draw = self._draw.randrange
            found = [tuple(draw(size) for size in sizes) for _ in range(_MOST_DRAWN)]
        self._draw.shuffle(found)

        def distance(places: Values) -> float:
            return min(
                sum(abs(a - b) / max(1, size - 1) for a, b, size in zip(places, one, sizes))  # noqa: B905
                for one in self.known
            )

        return max(found, key=distance)

    def _best(self) -> Values:
        return max(self.known, key=self.known.__getitem__)

    def _up(self, start: Values) -> None:
        """Climb from one combination, then from the best of all by changing two keys at once."""
        self._straight(start)
        here, better = self._best(), True
        while better:
            better = False
            for there in self._aslant(here):
                number = self.ask(there)
                if number is None:
                    return
                if number > self.known[here]:
                    self._straight(there)
                    here, better = self._best(), True
                    break

    def _straight(self, here: Values) -> None:
        """Change one key at a time as long as that is better, by jumps if no single step is better."""
        self._steps(here)
        while self._left:
            here = self._best()
            for there in self._jumps(here):
                number = self.ask(there)
                if number is None:
                    return
                if number > self.known[here]:
                    self._steps(there)
                    break
            else:
                return

    def _steps(self, here: Values) -> None:
        """Change one key at a time to its next value as long as that is better."""
        number = self.ask(here)
        if number is None:
            return
        better = True
        while better:
            better = False
            for place, step in itertools.product(range(len(here)), (1, -1)):
                while (there := self._moved(here, (place, step))) is not None:
                    found = self.ask(there)
                    if found is None:
                        return
                    if found <= number:
                        break
                    here, number, better = there, found, True

    def _jumps(self, here: Values) -> Iterator[Values]:
        """Give the combinations in which one key is two, four, eight ... values away."""
        for place, one in enumerate(self.space):
            for power in range(1, len(one.values).bit_length()):
                for step in (1 << power, -(1 << power)):
                    there = self._moved(here, (place, step))
                    if there is not None:
                        yield there

    def _aslant(self, here: Values) -> Iterator[Values]:
        for a, b in itertools.combinations(range(len(here)), 2):
            for steps in itertools.product((1, -1), repeat=2):
                there = self._moved(here, (a, steps[0]), (b, steps[1]))
                if there is not None:
                    yield there

    def _moved(self, here: Values, *steps: tuple[int, int]) -> Values | None:
        """Return the combination after ``steps`` (dimension, step); None if one leaves the bounds of its dimension."""
        there = list(here)
        for place, step in steps:
            there[place] += step
            if not 0 <= there[place] < len(self.space[place].values):
                return None
        return tuple(there)


def _by_optuna(optuna: Any, climb: _Climb, seed: int) -> None:
    """Spend the trials that are left on combinations that optuna proposes, from the known ones."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    sizes = {one.name: len(one.values) for one in climb.space}
    over = {name: optuna.distributions.IntDistribution(0, size - 1) for name, size in sizes.items()}
    for places, number in climb.known.items():
        params = dict(zip(sizes, places, strict=True))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=over, value=number))
    repeats = 0
    while True:
        trial = study.ask()
        places = tuple(trial.suggest_int(name, 0, size - 1) for name, size in sizes.items())
        repeats = repeats + 1 if places in climb.known else 0
        # Optuna has converged, and proposes only known combinations, so the remaining trials search farther away.
        if repeats > _MOST_REPEATS:
            places = climb.farthest()
            study.enqueue_trial(dict(zip(sizes, places, strict=True)))
        found = climb.ask(places)
        if found is None or repeats > 2 * _MOST_REPEATS:
            return
        study.tell(trial, found)


def _landmarks(space: Sequence[Dimension]) -> list[Values]:
    """Return the configuration's values, and these with most instances, with the largest batches, and with both.

    If there are few trials they are best spent there: throughput rises with both keys until something else limits it.
    """
    found: dict[Values, None] = {}
    for keys in ((), ("instance_num",), ("max",), ("instance_num", "max")):
        values = [one.values[-1] if one.key in keys else one.start for one in space]
        found[tuple(one.values.index(v) for one, v in zip(space, values, strict=True))] = None
    return list(found)
