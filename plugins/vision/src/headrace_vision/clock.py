"""The time that sources follow: the seconds of the machine, or those of a test."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

__all__ = ["Clock", "utc"]


def utc() -> float:
    """Return the time of day of this machine: seconds since 1970 in UTC."""
    return time.time()  # noqa: TID251 - a date for people, from which nothing is measured


class Clock:
    """Seconds that never go back, and a way to wait for some of them."""

    def now(self) -> float:
        """Return the time in seconds from any beginning."""
        return time.monotonic()

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait that many seconds, or until ``stop`` is set; return whether it is set."""
        return stop.wait(max(seconds, 0.0))
