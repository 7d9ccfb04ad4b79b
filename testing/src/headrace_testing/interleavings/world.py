"""The controlled world: exactly one thread runs at a time, time is virtual, and every switch is a choice.

A thread gives others the chance to run at *points* only: at every operation on a lock, a queue, a thread or a clock, and at
each source line of chosen files. At a point the strategy says which thread goes on. It may also let time jump, or interrupt
the main thread. The threads are real. Each waits on a lock of its own, and the one that runs decides which is next.
"""

from __future__ import annotations

import _thread
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

TIME, CTRL_C, IDLE = -1, -2, -3
"""What may come instead of a thread: a jump of time, an interrupt, the waking of those who wait until nobody can run."""

BEGIN_S = 1000.0
TOGETHER_S = 0.001
"""What is due so soon after another time is due together with it."""

HORIZON_S = 90.0
"""Virtual seconds after which a schedule counts as hung."""

MOST_POINTS = 300_000

INTERRUPTIBLE = ("release", "after put", "start thread", "thread started", "after a call")
"""The points at which CPython raises Ctrl-C, besides waits: as a call into C returns, as a function begins, in a loop."""

real_lock, real_ident = _thread.allocate_lock, _thread.get_ident
HIDDEN = (str(Path(__file__).parent) + os.sep, threading.__file__, queue.__file__)
"""The files that no stack and no interleaving shows."""


