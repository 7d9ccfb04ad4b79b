"""The search for a schedule in which a program fails, the smallest one that fails in the same way, and its text."""

from __future__ import annotations

import linecache
import re
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace_testing.interleavings.lines import files_of
from headrace_testing.interleavings.schedules import Schedule, Schedules
from headrace_testing.interleavings.strategies import Pct, Sizes, Walk, drawn
from headrace_testing.interleavings.world import short

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace_testing.interleavings.lines import Files
    from headrace_testing.interleavings.schedules import Report
    from headrace_testing.interleavings.strategies import Choices
    from headrace_testing.interleavings.world import Note

_FOCUSED = 0.75
"""How many of the schedules have the lines of a file as points; the others have operations alone."""

_AHEAD = 12
"""How many points of the main thread are shown before the first other thread."""


@dataclass
class Fault:
    """A way in which a program fails.

    Attributes:
        verdict: The kind: see `InterleavingError`.
        reason: What was wrong.
        seed: Of the first schedule that failed so. None where no seed made it.
        choices: The choices that lead there, as few as were found.
        stacks: The stacks of all threads.
        files: The files whose lines are points of this schedule, each with the functions that count. None for all.
        interleaving: What each thread did, in order.
        times: How many schedules have failed so.
    """

    verdict: str
    reason: str
    seed: int | None
    choices: Choices
    stacks: str = ""
    files: Files = field(default_factory=dict)
    interleaving: str = ""
    times: int = 0

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> Fault:
        """Return a fault that `as_dict` has noted."""
        return cls(
            **{member.name: noted[member.name] for member in fields(cls) if member.name in noted}
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it, with its text."""
        return {**asdict(self), "text": self.text}

    @property
    def text(self) -> str:
        """All of it, for reading."""
        many = len(self.files) > 1
        lines = f"{len(self.files)} files" if many else "".join(map(short, self.files))
        parts = [
            f"{self.verdict}, seed {self.seed}, {counted(len(self.choices), 'choice')}",
            f"The lines of {lines} are points." if lines else "Operations alone are points.",
            f"{self.reason.rstrip()}\nThreads:\n{self.stacks}\nInterleaving:\n{self.interleaving}",
        ]
        return "\n".join(parts)

    def show(self, report: Report) -> None:
        """Take what a schedule shows."""
        self.verdict, self.reason, self.stacks = report.verdict, report.reason, report.stacks
        self.choices, self.interleaving = report.choices, "\n".join(_shown(report))


def counted(number: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def signature(report: Report) -> str:
    """Return what two schedules have in common that fail in the same way."""
    *_, last = ["", *report.reason.strip().splitlines()]
    return f"{report.verdict}: " + re.sub(r"0x[0-9a-f]+|\d+", "#", last)[:150]


def search(program: Callable[[], object], args: Namespace) -> tuple[int, list[Fault]]:
    """Explore a program in forks of this process; give the number of schedules, and the faults."""
    schedules = Schedules(program, jobs=args.jobs, opcodes=args.opcodes)
    files, until_s = files_of(args.lines), perf_counter() + args.seconds
    faults: dict[str, Fault] = {}
    reports: list[Report] = []
    count = 0
    for kind in (_measuring(files), _drawn(args, files, reports)):
        for schedule, report in schedules.each(kind, until_s):
            count += 1
            if len(reports) < 4:
                reports.append(report)
            if report.verdict != "ok":
                fault = Fault(report.verdict, report.reason, schedule.seed, report.choices)
                fault.files = schedule.files
                faults.setdefault(signature(report), fault).times += 1
                if not args.all:
                    break
        if faults and not args.all:
            break
    for sign, fault in faults.items():
        fails = partial(_fails, schedules, fault.files, sign)
        small = minimise(fails, fault.choices, args.minimise)
        fault.interleaving = "   It does not come again: something in it is not under control."
        if small is not None:
            fault.show(schedules.one(small, fault.files, logs=True))
    return count, [*faults.values()]


def _measuring(files: Files) -> Iterator[Schedule]:
    """Give four schedules that show how long those of the program are."""
    for seed in range(2):
        yield Schedule(partial(Pct, 0, seed, Sizes()), files)
        yield Schedule(partial(Walk, 0.2, seed, Sizes()), files)


def _drawn(args: Namespace, files: Files, reports: Sequence[Report]) -> Iterator[Schedule]:
    """Give schedules of seeds: each has the lines of one file as points, of those that were run, or none."""
    counts: dict[str, list[int]] = {}
    for report in reports:
        for file, new in report.counts.items():
            counts[file] = [*map(max, counts.get(file, new), new)]
    here, counts[""] = counts.get("", [0, 0, 0]), [0, 0, 0]
    interrupts = max((ended.interrupts for ended in reports), default=0)
    focuses: list[tuple[str, Sizes]] = []
    for file, more in sorted(counts.items()):
        points, choices, breaks = (a + b for a, b in zip(here, more, strict=True))
        focuses.append((file, Sizes(points, choices, breaks, here[1], interrupts)))
    for seed in range(args.seed, args.seed + args.schedules):
        die = Random(f"focus {seed}")  # noqa: S311
        focused = len(focuses) > 1 and die.random() < _FOCUSED
        file, sizes = die.choice(focuses[1:]) if focused else focuses[0]
        chosen = {file: files[file]} if file else {}
        yield Schedule(partial(drawn, args.strategy, seed, sizes), chosen, seed)


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


def replay(program: Callable[[], object], args: Namespace, fault: Fault) -> Fault | None:
    """Run the schedule of a fault; give what fails now, if anything does."""
    schedules = Schedules(program, jobs=1, opcodes=args.opcodes)
    fault.show(schedules.one(fault.choices, fault.files, logs=True))
    return None if fault.verdict == "ok" else fault


# The readable interleaving.


def _shown(report: Report) -> Iterator[str]:
    """Give the lines of an interleaving: per stretch of one thread its first and its last points."""
    log = report.log or []
    chosen = {(thread, step) for thread, step, _ in report.choices}
    first = next((place for place, note in enumerate(log) if note.thread), 0)
    stretch: list[Note] = []
    for note in [*log[max(0, first - _AHEAD) :], None]:
        if note is not None and note.what != "switch":
            stretch.append(note)
        elif stretch:
            yield f"   T{stretch[0].thread} {report.names[stretch[0].thread]}"
            lines = [*dict.fromkeys(map(_line, stretch))]
            left = len(lines) - 6
            yield from lines if left < 2 else [*lines[:3], f"      ... {left} more", *lines[-3:]]
            if (stretch[-1].thread, stretch[-1].step) in chosen:
                yield "      -- chosen: another goes on --"
            stretch = []


def _line(note: Note) -> str:
    operation = f"<{note.what}>" if note.what else ""
    if not note.path:
        return f"      {operation}"
    source = linecache.getline(note.path, note.line).strip()[:100]
    return f"      {short(note.path)}:{note.line}".ljust(46) + f" {source}  {operation}".rstrip()
