"""Threads of the process that serve all pipelines: helper threads that run jobs, and the timer.

Helper threads run each job at once; no job waits for the end of another. Whenever a job comes, a helper
thread is idle or is being started, so that a job which never ends keeps no other from running. Giving a
job takes no lock, and is a single call into C, which neither an interrupt nor a signal handler can tear:
it is allowed at any moment, in any thread.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import logging
import threading
import time
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from headrace._scheduling.locks import Signal, taking

if TYPE_CHECKING:
    from collections.abc import Callable


_log = logging.getLogger("headrace.threads")

_KEPT = 2
"""How many idle helper threads stay."""

_STAYS_S = 2.0
"""How long an idle helper thread waits for a job before it ends."""

_AT_ONCE = 16
"""While fewer threads live, the last idle thread that takes a job starts another at once; from this
number on, another is started only if a job still waits after `_HESITATES_S`."""

_HESITATES_S = 0.02

GIVES_UP_S = 1.0
"""After this time a thread that was started and has not begun is given up, and another one started."""

_beginning: set[object] = set()
"""A mark for each thread that was started and has not begun."""

_next = SimpleQueue.get

Job = tuple[Any, ...]
"""A function and its arguments; it must not raise."""


class Helpers:
    """Helper threads of one purpose.

    Args:
        name: The name of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._idle: set[int] = set()
        self._alive: set[int] = set()
        self._starting_since: float | None = None
        self.add = self._jobs.put
        """Give a job, in one step; whoever gives it calls `watch` next."""
        self.empty = self._jobs.empty
        """Tell whether all jobs have been taken."""

    def run(self, function: Callable[..., object], *args: Any) -> None:
        """Let a helper thread call ``function(*args)``, now.

        Raises:
            RuntimeError: There is no thread, and none can be started.
        """
        self.add((function, *args))
        self.watch()

    @property
    def ready(self) -> bool:
        """Whether a helper thread is idle, or is being started."""
        return bool(self._idle) or self._starting_since is not None

    def attend(self) -> None:
        """Start a thread for jobs that were given with `add` alone; where none can be started, run them here."""
        if not self.empty():
            with suppress(RuntimeError):
                self.watch()
            if not self.ready and self._alive <= {threading.get_ident()}:
                self.leave()

    def watch(self) -> None:
        """Start a helper thread for the next job if none is idle.

        Raises:
            RuntimeError: There is no thread, and none can be started.
        """
        if self._idle:
            return
        now = time.monotonic()
        since = self._starting_since
        if since is not None and now - since < GIVES_UP_S:
            return
        self._starting_since = now
        try:
            start_thread(self._name, self._serve)
        except RuntimeError:  # no more threads, or the interpreter ends
            self._starting_since = None
            if not self._alive:
                raise

    def leave(self) -> None:
        """Let the calling thread run the jobs that wait, and count as no helper: something else needs it.

        This thread leaves `_alive` first and looks for jobs then; a thread that gives a job puts it into the
        queue first and looks at `_alive` then. Either this thread finds the job, or `watch` raises there.
        """
        self._alive.discard(threading.get_ident())
        with suppress(Empty):
            while True:
                _run(self._jobs.get(False))

    def _serve(self) -> None:
        me = threading.get_ident()
        self._alive.add(me)
        try:
            while self._serve_one(me):
                pass
        finally:
            self._alive.discard(me)

    def _serve_one(self, me: int) -> bool:
        """Wait for a job and run it; tell whether to go on."""
        job: Job | None = None
        try:
            self._idle.add(me)
            self._starting_since = None
            # One step of the interpreter pops the job and names it: an exception that another thread
            # raises in this one loses no job.
            (job,) = map(_next, (self._jobs,), (True,), (_STAYS_S,))
            self._idle.discard(me)
            self._follow()
            taken, job = job, None
            _run(taken)
            del taken  # it may hold the last reference to a pipeline
            return len(self._idle) < _KEPT
        except Empty:
            # This thread leaves `_idle` first and looks for jobs then; a thread that gives a job puts it
            # into the queue first and looks at `_idle` then. Either this thread finds the job, or the
            # other thread finds no idle one and starts one.
            self._idle.discard(me)
            return not self._jobs.empty()
        except BaseException as error:  # noqa: BLE001 - the thread goes on
            _log.error("something hit a thread that helps", exc_info=error)
            return True
        finally:
            self._idle.discard(me)
            if job is not None:  # an exception hit this thread before the job began
                self.add(job)

    def _follow(self) -> None:
        """See to it that another helper thread is idle while this one runs a job."""
        if len(self._alive) < _AT_ONCE:
            with suppress(RuntimeError):  # none can be started
                self.watch()
        elif not self._idle:
            shared_timer().call_at(time.monotonic() + _HESITATES_S, self._grow)

    def _grow(self) -> None:
        if not self._jobs.empty():
            self.watch()


