"""The search for a schedule in which a program fails, the smallest one that fails in the same way, and its text."""

from __future__ import annotations

import linecache
import re
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace_testing.interleavings.lines import files_of
from headrace_testing.interleavings.schedules import Report, Schedule, Schedules
from headrace_testing.interleavings.strategies import Bounded, Pct, Replay, Sizes, Walk, drawn
from headrace_testing.interleavings.world import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace_testing.interleavings.lines import Files
    from headrace_testing.interleavings.strategies import Choices
    from headrace_testing.interleavings.world import Note

_FOCUSED = 0.75
"""How many of the schedules have the lines of a file as points; the others have operations alone."""

_AHEAD = 12
"""How many points of the main thread are shown before the first other thread."""


@dataclass
class Settings:
    """How a program is explored; see ``--help``."""

    schedules: int = 200
    seconds: float = inf
    seed: int = 0
    strategy: str = "mix"
    lines: list[str] = field(default_factory=list)
    opcodes: bool = False
    jumps: int = 1
    jobs: int = 1
    all: bool = False
    minimise: float = 20.0


@dataclass
class Fault:
    """A way in which a program fails.

    Attributes:
        verdict: The kind: ``broken promise``, ``deadlock``, ``hang``, ``thread died``, ``program raised``, ``no end``, ``stuck``.
        reason: What was wrong.
        seed: Of the first schedule that failed so; None where no seed made it.
        choices: The choices that lead there, as few as were found.
        stacks: The stacks of all threads.
        files: The files whose lines are points of this schedule, each with the functions that count, if not all do.
        interleaving: What each thread did, in order.
        times: How many schedules have failed so.
    """

    verdict: str
    reason: str
    seed: int | None
    choices: Choices
    stacks: str
    files: dict[str, list[str]] = field(default_factory=dict)
    interleaving: str = ""
    times: int = 0

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> Fault:
        """Return a fault that `Explored.as_dict` has noted."""
        return cls(**{one.name: noted[one.name] for one in fields(cls) if one.name in noted})

    @property
    def chosen_files(self) -> Files:
        """The files as `lines.Lines` takes them."""
        return {path: set(names) or None for path, names in self.files.items()}

    @property
    def text(self) -> str:
        """All of it, for reading."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        lines = f", lines of {len(self.files)} files" if self.files else ""
        if len(self.files) == 1:
            lines = f", lines of {short(next(iter(self.files)))}"
        choices = f"{len(self.choices)} choice{'s' if len(self.choices) != 1 else ''}"
        parts = [
            f"{self.verdict}{seed}{lines}, {choices}",
            self.reason.rstrip(),
            "Threads:",
            self.stacks,
        ]
        return "\n".join([*parts, "Interleaving:", self.interleaving])


@dataclass
class Explored:
    """What an exploration has found."""

    program: str
    schedules: int
    seconds: float
    faults: list[Fault]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it, each fault with its text."""
        faults = [{**asdict(one), "text": one.text} for one in self.faults]
        return {**asdict(self), "faults": faults}


def signature(report: Report) -> str:
    """Return what two schedules have in common that fail in the same way."""
    *_, last = ["", *report.reason.strip().splitlines()]
    return f"{report.verdict}: " + re.sub(r"0x[0-9a-f]+|\d+", "#", last)[:150]


def explore_here(program: Callable[[], object], name: str, settings: Settings) -> Explored:
    """Explore a program in forks of this process, which must have called `standins.install` before it has loaded it."""
    schedules = Schedules(program, jobs=settings.jobs, opcodes=settings.opcodes)
    began_s = perf_counter()
    until_s = began_s + settings.seconds
    found: dict[str, Fault] = {}
    measured = list(schedules.each(_measuring(files_of(settings.lines)), until_s))
    count = len(measured)
    for schedule, report in measured:
        _note(found, schedule, report)
    search = _Bounded(settings) if settings.strategy.startswith("bounded") else _Drawn(settings)
    search.measure([report for _, report in measured])
    if not found or settings.all:
        for schedule, report in schedules.each(search, until_s):
            count += 1
            search.learn(schedule, report)
            if _note(found, schedule, report) and not settings.all:
                break
    seconds = perf_counter() - began_s
    for sign, fault in found.items():
        _explain(fault, sign, schedules, settings.minimise)
    return Explored(name, count, seconds, [*found.values()])


def _note(found: dict[str, Fault], schedule: Schedule, report: Report) -> bool:
    """Note a schedule that has failed; tell whether it has."""
    if report.verdict == "ok":
        return False
    fault = Fault(report.verdict, report.reason, schedule.seed, report.choices, report.stacks)
    fault.files = {path: sorted(names or ()) for path, names in schedule.files.items()}
    found.setdefault(signature(report), fault).times += 1
    return True


def _measuring(files: Files) -> Iterator[Schedule]:
    """Give a few schedules that show how long those of the program are."""
    for seed in range(2):
        yield Schedule(partial(Pct, 0, seed, Sizes(), 0), files)
        yield Schedule(partial(Walk, 0.2, seed, Sizes(), 0), files)


