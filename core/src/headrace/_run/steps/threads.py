"""The threads of the process: a pool for batches and other jobs, a timer, and the clock of both.

Nothing here takes a lock, so all of it may be called at any moment: in a destructor, in a signal
handler, in the main thread. A pipeline is given its `Threads` when it is made: `current`, in place
of which `apart` puts ones that live in virtual time.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import logging
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from operator import methodcaller
from threading import get_ident
from typing import Any

from headrace._run.steps.tracebacks import set_abandoned

_log = logging.getLogger("headrace.threads")

_pop = list.pop
_release = methodcaller("release")

_FRAMES = 60
"""How deep the calls of this package go at most, without those of backends."""


def check_stack() -> None:
    """Raise RecursionError where the calling thread has hardly any stack left.

    It is called before anything is taken. Halfway a RecursionError would leave a step undone, or an
    instance with nobody.
    """
    try:  # most threads are far from the limit: this tells it without calls
        sys._getframe(sys.getrecursionlimit() // 3)
    except ValueError:
        return
    _descend(_FRAMES)


def _descend(levels: int) -> None:
    if levels:
        _descend(levels - 1)


def wake(lock: Any) -> None:
    """Wake who sleeps on a lock; where nobody does, whoever is about to goes on at once."""
    try:  # `suppress` costs more than the call
        lock.release()
    except RuntimeError:
        pass


class Signal:
    """A binary semaphore on one raw lock. Whoever is woken looks for the reason again."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Wake the thread that sleeps here; where none sleeps, the next sleep returns at once."""
        wake(self._lock)

    def sleep(self, timeout_s: float | None = None) -> bool:
        """Sleep until woken; False when ``timeout_s`` was over first."""
        if timeout_s is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class Pool:
    """Daemon threads that run jobs. No job waits for another one to end.

    A thread that runs out of jobs parks: it puts its lock into ``_parked`` and then looks once
    more. Who brings a job puts it into ``_jobs`` and then releases a parked lock. One of the two
    sees the other.
    """

    def __init__(self) -> None:
        self._jobs: deque[partial[object]] = deque()
        self._parked: list[Any] = []

    def run(self, function: Callable[..., object], *args: Any) -> None:
        """Have a thread call ``function(*args)``, soon.

        Raises:
            RuntimeError: No thread can be started. Then none calls it.
        """
        job = partial(function, *args)
        self._jobs.append(job)
        try:
            self.wake()
        except RuntimeError:
            try:
                self._jobs.remove(job)
            except ValueError:  # a thread that ran before has taken it
                return
            raise

    def wake(self) -> None:
        """See to it that a thread looks for jobs."""
        try:
            # One step: no interrupt comes in between.
            next(map(_release, map(_pop, (self._parked,))))
        except IndexError:
            # Who starts the thread makes its lock: the thread may begin only when something else
            # stands for `threading`, in a block of virtual time.
            _thread.start_new_thread(self._serve, (threading.Lock(),))

    def _serve(self, lock: Any) -> None:
        lock.acquire()
        jobs, parked = self._jobs, self._parked
        surplus = False
        while not surplus:
            while jobs:
                try:
                    job = jobs.popleft()
                except IndexError:
                    break
                try:
                    job()
                except BaseException as error:  # a job ends, its thread goes on
                    _log.error("%r raised", job.func, exc_info=error)
                del job
            parked.append(lock)
            if jobs:
                try:
                    parked.remove(lock)
                    continue
                except ValueError:
                    pass  # it was taken out, and is about to be released
            if not lock.acquire(timeout=10.0):
                try:
                    parked.remove(lock)
                    surplus = True
                except ValueError:
                    lock.acquire()


class Alarm:
    """A function that the timer will call; `cancel` takes it back."""

    __slots__ = ("_timer", "action")

    def __init__(self, timer: Timer, action: Callable[[], object]) -> None:
        self._timer = timer
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """Take the call back; does nothing when the call has begun."""
        if self.action is not None:
            self.action = None
            self._timer.remove()


class Timer:
    """Calls short functions at times of a clock, in one thread, which is started at the first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._new: deque[tuple[float, int, Alarm]] = deque()
        self._order = itertools.count()
        self._signal = Signal()
        self._unstarted = [None]
        self._next = -inf  # until when the thread sleeps
        self._size = self._dead = 0  # how many wait, and how many of them were cancelled

    def call_at(self, at: float, action: Callable[[], object]) -> Alarm:
        """Call ``action()`` at ``at``, in seconds of the clock.

        Raises:
            RuntimeError: The thread of the timer cannot be started. Then nothing is called.
        """
        alarm = Alarm(self, action)
        self._new.append((at, next(self._order), alarm))
        if at < self._next:
            self._signal.wake()
        elif self._unstarted:
            # The thread takes this token itself: of several that are started here one goes on.
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError:
                alarm.action = None
                raise
        return alarm

    def remove(self) -> None:
        """Drop the alarms that were cancelled, once they are most of all."""
        self._dead += 1
        if self._dead > max(100, self._size // 2):
            self._signal.wake()

    def _run(self) -> None:
        if not took_token(self._unstarted):
            return
        heap: list[tuple[float, int, Alarm]] = []
        while True:
            while self._new:
                heapq.heappush(heap, self._new.popleft())
            if self._dead > max(100, len(heap) // 2):
                self._dead = 0
                heap = [alarm_at for alarm_at in heap if alarm_at[2].action is not None]
                heapq.heapify(heap)
            self._size = len(heap)
            now = self._clock()
            while heap and heap[0][0] <= now:
                alarm = heapq.heappop(heap)[2]
                action, alarm.action = alarm.action, None
                try:
                    if action is not None:
                        action()
                except BaseException as error:  # an alarm ends, the timer goes on
                    _log.error("an alarm raised", exc_info=error)
                action = None
            self._next = heap[0][0] if heap else inf
            if not self._new:  # who adds one later sees `_next`
                self._signal.sleep(None if not heap else heap[0][0] - self._clock())


class Threads:
    """What a pipeline runs on.

    Attributes:
        clock: Gives seconds. `timer` calls at these.
        pool: Runs batches, and whatever must leave a thread.
        timer: Calls functions at their time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.pool = Pool()
        self.timer = Timer(clock)


