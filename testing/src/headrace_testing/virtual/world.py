"""Threads of which one runs at a time, in virtual time: it stands still while one of them can run, and jumps when none can.

The threads are real. Each waits on a lock of its own, its baton, until it is its turn. A thread gives up its turn where it waits, and
nowhere else. Whose turn is next is fixed: those that can run stand in one line. So the same program runs in the same way each time.

All state is changed by the thread whose turn it is. Ctrl-C comes in the main thread, whoever runs: in the midst of a change it comes a
moment later, and where the main thread sleeps it is raised once it is its turn.
"""

from __future__ import annotations

import _thread
import heapq
import queue
import sys
import threading
import time
import traceback
from collections import deque
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

BEGIN_S = 1000.0
"""What `time.monotonic` gives as a block begins: the same each time, so that what is rounded is so as well."""

TOGETHER_S = 1e-9
"""What is due so soon after another time is due together with it: sums of the same times differ in their last bit."""

AFTER_LIMIT_S = 3600.0
"""How long the rest of a block may take once its limit has been passed."""

REGAIN_S = 5.0
"""How long Ctrl-C waits, in real seconds, for the thread that runs to wait for something; then it leaves that thread behind."""

STUCK_S = 300.0
"""For so long, in real seconds, a thread may run while the first one waits; longer it is taken for stuck."""

HIDDEN = (str(Path(__file__).parent), threading.__file__, queue.__file__, "<frozen")
"""The files that no stack shows, and in which Ctrl-C is put off: what was one call into C is Python there."""


class Real:
    """What the names of the standard library mean that stand-ins take the place of."""

    allocate_lock = staticmethod(_thread.allocate_lock)
    start_new_thread: Any = staticmethod(_thread.start_new_thread)
    get_ident = staticmethod(_thread.get_ident)
    sleep = staticmethod(time.sleep)


simulated: dict[int, Simulated] = {}
"""The threads that live in virtual time, by their identifier. All others are as they were."""


class Simulated:
    """A thread that lives in virtual time.

    Attributes:
        waiting: Whether it cannot run. `waiters` is the list in which it waits, None where it sleeps.
        number: How many waits it has begun: a time at which an earlier one would have ended is none any more.
        late: Whether the end of the wait came by its time.
        asleep: Whether it sleeps until its turn, so that Ctrl-C may come.
        error: What its wait raises.
        at_end: What is called when it ends.
        gone: Held until it has ended.
    """

    __slots__ = (
        *("asleep", "at_end", "baton", "error", "gone", "ident", "late", "name", "number"),
        *("owner", "waiters", "waiting", "world"),
    )

    def __init__(self, world: World, name: str, owner: object = None) -> None:
        self.world, self.name, self.owner = world, name, owner
        self.baton, self.gone = Real.allocate_lock(), Real.allocate_lock()
        self.baton.acquire()
        self.gone.acquire()
        self.waiting = self.late = self.asleep = False
        self.number = self.ident = 0
        self.waiters: list[Simulated] | None = None
        self.error: BaseException | None = None
        self.at_end: list[Callable[[], object]] = []

    def wait(self, waiters: list[Simulated] | None, until: float | None) -> bool:
        """Wait in a list until woken; False when ``until`` came first, in virtual seconds."""
        world = self.world
        if world.is_over:
            raise world.left_by if self is world.first and world.left_by else SystemExit
        self.waiting, self.late = True, False
        self.number += 1
        self.waiters = waiters
        if waiters is not None:
            waiters.append(self)
        if until is not None:
            world.call_at(until, self)
        world.pass_on()
        self._park()
        if world.is_over and self is not world.first:
            raise SystemExit
        error, self.error = self.error, None
        if error is not None:
            raise error
        return not self.late

    def _park(self) -> None:
        """Sleep until it is this thread's turn."""
        world = self.world
        try:
            while world.current is not self:
                turns = world.turns
                self.asleep = True
                woken = self.baton.acquire(timeout=STUCK_S)
                self.asleep = False
                if not woken and turns == world.turns and self is world.first:
                    raise world.stuck()  # noqa: TRY301 - it leaves as Ctrl-C does
        except BaseException as interrupt:
            self.asleep = False
            world.interrupted = True
            while world.current is not self:
                if not self.baton.acquire(timeout=REGAIN_S):
                    world.is_over, world.left_by = True, interrupt
                    break
            world.interrupted = False
            raise


