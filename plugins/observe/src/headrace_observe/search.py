"""Searches over values of keys: by optuna, or by climbing."""

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


def search(
    space: Sequence[Dimension],
    evaluate: Callable[[Values], float],
    trials: int,
    *,
    how: str = "auto",
    seed: int = 0,
) -> str:
    """Evaluate at most ``trials`` different combinations of values, the given one first.

    Args:
        space: What may change.
        evaluate: Gives a number that is greater for better values; called once per combination.
        trials: How many combinations.
        how: ``"optuna"``: its tree-structured Parzen estimator. ``"climb"``: change one key at a time to
            its next values up and down as long as that is better, and begin again at random values
            when no step is. ``"auto"``: optuna where it is installed. Both begin with the given
            values, and these with most instances, with the largest batches, and with both; climbing
            goes on from the best of them.
        seed: The same seed gives the same search.

    Returns:
        Which search it was.

    Raises:
        MissingDependencyError: optuna was asked for and is not installed.
    """
    known: dict[Values, float] = {}
    most = min(trials, math.prod(len(one.values) for one in space))

    def ask(values: Values) -> float | None:
        if values not in known:
            if len(known) >= most:
                return None
            known[values] = evaluate(values)
        return known[values]

    has_optuna = importlib.util.find_spec("optuna") is not None
    if how == "optuna" or (how == "auto" and has_optuna):
        _by_optuna(space, ask, seed)
        return "optuna"
    _by_climbing(space, ask, seed)
    return "climb"


def _by_optuna(
    space: Sequence[Dimension], ask: Callable[[Values], float | None], seed: int
) -> None:
    optuna = library("optuna", "tune", "tuning by optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(4, 2 * len(space)))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for values in _landmarks(space):
        places = {one.name: one.values.index(v) for one, v in zip(space, values, strict=True)}
        study.enqueue_trial(places)
    asked: set[Values] = set()
    repeats = 0
    rest = _all_others(space, seed)
    while True:
        trial = study.ask()
        values = tuple(
            one.values[trial.suggest_int(one.name, 0, len(one.values) - 1)] for one in space
        )
        repeats = repeats + 1 if values in asked else 0
        if repeats > _MOST_REPEATS:  # it has converged; what is left of the trials looks elsewhere
            values = next((other for other in rest if other not in asked), values)
            places = {one.name: one.values.index(v) for one, v in zip(space, values, strict=True)}
            study.enqueue_trial(places)
        asked.add(values)
        rank = ask(values)
        if rank is None or repeats > 2 * _MOST_REPEATS:
            return
        study.tell(trial, rank)


def _by_climbing(
    space: Sequence[Dimension], ask: Callable[[Values], float | None], seed: int
) -> None:
    asked = ((ask(values), values) for values in _landmarks(space))
    _, best = max((rank, values) for rank, values in asked if rank is not None)
    starts = itertools.chain([best], _all_others(space, seed))
    for start in starts:
        here, rank = start, ask(start)
        if rank is None:
            return
        better = True
        while better:
            better = False
            for place, one in enumerate(space):
                for step in (1, -1):
                    while True:
                        at = one.values.index(here[place]) + step
                        if not 0 <= at < len(one.values):
                            break
                        there = (*here[:place], one.values[at], *here[place + 1 :])
                        next_rank = ask(there)
                        if next_rank is None:
                            return
                        if next_rank <= rank:
                            break
                        here, rank, better = there, next_rank, True


def _landmarks(space: Sequence[Dimension]) -> list[Values]:
    """Give the given values, and these with most instances, with the largest batches, and with both.

    Few trials are best spent there: throughput rises with both until something else is the limit.
    """
    found: dict[Values, None] = {}
    for keys in ((), ("instance_num",), ("max",), ("instance_num", "max")):
        found[tuple(one.values[-1] if one.key in keys else one.start for one in space)] = None
    return list(found)


def _all_others(space: Sequence[Dimension], seed: int) -> Iterator[Values]:
    """Give combinations in random order, without end where there are many."""
    draw: Any = random.Random(seed)  # noqa: S311 - no secret
    if math.prod(len(one.values) for one in space) <= 10_000:
        every = list(itertools.product(*(one.values for one in space)))
        draw.shuffle(every)
        yield from every
        return
    while True:
        yield tuple(draw.choice(one.values) for one in space)
