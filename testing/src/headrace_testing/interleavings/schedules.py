"""Schedules, each in a forked process of its own: so nothing is left of the one before."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from headrace_testing.interleavings.lines import Lines
from headrace_testing.interleavings.standins import begin
from headrace_testing.interleavings.strategies import Replay
from headrace_testing.interleavings.world import world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace_testing.interleavings.lines import Files
    from headrace_testing.interleavings.strategies import Choices
    from headrace_testing.interleavings.world import Note, Strategy

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
        counts: How long it was, by file. See `World.counts`.
        interrupts: How often Ctrl-C could have come.
        log: All points, if they were wanted.
        names: The names of the threads.
    """

    verdict: str
    reason: str
    stacks: str = ""
    choices: Choices = ()
    counts: dict[str, list[int]] = field(default_factory=dict)
    interrupts: int = 0
    log: list[Note] | None = None
    names: list[str] = field(default_factory=list)


class Schedule(NamedTuple):
    """A schedule that is to run.

    Attributes:
        strategy: Makes its strategy.
        files: The files whose lines are points.
        seed: Its seed. None where no seed decides.
        logs: Whether its points are wanted.
    """

    strategy: Callable[[], Strategy]
    files: Files
    seed: int | None = None
    logs: bool = False


class Schedules:
    """Runs schedules of a program.

    Args:
        program: The program.
        jobs: How many schedules run at a time.
        opcodes: Whether each instruction of the files of a schedule is a point.
    """

    def __init__(self, program: Callable[[], object], *, jobs: int, opcodes: bool) -> None:
        self._program, self._jobs, self._opcodes = program, jobs, opcodes

    def each(
        self, schedules: Iterable[Schedule], until_s: float
    ) -> Iterator[tuple[Schedule, Report]]:
        """Run schedules, and give their reports in order, until ``until_s`` of `time.perf_counter`."""
        running: deque[tuple[Schedule, int, int]] = deque()
        left = iter(schedules)
        try:
            while True:
                while len(running) < self._jobs and perf_counter() < until_s:
                    following = next(left, None)
                    if following is None:
                        break
                    running.append((following, *self._start(following)))
                if not running:
                    return
                yield running[0][0], _ended(*running.popleft()[1:])
        finally:
            for _, pid, out in running:
                os.kill(pid, signal.SIGKILL)
                _ended(pid, out)

    def one(self, choices: Choices, files: Files, *, logs: bool = False) -> Report:
        """Run the schedule of these choices."""
        schedule = Schedule(partial(Replay, choices), files, logs=logs)
        return _ended(*self._start(schedule))

    def _start(self, schedule: Schedule) -> tuple[int, int]:
        """Start a schedule; give its process, and the descriptor that its report comes from."""
        out, into = os.pipe()
        pid = os.fork()
        if not pid:
            self._run(schedule, into)
        os.close(into)
        return pid, out

    def _run(self, schedule: Schedule, into: int) -> NoReturn:
        """Run a schedule, and end this process."""
        faulthandler.dump_traceback_later(STUCK_S, exit=True)

        def report(verdict: str, reason: str, stacks: str) -> None:
            result = Report(verdict, reason, stacks, world.changes, world.counts)
            result.interrupts, result.log = world.most_interrupts, world.log
            result.names = [thread.name for thread in world.all]
            with os.fdopen(into, "wb") as pipe:
                pickle.dump(result, pipe)

        begin()
        world.log = [] if schedule.logs else None
        if schedule.files:
            world.tracer = Lines(schedule.files, opcodes=self._opcodes)
        world.run(self._program, schedule.strategy(), report)


def _ended(pid: int, out: int) -> Report:
    """Wait for the end of a schedule."""
    with os.fdopen(out, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if data:
        report: Report = pickle.loads(data)  # noqa: S301 - of a process of our own
        return report
    problem = "the process ended without a report: something waits outside of control"
    return Report("stuck", f"{problem} (status {status})")
