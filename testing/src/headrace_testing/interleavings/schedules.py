"""Schedules, each in a forked process of its own: so nothing is left of the one before."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace_testing.interleavings.lines import Lines
from headrace_testing.interleavings.standins import begin
from headrace_testing.interleavings.strategies import Replay
from headrace_testing.interleavings.world import world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace_testing.interleavings.lines import Files
    from headrace_testing.interleavings.strategies import Choices, Decision
    from headrace_testing.interleavings.world import Note

STUCK_S = 30.0
"""A schedule that takes longer, in real seconds, waits for something outside of control."""


@dataclass
class Report:
    """What became of a schedule.

    Attributes:
        verdict: ``ok``, or the kind of fault.
        reason: What was wrong.
        stacks: The stacks of all threads at that moment.
        choices: The choices that were not the usual ones: they give the same schedule again.
        counts: How long it was, by file; see `World.counts`.
        interrupts: How often Ctrl-C could have come.
        log: All points, if they were wanted.
        names: The names of the threads.
    """

    verdict: str
    reason: str
    stacks: str = ""
    choices: list[tuple[int, int, int]] = field(default_factory=list)
    counts: dict[str, list[int]] = field(default_factory=dict)
    interrupts: int = 0
    log: list[Note] | None = None
    names: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)


@dataclass
class Schedule:
    """A schedule that is to run.

    Attributes:
        strategy: Makes its strategy.
        files: The files whose lines are points.
        seed: Its seed; None where no seed decides.
        given: Its choices, where they are given.
        logs: Whether its points are wanted.
    """

    strategy: Callable[[], Any]
    files: Files = field(default_factory=dict)
    seed: int | None = None
    given: Choices = ()
    logs: bool = False


@dataclass
class _Running:
    schedule: Schedule
    pid: int
    began_s: float
    chunks: list[bytes] = field(default_factory=list)


class Schedules:
    """Runs schedules of a program.

    Args:
        program: The program.
        jobs: How many schedules run at a time.
        opcodes: Whether each instruction of the files of a schedule is a point.
    """

    def __init__(self, program: Callable[[], object], *, jobs: int, opcodes: bool) -> None:
        self._program, self._jobs, self._opcodes = program, jobs, opcodes
        self._running: dict[int, _Running] = {}  # by the descriptor that its report comes from

    def each(
        self, schedules: Iterable[Schedule], until_s: float
    ) -> Iterator[tuple[Schedule, Report]]:
        """Run schedules until there are no more, or ``until_s`` of `time.perf_counter`; those that run then are ended."""
        left = iter(schedules)
        try:
            while True:
                while len(self._running) < self._jobs:
                    following = next(left, None) if perf_counter() < until_s else None
                    if following is None:
                        break
                    self._start(following)
                if not self._running:
                    return
                yield self._next()
        finally:
            for one in self._running.values():
                os.kill(one.pid, signal.SIGKILL)
            while self._running:
                self._next()

    def one(self, choices: Choices, files: Files, *, logs: bool = False) -> Report:
        """Run the schedule of these choices."""
        schedule = Schedule(partial(Replay, choices), files, logs=logs)
        ((_, report),) = self.each([schedule], float("inf"))
        return report

    def _start(self, schedule: Schedule) -> None:
        out, into = os.pipe()
        pid = os.fork()
        if pid:
            os.close(into)
            self._running[out] = _Running(schedule, pid, perf_counter())
            return
        os.close(out)
        strategy = schedule.strategy()

        def report(verdict: str, reason: str, stacks: str) -> None:
            found = Report(verdict, reason, stacks, world.changes, log=world.log)
            found.names = [one.name for one in world.all]
            found.decisions = strategy.decisions
            found.counts, found.interrupts = world.counts, world.most_interrupts
            data = pickle.dumps(found)
            while data:
                data = data[os.write(into, data) :]

        begin()
        world.log = [] if schedule.logs else None
        if schedule.files:
            world.tracer = Lines(schedule.files, opcodes=self._opcodes)
        world.run(self._program, strategy, report)

    def _next(self) -> tuple[Schedule, Report]:
        """Wait for the end of a schedule."""
        while True:
            for out in select.select([*self._running], [], [], 1.0)[0]:
                data = os.read(out, 1 << 20)
                if not data:
                    return self._ended(out)
                self._running[out].chunks.append(data)
            for one in self._running.values():
                if perf_counter() - one.began_s > STUCK_S:
                    os.kill(one.pid, signal.SIGABRT)  # faulthandler prints where it is

    def _ended(self, out: int) -> tuple[Schedule, Report]:
        one = self._running.pop(out)
        os.close(out)
        _, status = os.waitpid(one.pid, 0)
        if one.chunks:
            report: Report = pickle.loads(b"".join(one.chunks))  # noqa: S301 - a process of our own
            return one.schedule, report
        what = f"the process ended with status {status}, and told nothing: something waits outside of control"
        sys.stderr.flush()
        return one.schedule, Report("stuck", what)