class World:
    """One block: its threads and its time.

    Attributes:
        now_s: The virtual time.
        current: The thread whose turn it is. ``first`` the one that has begun the block.
        living: The threads that have not ended, the first one not among them.
        turns: How often the turn went on.
        outside: Threads of the block that others have woken.
        interrupted: Whether Ctrl-C has come in the first thread while it slept.
        is_over: Whether each wait raises, so that the threads end.
        left_by: What has made the first thread leave the others behind.
    """

    def __init__(self, limit_s: float) -> None:
        self.now_s = BEGIN_S
        self._until_s = BEGIN_S + limit_s
        self.first = self.current = Simulated(self, "the thread of the block")
        self.first.ident = Real.get_ident()
        self.living: dict[Simulated, None] = {}
        self.turns = 0
        self.outside: deque[Simulated] = deque()
        self.interrupted = self.is_over = False
        self.left_by: BaseException | None = None
        self._ready: deque[Simulated] = deque()
        self._timed: list[tuple[float, int, Simulated, int]] = []
        self._order = count()

    # Turns.

    def make_ready(self, thread: Simulated, *, late: bool = False, at_once: bool = False) -> None:
        """Let a thread run that waits."""
        if thread.waiting:
            thread.waiting, thread.late = False, late
            if thread.waiters is not None:
                thread.waiters.remove(thread)
            (self._ready.appendleft if at_once else self._ready.append)(thread)

    def pass_on(self) -> None:
        """Give the turn to the next thread, which may be the same one."""
        if self.is_over:
            return
        while self.outside:
            self.make_ready(self.outside.popleft())
        if self.interrupted:
            self.interrupted = False
            self.make_ready(self.first, at_once=True)
        while not self._ready:
            self._jump()
        self.turns += 1
        self._give_turn(self._ready.popleft())

    def _give_turn(self, thread: Simulated) -> None:
        before, self.current = self.current, thread
        if thread is not before:
            try:  # noqa: SIM105 - `suppress` costs more than the call
                thread.baton.release()
            except RuntimeError:
                pass  # it is awake, and looks

    def yield_to(self, thread: Simulated) -> None:
        """Let a thread that can run do so now, and the current one as the last."""
        if thread in self._ready:
            self._ready.remove(thread)
            self._ready.appendleft(thread)
        self.current.wait(None, self.now_s)

    # Time.

    def after(self, seconds: float) -> float:
        """Return when it is so much later: a whole number of nanoseconds, so that sums of times are what they are by hand."""
        exact = self.now_s + seconds
        until = round(exact, 9)
        return until if until > self.now_s else exact  # a timer may wait for the last bit of a time

    def call_at(self, until: float, thread: Simulated) -> None:
        """Let a thread that waits run when it is ``until``."""
        if until <= self.now_s:
            self.make_ready(thread, late=True)
            return
        heapq.heappush(self._timed, (until, next(self._order), thread, thread.number))
        if len(self._timed) > 1000 + 4 * len(self.living):
            self._timed = [
                timer for timer in self._timed if timer[2].waiting and timer[2].number == timer[3]
            ]
            heapq.heapify(self._timed)

    def _jump(self) -> None:
        """Let the time jump to the next at which a thread can run."""
        timed, due = self._timed, []
        end_s = self._until_s
        while timed and timed[0][0] <= end_s:
            until, order, thread, number = heapq.heappop(timed)
            if thread.waiting and thread.number == number:
                due.append((order, thread))
                self.now_s = max(self.now_s, until)
                end_s = min(end_s, until + TOGETHER_S) if len(due) == 1 else end_s
        for _, thread in sorted(due, key=lambda entry: entry[0]):
            self.make_ready(thread, late=True)
        if due:
            return
        problem = "nobody can go on, and nobody waits for a time"
        if timed:
            problem = f"not over after {self.now_s - BEGIN_S:g} virtual seconds"
            self._until_s += AFTER_LIMIT_S
        self.first.error = RuntimeError(f"virtual time: {problem}.\n{self.stacks()}")
        self.make_ready(self.first)

    # Threads.

    def start(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        at_end: Sequence[Callable[[], object]] = (),
        *,
        at_once: bool = False,
    ) -> int:
        """Start a thread; ``at_once``: its turn is the next one."""
        if self.is_over:
            raise RuntimeError("can't start new thread: virtual time is over")
        owner = getattr(function, "__self__", None)
        name = getattr(owner, "name", None) or getattr(function, "__qualname__", "thread")
        thread = Simulated(self, str(name), owner)
        thread.at_end += at_end
        self.living[thread] = None
        try:
            thread.ident = Real.start_new_thread(self._run, (thread, function, args, kwargs))
        except BaseException:
            del self.living[thread]
            raise
        (self._ready.appendleft if at_once else self._ready.append)(thread)
        return thread.ident

    def _run(
        self,
        thread: Simulated,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        me = Real.get_ident()
        simulated[me] = thread
        try:
            thread._park()
            if not self.is_over:
                function(*args, **kwargs)
        finally:
            function, args, kwargs = bool, (), {}
            for call in thread.at_end:
                call()
            del self.living[thread], simulated[me]
            self.pass_on()
            thread.gone.release()

    def end(self) -> list[str]:
        """End all threads, each where it waits, one after the other; give the names of those that do not end."""
        self.is_over = True
        left = []
        for thread in [*self.living]:
            if isinstance(thread.owner, threading.Thread):  # it ends as by `sys.exit`: no news
                thread.owner._invoke_excepthook = bool  # type: ignore[attr-defined]
            self._give_turn(thread)
            if not thread.gone.acquire(timeout=REGAIN_S):
                left.append(thread.name)
        self.current = self.first
        return left

    def stuck(self) -> RuntimeError:
        """Return the error of a thread that keeps its turn."""
        problem = f"a thread has run for {STUCK_S:g} real seconds: it waits for what is not in virtual time"
        return RuntimeError(
            f"virtual time: {problem}, or looks at the clock and never sleeps.\n{self.stacks()}"
        )

    def stacks(self) -> str:
        """Return where all threads are."""
        frames, lines = sys._current_frames(), []
        for thread in [self.first, *self.living]:
            stack = traceback.extract_stack(frames[thread.ident]) if thread.ident in frames else []
            shown = [at for at in stack if not at.filename.startswith(HIDDEN)]
            lines.append(f"  {thread.name} ({'waits' if thread.waiting else 'can go on'})")
            lines += [f"      {at.filename}:{at.lineno} {at.name}: {at.line}" for at in shown[-6:]]
        return "\n".join(lines)
