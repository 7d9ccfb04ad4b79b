"""Own threads: a backend that asks for one is built, run and closed in that thread alone.

So no other thread runs its batches: whoever claims the instance posts the batch into the inbox of the thread, which cuts the next
batch itself when it has run one, unless other jobs (a close) wait in the inbox.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from headrace._scheduling.threads import Call, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class OwnThread:
    """A daemon thread with an inbox.

    Attributes:
        alive: Whether the thread runs the jobs that it is given: it was started, and not stopped.
        ident: Identifier of the thread; 0 before it runs.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._name = name
        self.alive = False
        self.ident = 0

    def start(self) -> None:
        """Start the thread; RuntimeError where none can be started."""
        start_thread(self._name, self._run)
        self.alive = True

    @property
    def wanted(self) -> bool:
        """Whether jobs wait in the inbox."""
        return not self._jobs.empty()

    def post(self, run: Callable[[], None]) -> None:
        """Run ``run()``, which must not raise, in the thread, later."""
        self._jobs.put(run)

    def call(self, function: Callable[..., T], *args: Any, look_s: float | None = None) -> T:
        """Run ``function(*args)`` in the thread and wait for it; give its result or its error.

        Args:
            function: What to run.
            args: What it is given.
            look_s: The calling thread wakes up every ``look_s`` seconds, since CPython does not see an interrupt that
                comes just before a sleep. None for never.

        Raises:
            BaseException: What the function raised. An interrupt of the calling thread has ``abandoned`` set, which
                tells whether the function is left running.
        """
        if get_ident() == self.ident:
            return function(*args)
        call = Call(function, args)
        result: T = call.wait(self.post, look_s)
        return result

    def stop(self) -> None:
        """End the thread after the jobs that it has been given; does not wait for the end."""
        self.alive = False
        self._jobs.put(None)

    def _run(self) -> None:
        self.ident = get_ident()
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it may hold the last reference to a pipeline
