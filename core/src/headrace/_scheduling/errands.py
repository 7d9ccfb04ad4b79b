"""Daemon threads of the process that run what they are given, each at once and none after another.

One of them is idle whenever a job comes, or is being started: so a job that never ends keeps no
other from running. Giving a job is a single call into C, which neither an interrupt nor a signal
handler can tear, and takes no lock: it is allowed at any moment, in any thread.
"""

from __future__ import annotations

import _thread
import logging
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Helpers", "callbacks", "errands"]

_log = logging.getLogger("headrace.threads")

_KEPT = 2
"""How many idle threads stay."""

_STAYS_S = 2.0
"""How long a thread stays that nobody asks for anything."""

_AT_ONCE = 16
"""How many threads are started without hesitation; each one more only after `_HESITATES_S`."""

_HESITATES_S = 0.02

_GIVES_UP_S = 1.0
"""A thread that was started so long ago and has not begun is not waited for."""

_next = SimpleQueue.get

Job = tuple[Any, ...]
"""A function and its arguments; it must not raise."""


class Helpers:
    """Threads of one purpose.

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

    def run(self, function: Callable[..., object], *args: Any) -> None:
        """Let a thread call ``function(*args)``, now.

        Raises:
            RuntimeError: There is no thread, and none can be started.
        """
        self.add((function, *args))
        self.watch()

    @property
    def ready(self) -> bool:
        """Whether a thread is idle, or being started."""
        return bool(self._idle) or self._starting_since is not None

    def attend(self) -> None:
        """See to jobs that were given by a thread which could do no more than that."""
        if not self._jobs.empty():
            with suppress(RuntimeError):  # no thread can be started; another time, then
                self.watch()

    def watch(self) -> None:
        """See to it that some thread takes the next job.

        Raises:
            RuntimeError: There is no thread, and none can be started.
        """
        if self._idle:
            return
        now = time.monotonic()
        since = self._starting_since
        if since is not None and now - since < _GIVES_UP_S:
            return
        self._starting_since = now
        try:
            # Not Thread.start: it takes a lock of threading, which the interrupted code may hold.
            _thread.start_new_thread(self._begin, ())
        except RuntimeError:  # no more threads, or the interpreter ends
            self._starting_since = None
            if not self._alive:
                raise

    def _begin(self) -> None:
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._serve()

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
            # Out of the queue and into the name in one step: what hits this thread loses no job.
            (job,) = map(_next, (self._jobs,), (True,), (_STAYS_S,))
            self._idle.discard(me)
            self._follow()
            taken, job = job, None
            _run(taken)
            del taken  # it may hold the last reference to a pipeline
            return len(self._idle) < _KEPT
        except Empty:
            # Whoever gives a job looks for idle threads afterwards: one of the two sees the other.
            self._idle.discard(me)
            return not self._jobs.empty()
        except BaseException as error:  # noqa: BLE001 - as if it had not come
            _log.error("something hit a thread that helps", exc_info=error)
            return True
        finally:
            self._idle.discard(me)
            if job is not None:  # it was hit before the job began
                self.add(job)

    def _follow(self) -> None:
        """Let another thread stand ready while this one is at work."""
        if self._idle:
            return
        if len(self._alive) < _AT_ONCE:
            try:
                self.watch()
            except RuntimeError:
                return
        else:
            from headrace._scheduling.timer import shared_timer

            shared_timer().call_at(time.monotonic() + _HESITATES_S, self._grow)

    def _grow(self) -> None:
        if not self._jobs.empty():
            self.watch()


def _run(job: Job) -> None:
    try:
        job[0](*job[1:])
    except BaseException as error:  # noqa: BLE001 - whatever it raises ends nothing else
        _log.error("%r raised", job[0], exc_info=error)


errands = Helpers("headrace-errands")
"""For what the main thread is not to do itself, and for what must not be done where it is asked for."""

callbacks = Helpers("headrace-callbacks")
"""For the callbacks of users' futures, which may take any time or never end."""


def _after_fork() -> None:
    for helpers in (errands, callbacks):
        helpers.__init__(helpers._name)  # type: ignore[misc]
