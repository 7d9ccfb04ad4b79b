"""Deadlines: who times what.

A thread that waits for its own requests times itself: it sleeps until the next of their deadlines. All other times have one
thread in the process, the timer: the deadlines of futures, coroutines and graphs, and the times at which a batch policy
wants to be asked again. Its alarms enter a section, look whether the time still counts, and are over.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING

from headrace._scheduling.threads import helpers, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("headrace.threads")


class Timer:
    """Calls functions at times on the monotonic clock, one after the other, in its own thread; they must be short."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Alarm]] = []
        self._order = itertools.count()
        self._runs = False
        self._dead = 0

    def call_at(self, at: float, action: Callable[[], None]) -> Alarm:
        """Call ``action()`` at ``at`` seconds of `time.monotonic`."""
        alarm = Alarm(self, action)
        with self._changed:
            heapq.heappush(self._heap, (at, next(self._order), alarm))
            if not self._runs:
                self._runs = True
                helpers.run(start_thread, "headrace-timer", self._run)
            elif self._heap[0][2] is alarm:
                self._changed.notify()
        return alarm

    def forget(self) -> None:
        """Drop the alarms that were taken back, once they are more than half."""
        with self._changed:
            self._dead += 1
            if self._dead > 64 and self._dead * 2 > len(self._heap):
                self._heap = [one for one in self._heap if one[2].action is not None]
                heapq.heapify(self._heap)
                self._dead = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._heap or (left := self._heap[0][0] - time.monotonic()) > 0:
                    if not self._changed.wait(left if self._heap else 1.0) and not self._heap:
                        self._runs = False
                        return
                alarm = heapq.heappop(self._heap)[2]
            action, alarm.action = alarm.action, None
            try:
                if action is not None:
                    action()
            except BaseException as error:  # noqa: BLE001 - an alarm ends, the timer goes on
                _log.error("an alarm raised", exc_info=error)
            action = None


class Alarm:
    """A function that the timer will call; `cancel` takes it back."""

    __slots__ = ("_timer", "action")

    def __init__(self, timer: Timer, action: Callable[[], None]) -> None:
        self._timer = timer
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Take the call back; does nothing when the call has begun."""
        if self.action is not None:
            self.action = None
            self._timer.forget()


_timer = Timer()


def shared_timer() -> Timer:
    """Return the timer of the process."""
    return _timer


def after_fork() -> None:
    """Begin anew in a child process."""
    _timer.__init__()  # type: ignore[misc]
