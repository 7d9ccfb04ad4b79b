"""One thread per process that calls functions at set times; it starts with the first of them."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING

from headrace._scheduling.errands import errands
from headrace._scheduling.reentrant import taking
from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Alarm", "Timer", "shared_timer"]

_log = logging.getLogger("headrace.threads")


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

    The functions must be short. The thread is replaced when something kills it.
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
            # By a thread that holds no lock, as whoever calls here may.
            try:
                errands.run(self._start)
            except RuntimeError as error:
                self._starts = False
                _log.error("no thread can be started to watch deadlines", exc_info=error)
        elif first:
            self._changed.wake()
        return alarm

    def forgotten(self) -> None:
        """Count an alarm that was taken back; drop such alarms when they are the greater part."""
        with taking(self._lock):
            self._dead += 1
            if self._dead > 64 and self._dead * 2 > len(self._heap):
                self._heap = [item for item in self._heap if item[2].action is not None]
                heapq.heapify(self._heap)
                self._dead = 0

    def _start(self) -> None:
        """Start the thread; where there can be none, this one takes its place."""
        thread = threading.Thread(target=self._run, name="headrace-timer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends
            self._run()

    def _run(self) -> None:
        try:
            while True:
                try:
                    self._call_due()
                except BaseException as error:  # noqa: BLE001 - the others are to be called in time
                    _log.error("an alarm raised", exc_info=error)
        finally:  # something has killed this thread all the same
            errands.run(self._start)

    def _call_due(self) -> None:
        """Call what is due, or sleep until something is."""
        action, left = self._next()
        if action is not None:
            action()
        else:
            self._changed.sleep(left)

    def _next(self) -> tuple[Callable[[], None] | None, float | None]:
        """Give what is due now, or how long nothing will be: None for ever."""
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
    """Give the process's timer."""
    return _timer


def _after_fork() -> None:
    global _timer
    _timer = Timer()
