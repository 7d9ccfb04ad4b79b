"""Strategies: who makes the choices of a schedule, from a seed, from a list, or one after the other."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from headrace_testing.interleavings.world import CTRL_C, TIME, usual, world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
        operations: How many of these are no source lines.
        breaks: At how many points Ctrl-C could come.
        interrupts: How often it may come.
    """

    points: int = 2
    choices: int = 2
    operations: int = 2
    breaks: int = 2
    interrupts: int = 0


class Decision(NamedTuple):
    """A choice, and what else could have been chosen; ``before`` is the number of unusual choices before it."""

    thread: int
    step: int
    could_stay: bool
    target: int
    able: list[int]
    before: int


def _is_timed(until_s: float | None = None) -> bool:
    """Tell whether a thread waits for a time, which comes before ``until_s``."""
    deadlines = [one.deadline_s for one in world.living if one.blocked]
    return any(at is not None and (until_s is None or at <= until_s) for at in deadlines)


class Replay:
    """Makes the given choices, and the usual ones elsewhere."""

    def __init__(self, choices: Choices) -> None:
        self._choices = {(thread, step): target for thread, step, target in choices}
        self.decisions: list[Decision] = []

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
        numbers = [one.number for one in able]
        target = self._choices.get((me.number, me.steps), TIME)
        if target not in numbers:
            target = usual(me, able)
        could_stay = not me.blocked and not me.done
        decision = Decision(me.number, me.steps, could_stay, target, numbers, len(world.changes))
        self.decisions.append(decision)
        return target


class _Drawn:
    """What the strategies with a seed share: the points at which time jumps, and those at which Ctrl-C comes."""

    def __init__(self, seed: int, sizes: Sizes, jumps: int) -> None:
        self._die = die = Random(seed)  # noqa: S311
        self._points = self._breaks = self.operations = 0
        self._jumps = {die.randrange(sizes.points) for _ in range(die.randint(0, jumps))}
        self._stops = {die.randrange(sizes.breaks) for _ in range(sizes.interrupts)}
        self.decisions: list[Decision] = []

    def born(self, thread: Controlled) -> None:
        """Hear of a new thread."""

    def event(self, me: Controlled) -> int | None:
        """Let time jump, or Ctrl-C come, where that was drawn."""
        self._points += 1
        jumps = self._points in self._jumps
        if jumps and not _is_timed(world.now_s + _SOON_S):
            self._jumps.add(self._points + 1)  # a little later
            return None
        if world.interrupts and world.all[0].interruptible:
            self._breaks += 1
            if self._breaks in self._stops:
                return CTRL_C
        return TIME if jumps else None


class Walk(_Drawn):
    """At each choice, with a probability, any thread; else the current one goes on."""

    def __init__(self, probability: float, seed: int, sizes: Sizes, jumps: int) -> None:
        super().__init__(seed, sizes, jumps)
        self._probability = probability

    def choose(self, me: Controlled, able: Sequence[Controlled], *, is_line: bool) -> int:
        """Draw."""
        self.operations += not is_line
        if not me.blocked and not me.done and self._die.random() >= self._probability:
            return me.number
        return self._die.choice(able).number


class Pct(_Drawn):
    """Random priorities, and a few points at which the current thread falls behind all others (Burckhardt et al., 2010).

    Half of these points are drawn among operations, half among all, source lines included.
    """

    def __init__(self, depth: int, seed: int, sizes: Sizes, jumps: int) -> None:
        super().__init__(seed, sizes, jumps)
        self._choice, self._lowest = 0, 0.0
        self._weights: dict[int, float] = {}
        self._falls: set[tuple[bool, int]] = set()
        for _ in range(depth):
            any_point = self._die.random() < 0.5
            most = sizes.choices if any_point else sizes.operations
            self._falls.add((any_point, self._die.randrange(most)))

    def born(self, thread: Controlled) -> None:
        """Draw its priority."""
        self._weights[thread.number] = 1 + self._die.random()

    def choose(self, me: Controlled, able: Sequence[Controlled], *, is_line: bool) -> int:
        """Return the thread of the highest priority."""
        self._choice += 1
        self.operations += not is_line
        falls = (True, self._choice) in self._falls
        falls |= not is_line and (False, self.operations) in self._falls
        if falls and not me.blocked and not me.done:
            self._lowest -= 1
            self._weights[me.number] = self._lowest
        return max(able, key=lambda one: self._weights[one.number]).number


class Bounded:
    """All schedules with few preemptions: first those with none, then those with one, and so on."""

    def __init__(self, bound: int) -> None:
        self._waiting: list[list[list[tuple[int, int, int]]]] = [[] for _ in range(bound + 1)]
        self._waiting[0].append([])
        self._level = 0

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        """Give the choices of one schedule after the other; `learn` comes between."""
        while any(self._waiting):
            self._level = next(level for level, some in enumerate(self._waiting) if some)
            yield self._waiting[self._level].pop()

    def learn(self, given: Choices, made: Choices, decisions: Sequence[Decision]) -> None:
        """Note which schedules follow from one that has run."""
        for one in decisions:
            if one.before < len(given):
                continue
            cost = self._level + one.could_stay
            for other in one.able:
                if other != one.target and cost < len(self._waiting):
                    choices = [*made[: one.before], (one.thread, one.step, other)]
                    self._waiting[cost].append(choices)


def drawn(text: str, sizes: Sizes, jumps: int) -> Callable[[int], Strategy]:
    """Return what makes a strategy of a seed.

    Args:
        text: ``pct:DEPTH``, ``walk:PROBABILITY``, or ``mix``: of these, by the seed.
        sizes: How long the schedules of the program are.
        jumps: How often time may jump at most although threads can run.

    Raises:
        ValueError: There is no such strategy.
    """
    name, _, value = text.partition(":")
    if name == "pct":
        return lambda seed: Pct(int(value or 3), seed, sizes, jumps)
    if name == "walk":
        return lambda seed: Walk(float(value or 0.2), seed, sizes, jumps)
    if name == "mix":
        mixed = [drawn(one, sizes, jumps) for one in _MIX]
        return lambda seed: mixed[seed % len(mixed)](seed)
    known = "mix, pct:DEPTH, walk:PROBABILITY or bounded:PREEMPTIONS"
    raise ValueError(f"no strategy is called {text!r}: it is {known}")
