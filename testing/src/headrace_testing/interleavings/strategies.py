"""Strategies: who makes the choices of a schedule, from a seed or from a list."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from headrace_testing.interleavings.world import CTRL_C, TIME, usual, world

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_testing.interleavings.world import Controlled, Strategy

    Choices = Sequence[tuple[int, int, int]]
    """Choices that are not the usual ones: a thread, its own step, and the thread that goes on, or `TIME`, or `CTRL_C`."""

_SOON_S = 0.5
"""A thread that can run is held up for so many virtual seconds at most."""

_MIX = ("pct:2", "walk:0.1", "pct:3", "walk:0.3", "pct:4", "walk:0.03", "pct:1", "walk:0.01")


class Sizes(NamedTuple):
    """How long the schedules of a program are: the numbers below which points for choices are drawn.

    Attributes:
        points: How many points there are.
        choices: At how many of them several threads could go on.
        breaks: At how many points Ctrl-C could come.
        operations: How many of the choices are no source lines.
        interrupts: How often Ctrl-C may come.
    """

    points: int = 0
    choices: int = 0
    breaks: int = 0
    operations: int = 0
    interrupts: int = 0


def _is_timed(until_s: float = float("inf")) -> bool:
    """Tell whether a thread waits for a time, which comes before ``until_s``."""
    deadlines = [thread.deadline_s for thread in world.living if thread.blocked]
    return any(at is not None and at <= until_s for at in deadlines)


class Replay:
    """Makes the given choices, and the usual ones elsewhere."""

    def __init__(self, choices: Choices) -> None:
        self._choices = {(thread, step): target for thread, step, target in choices}

    def born(self, thread: Controlled) -> None:
        """Do nothing."""

    def event(self, me: Controlled) -> int | None:
        """Return what was chosen, where it is possible."""
        target = self._choices.get((me.number, me.steps))
        if target == CTRL_C:
            return target if world.interrupts and world.all[0].interruptible else None
        return target if target == TIME and _is_timed() else None

    def choose(self, me: Controlled, able: Sequence[Controlled], *, is_line: bool) -> int:
        """Return what was chosen, where it is possible."""
        target = self._choices.get((me.number, me.steps), TIME)
        return target if any(thread.number == target for thread in able) else usual(me, able)


class _Drawn:
    """What the strategies with a seed share: a point at which time may jump, and those at which Ctrl-C comes."""

    def __init__(self, seed: int, sizes: Sizes) -> None:
        self._die = die = Random(seed)  # noqa: S311
        self._points = self._breaks = 0
        self._jump = die.randrange(sizes.points + 2) if die.random() < 0.5 else 0
        self._stops = {die.randrange(sizes.breaks + 2) for _ in range(sizes.interrupts)}

    def born(self, thread: Controlled) -> None:
        """Hear of a new thread."""

    def event(self, me: Controlled) -> int | None:
        """Let time jump, or Ctrl-C come, where that was drawn."""
        self._points += 1
        if world.interrupts and world.all[0].interruptible:
            self._breaks += 1
            if self._breaks in self._stops:
                return CTRL_C
        if self._points != self._jump:
            return None
        if _is_timed(world.now_s + _SOON_S):
            return TIME
        self._jump += 1
        return None


class Walk(_Drawn):
    """At each choice, with a probability, any thread; else the current one goes on."""

    def __init__(self, probability: float, seed: int, sizes: Sizes) -> None:
        super().__init__(seed, sizes)
        self._probability = probability

    def choose(self, me: Controlled, able: Sequence[Controlled], *, is_line: bool) -> int:
        """Draw."""
        if not me.blocked and not me.done and self._die.random() >= self._probability:
            return me.number
        return self._die.choice(able).number


class Pct(_Drawn):
    """Random priorities, and a few points at which the current thread falls behind all others (Burckhardt et al., 2010).

    Half of these points are drawn among operations, half among all, source lines included.
    """

    def __init__(self, depth: int, seed: int, sizes: Sizes) -> None:
        super().__init__(seed, sizes)
        self._passed, self._lowest = [0, 0], 0.0
        self._weights: dict[int, float] = {}
        among = [self._die.randrange(2) for _ in range(depth)]
        most = sizes.choices + 2, sizes.operations + 2
        self._falls = {(number, self._die.randrange(most[number])) for number in among}

    def born(self, thread: Controlled) -> None:
        """Draw its priority."""
        self._weights[thread.number] = 1 + self._die.random()

    def choose(self, me: Controlled, able: Sequence[Controlled], *, is_line: bool) -> int:
        """Return the thread of the highest priority."""
        falls = False
        for kind in (0,) if is_line else (0, 1):
            self._passed[kind] += 1
            falls |= (kind, self._passed[kind]) in self._falls
        if falls and not me.blocked and not me.done:
            self._lowest -= 1
            self._weights[me.number] = self._lowest
        return max(able, key=lambda thread: self._weights[thread.number]).number


def drawn(text: str, seed: int, sizes: Sizes) -> Strategy:
    """Return the strategy of a seed.

    Args:
        text: ``pct:DEPTH``, ``walk:PROBABILITY``, or ``mix``: of these, by the seed.
        seed: The seed.
        sizes: How long the schedules of the program are.

    Raises:
        ValueError: There is no such strategy.
    """
    name, _, value = (_MIX[seed % len(_MIX)] if text == "mix" else text).partition(":")
    if name == "pct":
        return Pct(int(value or 3), seed, sizes)
    if name == "walk":
        return Walk(float(value or 0.2), seed, sizes)
    raise ValueError(f"no strategy is called {text!r}: it is mix, pct:DEPTH or walk:PROBABILITY")
