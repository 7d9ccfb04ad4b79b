"""Reads the goals of ``headrace tune``, such as ``max throughput; p99 < 50ms``, and ranks results by them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError, among

if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["FIGURES", "Goal", "Limit", "figures_of", "read_goal"]

_LATENCY_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
FIGURES: dict[str, dict[str, float]] = {
    "throughput": {"": 1.0, "/s": 1.0},
    **dict.fromkeys(("mean", "p50", "p90", "p99", "max"), _LATENCY_UNITS),
    "failed": {"": 1.0, "%": 0.01},
    "cpu": {"": 1.0},
}
"""The figures that a goal may name, each with its units. The number of a unit converts a value to the figure's own
unit: requests per second, milliseconds, a share of the requests, processor cores."""

_LEAST_EXCESS = 1e-6
"""The excess of a result that lies just on a limit of ``<`` or ``>``."""

_CLAUSE = re.compile(
    r"\s*(?:(?P<way>max|min)\s+(?P<of>\w+)"
    r"|(?P<figure>\w+)\s*(?P<sign><=?|>=?)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z%/]*))\s*\Z"
)


@dataclass(frozen=True)
class Limit:
    """A limit that a figure must keep.

    Attributes:
        figure: One of `FIGURES`.
        below: Whether the figure must be below ``value``. False: above it.
        value: The limit in requests per second, milliseconds, as a share or in cores.
        text: The limit as it was written.
    """

    figure: str
    below: bool
    value: float
    text: str

    @property
    def equal(self) -> bool:
        """Whether a figure of just ``value`` keeps the limit."""
        return "=" in self.text

    def excess(self, figures: dict[str, float | None]) -> float:
        """Return by how much a result misses the limit, as a share of ``value``; 0 if it keeps the limit."""
        value = figures[self.figure]
        if value is None:
            return 1e9
        over = value - self.value if self.below else self.value - value
        if over == 0 and not self.equal:
            return _LEAST_EXCESS
        return max(0.0, over / (self.value or 1.0))


@dataclass(frozen=True)
class Goal:
    """A figure to maximize or minimize, and limits to keep.

    Attributes:
        text: The goal as it was written.
        figure: The figure, one of `FIGURES`.
        most: Whether the figure is maximized. False: minimized.
        limits: The limits that a result must keep.
    """

    text: str
    figure: str
    most: bool
    limits: tuple[Limit, ...] = ()

    def excess(self, figures: dict[str, float | None]) -> float:
        """Return by how much a result misses the limits, summed over all limits; 0 if it keeps all."""
        return sum(limit.excess(figures) for limit in self.limits)

    def rank(self, figures: dict[str, float | None] | None) -> float:
        """Return a number that is greater for a better result.

        A result that misses a limit, or answered no request, ranks below all that keep the limits, and the lower
        the more it misses. A trial that failed (None) ranks last.
        """
        if figures is None:
            return -1e18
        figure = figures[self.figure]
        if figure is None or not self.reached(figures):
            return -1e9 * (1.0 + min(self.excess(figures), 1e8))
        return figure if self.most else -figure

    def reached(self, figures: dict[str, float | None]) -> bool:
        """Return whether a result answered requests, and keeps all limits."""
        return bool(figures["throughput"]) and not self.excess(figures)


def figures_of(point: dict[str, Any]) -> dict[str, float | None]:
    """Return the figures of a point, as `headrace_observe.bench.measurement.Point.to_dict` gives that."""
    failed = sum(point["failed"].values())
    answered = failed + point["ok"]
    return {
        "throughput": point["throughput_rps"],
        **point["latency_ms"],
        "failed": failed / answered if answered else None,
        "cpu": point["cpu"]["cores"] if "cpu" in point else None,
    }


def read_goal(text: str) -> Goal:
    """Read a goal: ``max F`` or ``min F``, and limits ``F < NUMBER UNIT`` or ``F > ...``, between ``;``.

    Raises:
        InputError: The text is no goal. The error shows the place, and the known figures.
    """
    target: tuple[str, bool] | None = None
    limits: list[Limit] = []
    start = 0
    for clause in text.split(";"):
        place = start + len(clause) - len(clause.lstrip())
        start += len(clause) + 1
        if not clause.strip():
            continue
        match = _CLAUSE.match(clause)
        if match is None:
            _refuse(
                text, place, len(clause.strip()), "expected 'max FIGURE', 'min FIGURE' or a limit"
            )
        name = match["of"] or match["figure"]
        at = start - len(clause) - 1 + match.start("of" if match["of"] else "figure")
        if name not in FIGURES:
            _refuse(text, at, len(name), f"unknown figure {name!r}. {among(name, FIGURES)}")
        if match["of"]:
            if target is not None:
                _refuse(
                    text,
                    place,
                    len(clause.strip()),
                    "only one figure can be maximized or minimized",
                )
            target = (name, match["way"] == "max")
            continue
        if match["unit"] not in FIGURES[name]:
            units = " or ".join(unit or "none" for unit in FIGURES[name])
            _refuse(text, at, len(clause.strip()), f"the unit of {name} is {units}")
        value = float(match["number"]) * FIGURES[name][match["unit"]]
        limit = Limit(name, match["sign"].startswith("<"), value, clause.strip())
        wrong = _impossible(limit, limits)
        if wrong is not None:
            _refuse(text, at, len(clause.strip()), wrong)
        limits.append(limit)
    if target is None:
        _refuse(
            text,
            0,
            len(text),
            "it has no figure to maximize or minimize, as in 'max throughput' or 'min p99'",
        )
    return Goal(text, *target, tuple(limits))


def _impossible(limit: Limit, before: list[Limit]) -> str | None:
    """Return why no result, or every result, keeps a limit; None if it depends on the result."""
    name, value = limit.figure, limit.value
    if name == "failed" and (value > 1 or (value == 1 and (limit.equal or not limit.below))):
        return "failed is a share of the requests, from 0 to 100%"
    if limit.below and not value and (name != "failed" or not limit.equal):
        hint = "write failed <= 0% for none" if name == "failed" else "it is always above 0"
        return f"{name} cannot be below 0; {hint}"
    if not limit.below and not value and (name != "failed" or limit.equal):
        return f"every result keeps it: {name} is never below 0"
    for other in before:
        least, most = (other, limit) if limit.below else (limit, other)
        if other.figure == name and other.below != limit.below and least.value >= most.value:
            return f"nothing keeps it and {other.text!r}, too"
    return None


def _refuse(text: str, place: int, length: int, why: str) -> NoReturn:
    shown = f"  {text}\n  {' ' * place}{'^' * max(1, length)}"
    known = ", ".join(FIGURES)
    raise InputError(
        f"the goal cannot be read, at column {place + 1}: {why}\n{shown}\n"
        f"  Figures are {known}; latencies take us, ms or s, failed takes %. "
        "An example: max throughput; p99 < 50ms"
    )
