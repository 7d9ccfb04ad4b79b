"""One thread per process that calls functions at set times; it starts with the first of them."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING

from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Alarm", "Timer", "shared_timer"]


class Alarm:
    """A call that is to come; `cancel` takes it back."""

    __slots__ = ("_timer", "action", "at")

    def __init__(self, timer: Timer, at: float, action: Callable[[], None]) -> None:
        self._timer = timer
        self.at = at
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Take the call back; nothing happens when it has begun."""
        if self.action is not None:
            self.action = None
            self._timer.forgotten()


class Timer:
    """Calls functions at times on the monotonic clock, one after the other, in its own thread.

    The functions must be short and must not raise.
    """

    def __init__(self) -> None:
        # A raw lock: an interrupt cannot leave it locked, as it can a Condition.
        self._lock = threading.Lock()
        self._changed = Signal()
        self._heap: list[tuple[float, int, Alarm]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._dead = 0

    def call_at(self, at: float, action: Callable[[], None]) -> Alarm:
        """Call ``action()`` at ``at`` seconds of `time.monotonic`."""
        alarm = Alarm(self, at, action)
        with self._lock:
            heapq.heappush(self._heap, (at, next(self._order), alarm))
            first = self._heap[0][2] is alarm
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="headrace-timer", daemon=True)
                thread.start()
                self._thread = thread
        if first:
            self._changed.wake()
        return alarm

    def forgotten(self) -> None:
        """Count an alarm that was taken back; drop such alarms when they are the greater part."""
        with self._lock:
            self._dead += 1
            if self._dead > 64 and self._dead * 2 > len(self._heap):
                self._heap = [item for item in self._heap if item[2].action is not None]
                heapq.heapify(self._heap)
                self._dead = 0

    def _run(self) -> None:
        while True:
            action, left = self._next()
            if action is not None:
                action()
                del action  # it may hold the last reference to a pipeline
            else:
                self._changed.sleep(left)

    def _next(self) -> tuple[Callable[[], None] | None, float | None]:
        """Give what is due now, or how long nothing will be: None for ever."""
        with self._lock:
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
    """Give the process's timer."""
    return _timer


def _after_fork() -> None:
    global _timer
    _timer = Timer()
