"""One thread calls a function, and another waits for it.

**The main thread takes no lock of the scheduler**, for a signal handler or Ctrl-C may interrupt it
between any two instructions. An idle instance it claims and returns in single steps (see
`headrace._scheduling.fast_path`); all else is an *errand*, which a helper thread runs while the main
thread waits. So a handler finds no lock held by the code that it interrupted, and an interrupt leaves
nothing half done.

A destructor that runs while its thread holds a lock has what it asks for put off: a helper thread does
it later. A thread that is near the end of its stack is refused before anything has begun.

A backend that owns a thread is called the same way: `OwnThread` runs one call after the other.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace._scheduling.locks import (
    Signal,
    claimed,
    holds_a_lock,
    main_thread,
    near_stack_end,
    no_room,
)
from headrace._scheduling.process_threads import errands

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])


T = TypeVar("T")

callers: dict[int, int] = {}
"""Identifier of a thread to that of the thread which waits for its current call."""

calls_run: dict[int, Call] = {}
"""Identifier of a thread to the call that it runs."""


def served_by(ident: int) -> set[int]:
    """Give thread ``ident`` and all threads that wait for what it does now."""
    found = {ident}
    waiting = callers.get(ident)
    while waiting is not None and waiting not in found:
        found.add(waiting)
        waiting = callers.get(waiting)
    return found


def serving(ident: int) -> set[int]:
    """Give the threads for which thread ``ident`` waits now."""
    found: set[int] = set()
    if callers:
        found = {one for one in list(callers) if one != ident and ident in served_by(one)}
    return found


def call_run_here() -> Call | None:
    """Give the call that the calling thread runs for another, None for none."""
    return calls_run.get(get_ident())


class Call:
    """A function that one thread runs while another waits for it.

    No lock guards it: the thread that pops the only item of a list has the right to run the function, or
    to give it up, and popping is one step of the interpreter.

    Attributes:
        withdraw: Set by the function: takes back what it waits for, and tells whether a backend still
            runs on it. None where there is nothing to take back.
        given_up: Whether the thread that waited does so no more.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.withdraw: Callable[[], bool] | None = None
        self.given_up = False
        self._function: Callable[..., Any] | None = function
        self._args = args
        self._caller = get_ident()
        self._unbegun: list[None] = [None]
        self._signal = Signal()
        self._over = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the function, unless it was given up or called before."""
        if not claimed(self._unbegun):
            return
        me = get_ident()
        outer_caller, outer_call = callers.get(me), calls_run.get(me)
        callers[me], calls_run[me] = self._caller, self
        try:
            self._result = self._function(*self._args)  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            self._error = error
        reset(callers, me, outer_caller)
        reset(calls_run, me, outer_call)
        self._function, self._args = None, ()
        self._over = True
        self._signal.wake()

    def lost(self) -> None:
        """Take note that the thread which was to run it has died."""
        if not self._over:
            self._error = RuntimeError("the thread that owns the backend has died")
            self._over = True
            self._signal.wake()

    def wait(self, look_s: float | None = None) -> Any:
        """Wait for the end; give the result or raise the error.

        Args:
            look_s: How often to look up from the sleep; None for never.

        Raises:
            BaseException: What the function raised. An interrupt of the calling thread has
                ``abandoned`` set, which tells whether a backend still runs for it.
        """
        try:
            while not self._over:
                self._signal.sleep(look_s)
        except BaseException as interrupt:
            try:
                interrupt.abandoned = self._give_up()  # type: ignore[attr-defined]
            except BaseException as second:
                second.abandoned = True  # type: ignore[attr-defined]
                raise
            raise
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error, self
        return self._result

    def _give_up(self) -> bool:
        """Take the call back; True when a backend goes on without its caller."""
        self.given_up = True
        if claimed(self._unbegun):
            return False
        if self._over:
            return getattr(self._error, "abandoned", False) is True
        if self.withdraw is None:
            return not self._over
        # This thread sets `given_up` first and reads `withdraw` then; the thread that runs the function
        # sets `withdraw` first and reads `given_up` then. Either this one withdraws, or that one does.
        return errand(self.withdraw) is True

    def withdrawn_by(self, withdraw: Callable[[], bool]) -> None:
        """Say how to take back what the function begins to wait for; called by the function."""
        self.withdraw = withdraw
        if self.given_up:
            withdraw()


def reset(table: dict[int, Any], ident: int, outer: Any) -> None:
    """Put back what a table of threads held of thread ``ident`` before; None for nothing."""
    if outer is None:
        table.pop(ident, None)
    else:
        table[ident] = outer


def errand(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Let a helper thread call a function, and wait for it.

    Raises:
        BaseException: What the function raised. An interrupt of the calling thread has ``abandoned``
            set, which tells whether a backend still runs for it.
    """
    call = Call(partial(function, **kwargs) if kwargs else function, args)
    try:
        errands.run(call.run)
    except RuntimeError:  # no more threads, or the interpreter ends
        call.run()
    return call.wait()


