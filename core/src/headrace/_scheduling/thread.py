"""A thread that runs what it is given, one job after the other, until it is stopped."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OwnThread"]

T = TypeVar("T")


class OwnThread:
    """A daemon thread with an inbox; started at once, so that a failure to start is seen here."""

    def __init__(self, name: str) -> None:
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def current(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.get_ident() == self._thread.ident

    def post(self, job: Callable[[], None]) -> None:
        """Run ``job()`` in the thread, later; it must not raise."""
        self._inbox.put(job)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run ``function(*args)`` in the thread and wait for it; give its result or its error."""
        if self.current:
            return function(*args)
        done = threading.Lock()
        done.acquire()
        outcome: list[Any] = [None, None]

        def job() -> None:
            try:
                outcome[0] = function(*args)
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                outcome[1] = error
            finally:
                done.release()

        self._inbox.put(job)
        done.acquire()
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result

    def stop(self) -> None:
        """End the thread after what it has been given; does not wait."""
        self._inbox.put(None)

    def _run(self) -> None:
        while True:
            job = self._inbox.get()
            if job is None:
                return
            job()
            del job  # it may hold the last reference to a pipeline
