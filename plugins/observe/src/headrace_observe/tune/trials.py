"""Trials of configurations for a goal: the search, its results, the frontier, and the best trial as a file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_observe.bench.measurement import Point
from headrace_observe.tune.goals import figures_of
from headrace_observe.tune.search import search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_observe.tune.goals import Goal
    from headrace_observe.tune.space import Dimension, Value

__all__ = ["Trial", "Trials"]

_AGAIN = 4
"""One of this many runs measures one of the best trials again."""

_LEADERS = 3
"""The number of best trials that are measured again, in turn."""


@dataclass
class Trial:
    """One combination of values and its results.

    Attributes:
        values: One value for each dimension.
        runs: The point of each run.
        point: The figures of all runs together, as `Point.to_dict` gives them. None after an error.
        error: Why a run of the combination failed. None if none did.
    """

    values: tuple[Value, ...]
    runs: list[Point] = field(default_factory=list)
    point: dict[str, Any] | None = None
    error: str | None = None

    @property
    def figures(self) -> dict[str, float | None] | None:
        """The figures that goals may name; None after an error."""
        return None if self.point is None else figures_of(self.point)


@dataclass
class Trials:
    """All trials of a search.

    Args:
        space: The dimensions of the search.
        goal: The goal to reach.
        run: Measures one combination. An error that it raises is the result of the trial.
        done: The trials so far, one for each combination, in the order of the search.
    """

    space: Sequence[Dimension]
    goal: Goal
    run: Callable[[tuple[Value, ...]], Point]
    done: list[Trial] = field(default_factory=list)

    def search(self, runs: int, *, seed: int = 0) -> None:
        """Search with this many runs. The last ones measure the best trials again.

        The trial that looks best after one run of each is partly lucky. So if there are eight runs or more, a
        quarter of them measures the three best trials again: each run takes the one that was measured least
        often. If its new figures are worse, the next best trial takes its place.

        Args:
            runs: The number of measurements in all.
            seed: The same seed and the same figures give the same search.
        """
        different = math.prod(len(choice.values) for choice in self.space)
        again = runs // _AGAIN if runs >= 2 * _AGAIN else 0
        explored = runs if different <= runs else runs - again
        search(self.space, self.evaluate, explored, seed=seed)
        for _ in range(min(again, runs - len(self.done))):
            leaders = self._by_rank()[:_LEADERS]
            if leaders:
                self._measure(min(leaders, key=lambda trial: len(trial.runs)))

    def evaluate(self, values: tuple[Value, ...]) -> float:
        """Measure one combination, and give its rank."""
        trial = Trial(values)
        self._measure(trial)
        self.done.append(trial)
        return self.goal.rank(trial.figures)

    def _measure(self, trial: Trial) -> None:
        try:
            trial.runs.append(self.run(trial.values))
        except Exception as error:  # noqa: BLE001 - out of memory, wrong options, a backend that fails
            trial.point, trial.error = None, f"{type(error).__name__}: {error}"
        else:
            trial.point = Point.of_all(trial.runs).to_dict()

    def _by_rank(self) -> list[Trial]:
        """Return the trials that could be measured, the best first."""
        ranked = [(self.goal.rank(figures), t) for t in self.done if (figures := t.figures)]
        return [trial for _, trial in sorted(ranked, key=lambda pair: -pair[0])]

    @property
    def best(self) -> Trial | None:
        """The best trial that could be measured; it may miss limits. None if no trial could be measured."""
        return next(iter(self._by_rank()), None)

    def reached(self, trial: Trial) -> bool:
        """Return whether a trial answered requests and keeps all limits."""
        figures = trial.figures
        return figures is not None and self.goal.reached(figures)

    def frontier(self) -> list[Trial]:
        """Return the trials that no other trial beats in both throughput and p99, in ascending order of throughput."""
        best: list[Trial] = []
        lowest = float("inf")
        rows = [(t, t.figures) for t in self.done]
        known = [(t, f["throughput"], f["p99"]) for t, f in rows if f is not None]
        ordered = [(t, a, b) for t, a, b in known if a is not None and b is not None]
        for trial, _, p99 in sorted(ordered, key=lambda row: (-row[1], row[2])):
            if p99 < lowest:
                lowest = p99
                best.append(trial)
        return best[::-1]

    def how_close(self) -> str:
        """Return a message that says by how much the best trial misses the limits."""
        best = self.best
        if best is None or best.figures is None:
            return "no configuration could be measured"
        if not best.figures["throughput"]:
            failed = sum(point.window.failed.total() for point in best.runs)
            hint = f"{failed} failed" if failed else "measure longer, with --seconds"
            for text in best.runs[0].window.errors.values():
                hint = f"{failed} failed, one of them: {text}"
            return f"no configuration answered a request: {hint}"
        units = {"throughput": "/s", "failed": "", "cpu": " cores"}
        missed = []
        for limit in self.goal.limits:
            if limit.excess(best.figures) > 0:
                reached, unit = best.figures[limit.figure], units.get(limit.figure, " ms")
                shown = "no answer" if reached is None else f"{reached:.6g}{unit}"
                missed.append(f"{limit.text} (it has {shown})")
        return f"nothing reached the goal; the closest, {self.named(best)}, misses " + ", ".join(
            missed
        )

    def named(self, trial: Trial) -> str:
        """Return the values of a trial by name."""
        pairs = zip(self.space, trial.values, strict=True)
        return ", ".join(f"{choice.name}={value}" for choice, value in pairs)

    def to_dict(self, *, interrupted: bool) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        best, frontier = self.best, {id(trial) for trial in self.frontier()}
        return {
            "kind": "tune",
            "goal": self.goal.text,
            "interrupted": interrupted,
            "reached": best is not None and self.reached(best),
            "space": {choice.name: list(choice.values) for choice in self.space},
            "trials": [
                {
                    "values": {d.name: v for d, v in zip(self.space, trial.values, strict=True)},
                    "reached": self.reached(trial),
                    "best": trial is best,
                    "frontier": id(trial) in frontier,
                    "runs": len(trial.runs),
                    "error": trial.error,
                    "point": trial.point,
                }
                for trial in self.done
            ],
        }
