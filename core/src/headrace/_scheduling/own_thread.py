"""A thread with an inbox: it runs one call after the other, for a backend that owns its thread, or for a node."""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from headrace._scheduling.calls import Call
from headrace._scheduling.locks import Signal, drained
from headrace._scheduling.process_threads import errands, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Job: TypeAlias = tuple[Callable[[], None], Callable[[], None]]
    """What to run, and what to call where the thread dies before it is done."""

T = TypeVar("T")


class OwnThread:
    """A daemon thread with an inbox.

    When something kills the thread, ``lost`` of each job that it has not done is called: else the threads
    that wait for those jobs would wait for ever.
    The inbox has no lock, so a signal handler that posts a job never waits for the code that it interrupted.

    Attributes:
        cause: The error that killed the thread, None while there is none.
        ident: Identifier of the thread; 0 until the thread has begun.
        begun: Wakes the one thread that waits until the thread has begun.
    """

    def __init__(self, name: str) -> None:
        self._jobs: deque[Job | None] = deque()
        self._signal = Signal()
        self._started = False
        self._ended = False
        self.cause: BaseException | None = None
        self.ident = 0
        self.begun = Signal()
        self._name = name

    def start(self) -> None:
        """Start the thread; an interrupt in here leaves it started or not, and `stop` ends it.

        Raises:
            RuntimeError: No thread can be started.
        """
        start_thread(self._name, self._run)
        self._started = True

    @property
    def alive(self) -> bool:
        """Whether the thread runs the jobs that it is given."""
        return self._started and not self._ended

    @property
    def wanted(self) -> bool:
        """Whether more jobs wait in the inbox than the one that the thread runs now."""
        return len(self._jobs) > 1

    def post(self, run: Callable[[], None], lost: Callable[[], None]) -> bool:
        """Run ``run()`` in the thread, later; it must not raise.

        Args:
            run: The job.
            lost: Called instead, or as well, when the thread dies before the job is done.

        Returns:
            False when the thread has ended already; then neither function is called.
        """
        if self._ended:
            return False
        self._jobs.append((run, lost))
        self._signal.wake()
        # This thread puts the job into the inbox and then reads `_ended`; the own thread sets `_ended` and
        # then empties the inbox. Either the own thread finds the job, or this thread sees the end.
        if self._ended:
            errands.run(self._lose)  # not in this thread: it may hold the lock of a node
        return True

    def call(self, function: Callable[..., T], *args: Any, look_s: float | None = None) -> T:
        """Run ``function(*args)`` in the thread and wait for it; give its result or its error.

        Args:
            function: What to run.
            args: What it is given.
            look_s: The calling thread wakes up every ``look_s`` seconds, since CPython does not see an
                interrupt that comes just before a sleep. None for never.

        Raises:
            RuntimeError: The thread has ended.
            BaseException: What the function raised. An interrupt of the calling thread has
                ``abandoned`` set, which tells whether the function is left running.
        """
        if get_ident() == self.ident:
            return function(*args)
        call = Call(function, args)
        if not self.post(call.run, call.lost):
            raise RuntimeError(f"the thread {self._name} has ended")
        result: T = call.wait(look_s)
        return result

    def stop(self) -> None:
        """End the thread after the jobs that it has been given; does not wait for the end."""
        self._jobs.append(None)
        self._signal.wake()

    def _run(self) -> None:
        jobs = self._jobs
        try:
            self.ident = get_ident()
            self.begun.wake()
            while True:
                while jobs:
                    # The job stays in the inbox until it is done: if the thread dies, `_lose` finds it.
                    job = jobs[0]
                    if job is None:
                        return
                    run, _ = job
                    run()
                    del job, run  # it may hold the last reference to a pipeline
                    jobs.popleft()
                self._signal.sleep()
        except BaseException as error:  # noqa: BLE001 - it ends the thread; `_lose` tells of the jobs
            self.cause = error
        finally:
            self._ended = True
            self._lose()

    def _lose(self) -> None:
        """Call ``lost`` of each job that is left; two threads in here never get the same job."""
        for job in drained(self._jobs.popleft):
            if job is not None:
                _, lost = job
                lost()
