"""Threads that run the callbacks of users' futures, which may take any time or never end.

No thread that has something else to do runs them: neither one that serves batches, nor a caller
that waits for an answer of its own, nor the timer or an event loop.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_aside"]

_KEPT = 2
"""How many threads are kept when there is nothing to do."""


class _Asides:
    """The threads of this process, and what they are to run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Callable[[], None]] = deque()
        self._idle: list[Signal] = []
        self._looking = 0  # threads that are awake and will look at the queue next

    def add(self, function: Callable[[], None]) -> None:
        with self._lock:
            self._queue.append(function)
            if self._looking:
                return
            self._looking += 1
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle.wake()
            return
        thread = threading.Thread(target=self._run, name="headrace-callbacks", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends
            self._run(stays=False)

    def _run(self, *, stays: bool = True) -> None:
        signal = Signal()
        while True:
            with self._lock:
                self._looking -= 1
                function = self._queue.popleft() if self._queue else None
                if function is None:
                    if not stays or len(self._idle) >= _KEPT:
                        return
                    self._idle.append(signal)
            if function is None:
                signal.sleep()
            else:
                function()
                del function  # it may hold the last reference to a pipeline
                with self._lock:
                    self._looking += 1


_asides = _Asides()


def run_aside(function: Callable[[], None]) -> None:
    """Run a function, which must not raise, in a thread that has nothing else to do."""
    _asides.add(function)


def _after_fork() -> None:
    global _asides
    _asides = _Asides()