def reentrant(later: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Let a function that takes locks of the scheduler be called at any moment.

    Args:
        later: Called in its place, with the same arguments, in a thread that holds such a lock. None:
            a helper thread calls the function when it gets to it, and nobody waits.

    Raises:
        RecursionError: The thread is too near the end of its stack; nothing has begun.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if get_ident() == main_thread.ident:
                return errand(function, *args, **kwargs)
            if holds_a_lock():
                if later is not None:
                    return later(*args, **kwargs)
                errands.run(partial(function, *args, **kwargs))
                return None
            if near_stack_end():
                raise no_room()
            return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    return decorate


class _Job(NamedTuple):
    run: Callable[[], None]
    lost: Callable[[], None]


class OwnThread:
    """A daemon thread with an inbox.

    When something kills the thread, ``lost`` of each job that it has not done is called, so that nobody
    waits in vain.
    The inbox has no lock that code interrupted by a signal handler could hold.

    Attributes:
        cause: What killed it, None while nothing has.
        ident: Identifier of the thread; 0 until it has begun.
    """

    def __init__(self, name: str) -> None:
        self._jobs: deque[_Job | None] = deque()
        self._signal = Signal()
        self._started = False
        self._ended = False
        self.cause: BaseException | None = None
        self.ident = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start it.

        For the main thread a helper does so: an interrupt in the middle of `threading.Thread.start` may
        leave the new thread waiting for ever for a lock of CPython's. After an interrupt in here it may
        run or not: the main thread has given it no job, and `stop` ends it.

        Raises:
            RuntimeError: No thread can be started.
        """
        if get_ident() == main_thread.ident:
            errand(self._thread.start)
        else:
            self._thread.start()
        self._started = True

    @property
    def alive(self) -> bool:
        """Whether the thread runs what it is given."""
        return self._started and not self._ended

    @property
    def wanted(self) -> bool:
        """Whether it has been given more than what it does now."""
        return len(self._jobs) > 1

    def post(self, run: Callable[[], None], lost: Callable[[], None]) -> bool:
        """Run ``run()`` in the thread, later; it must not raise.

        Args:
            run: The job.
            lost: Called instead, or as well, when the thread dies before the job is done.

        Returns:
            False when the thread has ended already; then neither is called.
        """
        if self._ended:
            return False
        self._jobs.append(_Job(run, lost))
        self._signal.wake()
        # This thread gives the job first and looks then whether the other has ended; the other notes its
        # end first and looks for jobs then. Either that one finds the job, or this one sees the end.
        if self._ended:
            errands.run(self._lose)  # not here: whoever gives a job may hold a lock
        return True

    def call(self, function: Callable[..., T], *args: Any, look_s: float | None = None) -> T:
        """Run ``function(*args)`` in the thread and wait for it; give its result or its error.

        Args:
            function: What to run.
            args: What it is given.
            look_s: How often the calling thread looks up from its sleep: CPython does not see an
                interrupt that comes just before. None for never.

        Raises:
            RuntimeError: The thread has ended.
            BaseException: What the function raised. An interrupt of the calling thread has
                ``abandoned`` set, which tells whether it leaves the function running.
        """
        if get_ident() == self.ident:
            return function(*args)
        call = Call(function, args)
        if not self.post(call.run, call.lost):
            raise RuntimeError(f"the thread {self._thread.name} has ended")
        result: T = call.wait(look_s)
        return result

    def stop(self) -> None:
        """End the thread after what it has been given; does not wait."""
        self._jobs.append(None)
        self._signal.wake()

    def _run(self) -> None:
        jobs = self._jobs
        self.ident = get_ident()
        try:
            while True:
                while jobs:
                    # It stays in the inbox until it is done, so that none is lost with the thread.
                    job = jobs[0]
                    if job is None:
                        return
                    job.run()
                    del job  # it may hold the last reference to a pipeline
                    jobs.popleft()
                self._signal.sleep()
        except BaseException as error:  # noqa: BLE001 - it ends the thread, and the jobs are lost
            self.cause = error
        finally:
            self._ended = True
            self._lose()

    def _lose(self) -> None:
        """Call ``lost`` of the jobs that are left, each once."""
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return
            if job is not None:
                job.lost()
