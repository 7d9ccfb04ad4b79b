"""A thread that runs what it is given, one job after the other, until it is stopped or dies."""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OwnThread", "served_by", "serves", "serving"]

T = TypeVar("T")

_serving: dict[int, int] = {}
"""Identifier of a thread to that of the thread which waits for its current job."""


def serves(ident: int) -> bool:
    """Tell whether another thread waits for what thread ``ident`` does now, through `call`."""
    return ident in _serving


def served_by(ident: int) -> set[int]:
    """Give thread ``ident`` and all threads that wait for what it does now, through `call`."""
    found = {ident}
    waiting = _serving.get(ident)
    while waiting is not None and waiting not in found:
        found.add(waiting)
        waiting = _serving.get(waiting)
    return found


def serving(ident: int) -> set[int]:
    """Give the threads for which thread ``ident`` waits now, through `call`."""
    found: set[int] = set()
    if _serving:
        found = {one for one in list(_serving) if one != ident and ident in served_by(one)}
    return found


class _Job(NamedTuple):
    run: Callable[[], None]
    lost: Callable[[], None]


class OwnThread:
    """A daemon thread with an inbox.

    A job that the thread cannot end because something kills it is told so: nobody waits in vain.

    Attributes:
        cause: What killed it, None while nothing has.
    """

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[_Job | None] = deque()
        self._signal = Signal()
        self._started = False
        self._ended = False
        self.cause: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start it, before anything else is asked of it.

        Another thread does so: an interrupt in the middle of `threading.Thread.start` may leave the
        new thread waiting for ever for a lock of CPython's. After an interrupt in here it may run or
        not: it was given no job, and `stop` ends it.

        Raises:
            RuntimeError: No thread can be started.
        """
        begun = Signal()
        failed: list[BaseException] = []

        def start() -> None:
            try:
                self._thread.start()
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                failed.append(error)
            begun.wake()

        start_new_thread(start, ())
        begun.sleep()
        if failed:
            raise failed[0]
        self._started = True

    @property
    def alive(self) -> bool:
        """Whether the thread runs what it is given."""
        return self._started and not self._ended

    @property
    def current(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.get_ident() == self._thread.ident

    def post(self, run: Callable[[], None], lost: Callable[[], None]) -> bool:
        """Run ``run()`` in the thread, later; it must not raise.

        Args:
            run: The job.
            lost: Called instead, or as well, when the thread dies before the job is done.

        Returns:
            False when the thread has ended already; then neither is called.
        """
        with self._lock:
            if self._ended:
                return False
            self._jobs.append(_Job(run, lost))
        self._signal.wake()
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
            BaseException: What the function raised. An interrupt of the calling thread that leaves
                the function running has ``abandoned`` set.
        """
        if self.current:
            return function(*args)
        call = _Call(function, args)
        if not self.post(call.run, call.lost):
            raise RuntimeError(f"the thread {self._thread.name} has ended")
        try:
            while not call.done.sleep(look_s):
                pass
        except BaseException as interrupt:
            if call.give_up():
                interrupt.abandoned = True  # type: ignore[attr-defined]
            raise
        if call.error is not None:
            try:
                raise call.error
            finally:
                del call
        result: T = call.result
        return result

    def stop(self) -> None:
        """End the thread after what it has been given; does not wait."""
        with self._lock:
            self._jobs.append(None)
        self._signal.wake()

    def _run(self) -> None:
        jobs = self._jobs
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
        except BaseException as error:  # noqa: BLE001 - it ends the thread; those who wait are told
            self.cause = error
        finally:
            with self._lock:
                self._ended = True
                left = [job for job in jobs if job is not None]
                jobs.clear()
            for job in left:
                job.lost()


class _Call:
    """A function that one thread runs while another waits for it."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.caller = threading.get_ident()
        self.done = Signal()
        self.result: Any = None
        self.error: BaseException | None = None
        self.state = "waits"
        self._lock = threading.Lock()

    def run(self) -> None:
        with self._lock:
            if self.state != "waits":
                return
            self.state = "runs"
        me = threading.get_ident()
        _serving[me] = self.caller
        try:
            self.result = self.function(*self.args)
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            self.error = error
        _serving.pop(me, None)
        self.state = "done"
        self.done.wake()

    def lost(self) -> None:
        if self.state != "done":
            self.error = RuntimeError("the thread that owns the backend has died")
            self.done.wake()

    def give_up(self) -> bool:
        """Take the call back; True when it has begun and goes on without its caller."""
        with self._lock:
            if self.state == "waits":
                self.state = "given up"
            return self.state == "runs"