def start_thread(name: str, function: Callable[[], None]) -> None:
    """Let a new thread of this name call a function; allowed at any moment, in any thread.

    Not `threading.Thread.start`: it takes a lock of `threading`, which code that a signal handler or a destructor
    interrupted may hold in this very thread; and if something kills the new thread at its birth, it never returns.

    Raises:
        RuntimeError: No thread can be started.
    """
    _beginning.add(mark := object())
    try:
        _thread.start_new_thread(_in_thread, (name, partial(_begin, mark, function)))
    except RuntimeError:  # no more threads, or the interpreter ends
        _beginning.discard(mark)
        raise


def _begin(mark: object, function: Callable[[], None]) -> None:
    _beginning.discard(mark)
    function()


def _in_thread(name: str, function: Callable[[], None], *first: Callable[[], None]) -> None:
    """Let a new thread of this name call a function; where none can be started, call ``first`` and it in this one."""
    try:
        threading.Thread(target=function, name=name, daemon=True).start()
    except RuntimeError:  # no more threads, or the interpreter ends
        for one in (*first, function):
            one()


def _run(job: Job) -> None:
    try:
        job[0](*job[1:])
    except BaseException as error:  # noqa: BLE001 - one job ends no other
        _log.error("%r raised", job[0], exc_info=error)


errands = Helpers("headrace-errands")
"""They take locks for the main thread, and run the calls of destructors whose thread holds a lock."""

callbacks = Helpers("headrace-callbacks")
"""They run the callbacks of users' futures, which may take any time or never end."""


def wait_for_beginners() -> None:
    """Wait, at the exit, for threads that are being started: Python 3.10 crashes when one begins after its end."""
    until, looks = time.monotonic() + GIVES_UP_S, Signal()
    while any([_beginning, *(not t.ident for t in threading.enumerate())]):
        if looks.sleep(0.001) or time.monotonic() > until:
            return


class Alarm:
    """A function that the timer will call; `cancel` takes it back."""

    __slots__ = ("_timer", "action", "at")

    def __init__(self, timer: Timer, at: float, action: Callable[[], None]) -> None:
        self._timer = timer
        self.at = at
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Take the call back; does nothing when the call has begun."""
        if self.action is not None:
            self.action = None
            self._timer.forgotten()


class Timer:
    """Calls functions at times on the monotonic clock, one after the other, in its own thread.

    The functions must be short. When an exception kills the thread, another one takes its place.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = Signal()
        self._heap: list[tuple[float, int, Alarm]] = []
        self._order = itertools.count()
        self._starts = False
        self._dead = 0

    def call_at(self, at: float, action: Callable[[], None]) -> Alarm:
        """Call ``action()`` at ``at`` seconds of `time.monotonic`."""
        alarm = Alarm(self, at, action)
        with taking(self._lock):
            heapq.heappush(self._heap, (at, next(self._order), alarm))
            first = self._heap[0][2] is alarm
            starts, self._starts = not self._starts, True
        if starts:
            # A helper thread, which holds no lock, starts it: the calling thread may hold one.
            try:
                errands.run(_in_thread, "headrace-timer", self._run, errands.leave)
            except RuntimeError as error:
                self._starts = False
                _log.error("no thread can be started to watch deadlines", exc_info=error)
        elif first:
            self._changed.wake()
        return alarm

    def forgotten(self) -> None:
        """Count an alarm that was taken back; drop all such alarms when they are more than half."""
        with taking(self._lock):
            self._dead += 1
            if self._dead > 64 and self._dead * 2 > len(self._heap):
                self._heap = [item for item in self._heap if item[2].action is not None]
                heapq.heapify(self._heap)
                self._dead = 0

    def _run(self) -> None:
        try:
            while True:
                try:
                    self._call_due()
                except BaseException as error:  # noqa: BLE001 - the other alarms must be called in time
                    _log.error("an alarm raised", exc_info=error)
        finally:  # an exception that hit this thread outside the inner try is about to end it
            errands.run(_in_thread, "headrace-timer", self._run, errands.leave)

    def _call_due(self) -> None:
        """Call the function of the alarm that is due, or sleep until one is due or the first one changes."""
        action, left = self._next()
        if action is not None:
            action()
        else:
            self._changed.sleep(left)

    def _next(self) -> tuple[Callable[[], None] | None, float | None]:
        """Give the function that is due now, or the seconds until one is due: None where there is none."""
        with taking(self._lock):
            while self._heap:
                at, _, alarm = self._heap[0]
                left = at - time.monotonic()
                if alarm.action is not None and left > 0:
                    return None, left
                heapq.heappop(self._heap)
                action, alarm.action = alarm.action, None
                if action is not None:
                    return action, 0.0
                self._dead = max(0, self._dead - 1)
            return None, None


_timer = Timer()


def shared_timer() -> Timer:
    """Give the timer of the process."""
    return _timer


def after_fork() -> None:
    """Begin anew in a child process, in which no thread of the parent runs."""
    global _timer
    _beginning.clear()
    for helpers in (errands, callbacks):
        helpers.__init__(helpers._name)  # type: ignore[misc]
    _timer = Timer()