class Controlled:
    """A thread under control.

    Attributes:
        number: Its place among all threads of the schedule. The main thread is 0.
        blocked: Whether it cannot go on. ``waits`` says for what.
        deadline_s: When it gives up its wait. None for never.
        late: Whether the deadline came first.
        steps: How many points it has passed.
        ended: What is called when it ends.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number, self.ident, self.name = number, number + 1, name
        self.baton = real_lock()
        self.baton.acquire()
        self.blocked = self.late = self.done = self.interrupted = self.interruptible = False
        self.deadline_s: float | None = None
        self.waits = ""
        self.steps = self.real_ident = 0
        self.ended: list[Callable[[], object]] = []


class Strategy(Protocol):
    """Who makes the choices of a schedule."""

    def born(self, thread: Controlled) -> None:
        """Hear of a new thread."""

    def event(self, me: Controlled) -> int | None:
        """Return `TIME` or `CTRL_C` if it is to come here."""

    def choose(self, me: Controlled, able: Sequence[Controlled], *, is_line: bool) -> int:
        """Return the number of the thread that goes on; ``is_line``: the point is one of a source line."""


class Tracer(Protocol):
    """A trace function."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        """See `sys.settrace`."""

    def begin(self, frame: FrameType | None) -> None:
        """Trace the current thread from here on, with a frame and all that have called it."""

    def forget(self) -> None:
        """Forget all frames."""


class Note(NamedTuple):
    """A point, for the readable interleaving; ``what`` is empty for a source line."""

    thread: int
    step: int
    what: str
    path: str = ""
    line: int = 0


def usual(me: Controlled, able: Sequence[Controlled]) -> int:
    """Return what happens where nobody chooses: the thread goes on, else the next one in turn, else time jumps."""
    if not me.blocked and not me.done:
        return me.number
    if not able:
        return TIME
    return min(
        (thread.number for thread in able if thread.number > me.number), default=able[0].number
    )


class World:
    """All that a schedule has.

    Attributes:
        runs: Whether a schedule runs. Outside of one, the main thread is alone and nothing waits.
        now_s: The virtual time.
        all: The threads, ended ones as well. ``living`` those that have not ended.
        current: The thread that runs.
        changes: The choices that were not the usual ones, each as thread, its own step, target.
        log: The points that were passed. None where nobody wants to read them.
        idlers: The threads that wait until no other one can run.
        interrupts: How often Ctrl-C may still come.
        tracer: The trace function that makes source lines points.
        counts: By file, and under "" for operations, how many points there were, how many of these were choices, and at how many
            Ctrl-C could have come.
        starting: Who waits for a thread that just begins, and that thread once it is known.
    """

    def __init__(self) -> None:
        self.runs = False
        self.now_s = BEGIN_S
        main = Controlled(0, "main")
        self.all, self.living, self.current = [main], [main], main
        self.changes: list[tuple[int, int, int]] = []
        self.log: list[Note] | None = None
        self.idlers: list[Controlled] = []
        self.interrupts = self.most_interrupts = 0
        self.counts: dict[str, list[int]] = {"": [0, 0, 0]}
        self.points = 0
        self.tracer: Tracer | None = None
        self.starting: tuple[Controlled, Controlled | None] | None = None
        self.strategy: Strategy
        self.report: Callable[[str, str, str], object]

    # Choices.

    def point(self, operation: str, file: str = "") -> None:
        """Let another thread go on here, if the strategy says so; ``file`` is that of a source line."""
        if not self.runs:
            return
        me = self.current
        me.interruptible = me.blocked or operation in INTERRUPTIBLE
        while True:
            self._count(me, operation)
            able = [thread for thread in self.living if not thread.blocked]
            target = self._target(me, able, file)
            if self.starting is None and target not in (IDLE, usual(me, able)):
                self.changes.append((me.number, me.steps, target))
            if target >= 0:
                self._switch(me, self.all[target])
                break
            if target == TIME:
                self._jump(able)
            elif target == IDLE:
                self.wake(self.idlers)
            elif self._interrupt() is me:
                break
        if me.interrupted:
            me.interrupted = False
            raise KeyboardInterrupt
        if self.tracer is not None and len(self.all) > 1 and not me.done and not sys.gettrace():
            sys.settrace(self.tracer)  # an interrupt raised in a trace function has ended tracing

    def _count(self, me: Controlled, operation: str) -> None:
        me.steps += 1
        self.points += 1
        if self.log is not None and self.starting is None:
            frame: FrameType | None = sys._getframe(2)
            while frame is not None and frame.f_code.co_filename.startswith(HIDDEN):
                frame = frame.f_back
            at = (frame.f_code.co_filename, frame.f_lineno or 0) if frame else ("", 0)
            self.log.append(Note(me.number, me.steps, operation, *at))
        if self.points > MOST_POINTS:
            self.end("no end", f"more than {MOST_POINTS} points: a loop that never sleeps")

    def _target(self, me: Controlled, able: Sequence[Controlled], file: str) -> int:
        if (
            self.starting is not None
        ):  # `Thread.start` waits until the new thread has begun: no choice there
            starter, begun = self.starting
            return (begun or starter).number if starter.blocked else starter.number
        if len(self.all) > 1 or self.interrupts:
            counts = self.counts.setdefault(file, [0, 0, 0])
            counts[0] += 1
            counts[1] += len(able) > 1
            counts[2] += self.interrupts > 0 and self.all[0].interruptible
            event = self.strategy.event(me)
            if event is not None:
                return event
        if len(able) > 1:
            return self.strategy.choose(me, able, is_line=bool(file))
        if able:
            return able[0].number
        return IDLE if self.idlers else TIME

    def _switch(self, me: Controlled, other: Controlled) -> None:
        if other is me:
            return
        self.current = other
        if self.log is not None and self.starting is None:
            self.log.append(Note(other.number, other.steps, "switch"))
        other.baton.release()
        if not me.done:
            me.baton.acquire()

    def _interrupt(self) -> Controlled:
        """Let Ctrl-C come in the main thread, which is returned."""
        main = self.all[0]
        self.interrupts -= 1
        main.interrupted, main.blocked = True, False
        return main

    def _jump(self, able: Sequence[Controlled]) -> None:
        """Let the time jump to the next deadline."""
        timed = [
            thread for thread in self.living if thread.blocked and thread.deadline_s is not None
        ]
        if timed:
            self.now_s = (
                max(self.now_s, min(thread.deadline_s or 0.0 for thread in timed)) + TOGETHER_S
            )
        elif not able:
            self.end("deadlock", "no thread can run, and none waits for time")
        for thread in timed:
            if (thread.deadline_s or 0.0) <= self.now_s:
                thread.blocked, thread.late = False, True
        if self.now_s > BEGIN_S + HORIZON_S:
            self.end("hang", f"not over after {HORIZON_S:g} virtual seconds")

    # Waiting.

    def deadline(self, timeout_s: float | None) -> float | None:
        """Return when a wait ends that begins now; None or a negative timeout is for ever."""
        return None if timeout_s is None or timeout_s < 0 else self.now_s + timeout_s

    def wait(self, waiters: list[Controlled], operation: str, deadline_s: float | None) -> bool:
        """Block the current thread until it is woken; False when its deadline came first."""
        if not self.runs:
            raise RuntimeError(f"a {operation} would be waited for before the program runs")
        me = self.current
        me.blocked, me.late, me.deadline_s, me.waits = True, False, deadline_s, operation
        waiters.append(me)
        try:
            self.point(operation)
        finally:
            waiters.remove(me)
            late, me.late, me.blocked, me.deadline_s = me.late, False, False, None
        return not late

    def wake(self, waiters: Sequence[Controlled]) -> None:
        """Let threads go on; who gets nothing waits again."""
        for thread in waiters:
            thread.blocked = False

    def block_again(self, waiters: Sequence[Controlled]) -> None:
        """Block threads again that were woken in vain, so that no choice is wasted on them."""
        for thread in waiters:
            if not thread.late and not thread.interrupted:
                thread.blocked = True

    # Threads.

    def begin_thread(self, name: str) -> Controlled:
        """Add a thread."""
        if not self.runs:
            raise RuntimeError("a thread would be started before the program runs")
        thread = Controlled(len(self.all), name)
        self.all.append(thread)
        self.living.append(thread)
        self.strategy.born(thread)
        if self.starting is not None:
            self.starting = (self.starting[0], thread)
        return thread

    def end_thread(self, thread: Controlled) -> None:
        """Let the current thread end, and another one go on."""
        for tell in thread.ended:
            tell()
        thread.done = thread.blocked = True
        self.living.remove(thread)
        if self.log is not None:
            self.log.append(Note(thread.number, thread.steps, "thread ends"))
        self.point("end")

    # A schedule.

    def run(
        self,
        program: Callable[[], object],
        strategy: Strategy,
        report: Callable[[str, str, str], object],
    ) -> NoReturn:
        """Run a program under control, tell ``report(verdict, reason, stacks)``, and end the process."""
        self.strategy, self.report = strategy, report
        self.current.real_ident = real_ident()
        strategy.born(self.current)
        self.runs = True
        try:
            program()
        except BaseException:  # noqa: BLE001 - it is what is told
            self.end("program raised", traceback.format_exc())
        self.end("ok", "")

    def end(self, verdict: str, reason: str) -> NoReturn:
        """End the schedule, and the process: the other threads may wait for ever."""
        self.runs = False
        sys.settrace(None)
        self.report(verdict, reason, "" if verdict == "ok" else self.stacks())
        os._exit(0)

    def stacks(self) -> str:
        """Return the stacks of all threads that have not ended."""
        frames, text = sys._current_frames(), []
        for thread in self.living:
            mine = thread is self.current
            frame = sys._getframe(1) if mine else frames.get(thread.real_ident)
            stack = traceback.extract_stack(frame) if frame else []
            shown = [line for line in stack if not line.filename.startswith((*HIDDEN, "<frozen"))]
            state = "runs" if mine else f"waits: {thread.waits}" if thread.blocked else "could run"
            text.append(f"  T{thread.number} {thread.name} ({state})")
            text += [
                f"      {short(at.filename)}:{at.lineno} {at.name}: {at.line}" for at in shown[-14:]
            ]
        return "\n".join(text)


def short(path: str) -> str:
    """Shorten a path for reading."""
    return "/".join(Path(path).parts[-2:])


world = World()