current = Threads()
"""What a pipeline that is made now runs on."""


@contextmanager
def apart(clock: Callable[[], float]) -> Iterator[Threads]:
    """Have pipelines that are made in the block run on threads of their own."""
    global current
    before, others = current, Threads(clock)
    current = others
    try:
        yield others
    finally:
        current = before
        # Its threads end. A closed pipeline may still be asked for its state.
        others.__init__(clock)  # type: ignore[misc]


def took_token(items: list[None]) -> bool:
    """Take the one item of a list; False when another thread took it first."""
    try:
        items.pop()
    except IndexError:
        return False
    return True


# An event loop runs in the calling thread.

_unsaid = [None]


def runs_loop() -> bool:
    """Tell whether the calling thread runs an event loop, which a call that waits would stop."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def warn_in_coroutine() -> None:
    """Warn of a call that waits in a coroutine, which is allowed, once in a process."""
    if "ipykernel" in sys.modules:  # a notebook runs its cells in a loop of its own
        return
    if _unsaid and "asyncio" in sys.modules and runs_loop() and took_token(_unsaid):
        where = "a pipeline was called in a coroutine"
        message = f"{where}, and stops its event loop until the answer is there"
        warnings.warn(f"{message}: write `await pipe.call_async(...)`", RuntimeWarning, _level())


def _level() -> int:
    """Return which of the callers is the first outside of Headrace, as `warnings.warn` counts."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("headrace."):
        level, frame = level + 1, frame.f_back
    return level


# Calls that one thread makes in another one, and waits for.

calls_run: dict[int, Call] = {}
"""By the identifier of a thread, the call that it runs for another."""


def threads_of(ident: int) -> set[int]:
    """Return thread ``ident`` and all that wait for its call, directly or through others."""
    threads = {ident}
    call = calls_run.get(ident)
    while call is not None and call.caller not in threads:
        threads.add(call.caller)
        call = calls_run.get(call.caller)
    return threads


class Call:
    """A function that one thread runs while another one waits for it."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.caller = get_ident()
        self._function, self._args = function, args
        self._unbegun: list[None] = [None]
        self._signal = Signal()
        self._over = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the function, unless the call was given up."""
        if not took_token(self._unbegun):
            return
        me = get_ident()
        outer = calls_run.get(me)
        calls_run[me] = self
        try:
            self._result = self._function(*self._args)
        except BaseException as error:  # the thread that waits raises it
            self._error = error
        finally:
            if outer is None:
                del calls_run[me]
            else:
                calls_run[me] = outer
        self._function, self._args = bool, ()  # they may refer to this call: a cycle
        self._over = True
        self._signal.wake()

    def wait(self, begin: Callable[..., object], look_s: float | None = None) -> Any:
        """Let ``begin(self.run)`` bring it to the other thread, and wait.

        An interrupt has ``abandoned`` set.
        """
        try:
            begin(self.run)
            while not self._over:
                self._signal.sleep(look_s)
        except BaseException as interrupt:
            set_abandoned(interrupt, not took_token(self._unbegun) and not self._over)
            raise
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error, self
        return self._result


def run_in_pool(function: Callable[..., Any], *args: Any) -> Any:
    """Have a thread of the pool call a function, and wait for its end."""
    return Call(function, args).wait(current.pool.run)


own_threads: set[int] = set()
"""The identifiers of the threads that belong to one instance, or to one part of it."""


class OwnThread:
    """A daemon thread with an inbox, which alone builds, runs and closes one backend.

    Attributes:
        alive: Whether the thread runs the jobs that it is given: it was started, and not stopped.
        ident: Identifier of the thread. 0 before it runs.
    """

    def __init__(self, name: str) -> None:
        from queue import SimpleQueue

        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._name = name
        self.alive = False
        self.ident = 0

    def start(self) -> None:
        """Start the thread; RuntimeError where none can be started."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        run_in_pool(thread.start)  # Ctrl-C in the midst of it would leave it half started
        self.alive = True

    def post(self, run: Callable[[], None]) -> None:
        """Run ``run()``, which must not raise, in the thread, later."""
        self._jobs.put(run)

    def call(self, function: Callable[..., Any], *args: Any, look_s: float | None = None) -> Any:
        """Run ``function(*args)`` in the thread and wait for it; give its result or its error."""
        if get_ident() == self.ident:
            return function(*args)
        return Call(function, args).wait(self.post, look_s)

    @property
    def is_wanted(self) -> bool:
        """Whether a job waits for the thread."""
        return not self._jobs.empty()

    def stop(self) -> None:
        """End the thread after the jobs that it has been given; does not wait for the end."""
        self.alive = False
        self._jobs.put(None)

    def _run(self) -> None:
        self.ident = get_ident()
        own_threads.add(self.ident)
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it may hold the last reference to a pipeline
        own_threads.discard(self.ident)


def after_fork() -> None:
    """Begin anew in a child process, in which no thread of the parent runs."""
    calls_run.clear()
    own_threads.clear()
    current.__init__(current.clock)  # type: ignore[misc]