class _Drawn:
    """Schedules of seeds: each has the lines of one file as points, or none."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files = files_of(settings.lines)

    def measure(self, reports: Sequence[Report]) -> None:
        """Take the files that count, and how long schedules are with each."""
        counts: dict[str, list[int]] = {}
        for report in reports:
            for file, new in report.counts.items():
                counts[file] = list(map(max, counts.get(file, new), new))
        here = counts.pop("", [0, 0, 0])
        self._focuses: list[tuple[str, Sizes]] = []
        interrupts = max((one.interrupts for one in reports), default=0)
        for file, more in sorted({"": [0, 0, 0], **counts}.items()):
            points, choices, breaks = (2 + a + b for a, b in zip(here, more, strict=True))
            sizes = Sizes(points, choices, 2 + here[1], breaks, interrupts)
            self._focuses.append((file, sizes))

    def learn(self, schedule: Schedule, report: Report) -> None:
        """Learn nothing."""

    def __iter__(self) -> Iterator[Schedule]:
        """Give the schedules."""
        settings = self._settings
        (nothing, *focuses) = self._focuses
        for seed in range(settings.seed, settings.seed + settings.schedules):
            die = Random(f"focus {seed}")  # noqa: S311
            focused = focuses and die.random() < _FOCUSED
            file, sizes = die.choice(focuses) if focused else nothing
            make = drawn(settings.strategy, sizes, settings.jumps)
            files = {file: self._files[file]} if file else {}
            yield Schedule(partial(make, seed), files, seed)


class _Bounded:
    """All schedules with few preemptions, at the points of all files."""

    def __init__(self, settings: Settings) -> None:
        self._files, self._most = files_of(settings.lines), settings.schedules
        self._bounded = Bounded(int(settings.strategy.partition(":")[2] or 2))

    def measure(self, reports: Sequence[Report]) -> None:
        """Measure nothing."""

    def learn(self, schedule: Schedule, report: Report) -> None:
        """Note which schedules follow."""
        self._bounded.learn(schedule.given, report.choices, report.decisions)

    def __iter__(self) -> Iterator[Schedule]:
        """Give the schedules; `learn` comes between."""
        for choices in islice(self._bounded, self._most):
            yield Schedule(partial(Replay, choices), self._files, given=choices)


def _explain(fault: Fault, sign: str, schedules: Schedules, seconds: float) -> None:
    """Find the fewest choices of a fault, and what the threads do."""
    fails = partial(_fails, schedules, fault.chosen_files, sign)
    small = minimise(fails, fault.choices, seconds)
    if small is None:
        fault.interleaving = "   It does not come again: something in it is not under control."
        return
    again = schedules.one(small, fault.chosen_files, logs=True)
    fault.choices, fault.reason, fault.stacks = small, again.reason, again.stacks
    fault.interleaving = "\n".join(_shown(again))


def _fails(schedules: Schedules, files: Files, sign: str, choices: Choices) -> Choices | None:
    """Run a schedule; give its choices if it fails in the same way."""
    again = schedules.one(choices, files)
    return again.choices if signature(again) == sign else None


def minimise(
    fails: Callable[[Choices], Choices | None], choices: Choices, seconds: float
) -> Choices | None:
    """Leave out choices as long as the program fails in the same way; None where it does not fail again."""
    until_s = perf_counter() + seconds
    small = fails(choices)
    size = 0 if small is None else max(1, len(small) // 2)
    while small is not None and size and perf_counter() < until_s:
        at, before = 0, len(small)
        while at < len(small) and perf_counter() < until_s:
            fewer = fails([*small[:at], *small[at + size :]])
            if fewer is not None and len(fewer) < len(small):
                small = fewer
            else:
                at += size
        size = size // 2 if size > 1 else int(len(small) < before)
    return small


def replay(program: Callable[[], object], name: str, settings: Settings, again: Fault) -> Explored:
    """Run the schedule of a fault."""
    schedules = Schedules(program, jobs=1, opcodes=settings.opcodes)
    report = schedules.one(again.choices, again.chosen_files, logs=True)
    found = Explored(name, 1, 0.0, [])
    if report.verdict != "ok":
        fault = replace(again, verdict=report.verdict, reason=report.reason, stacks=report.stacks)
        found.faults.append(replace(fault, interleaving="\n".join(_shown(report)), times=1))
    return found


# The readable interleaving.


def _shown(report: Report) -> Iterator[str]:
    """Give the lines of an interleaving: per stretch of one thread its first and its last points."""
    log = report.log or []
    chosen = {(thread, step) for thread, step, _ in report.choices}
    first = next((place for place, note in enumerate(log) if note.thread), 0)
    begin = max(0, first - _AHEAD)
    if begin:
        yield f"   ({begin} points of the main thread alone)"
    stretch: list[Note] = []
    for note in [*log[begin:], None]:
        if note is not None and note.what != "switch":
            stretch.append(note)
        elif stretch:
            yield f"   T{stretch[0].thread} {report.names[stretch[0].thread]}"
            yield from _stretch(stretch)
            if (stretch[-1].thread, stretch[-1].step) in chosen:
                yield "      -- chosen: another goes on --"
            stretch = []


def _stretch(notes: Sequence[Note]) -> list[str]:
    lines: list[str] = []
    for note in notes:
        what = f"<{note.what}>" if note.what else ""
        text = f"      {what}"
        if note.path:
            source = linecache.getline(note.path, note.line).strip()[:100]
            text = f"      {short(note.path)}:{note.line}".ljust(46) + f" {source}  {what}".rstrip()
        if not lines or lines[-1] != text:
            lines.append(text)
    left = len(lines) - 6
    return lines if left <= 1 else [*lines[:3], f"      ... {left} more", *lines[-3:]]


def name_of(path: str, function: str) -> str:
    """Return how a program is called."""
    return f"{Path(path).name}:{function}"
