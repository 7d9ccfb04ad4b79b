"""What is noted of requests while a load runs: when each ended, how long it took, or how it failed."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from headrace_observe.figures import percentile

__all__ = ["Notes", "Window", "agree", "gathered"]

LEAST_ANSWERS = 10
"""A window with fewer answers than this says nothing of how stable the load is."""


class Notes:
    """Ends of requests in the order of time. Several threads may note, others may read meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latencies = array("d")
        self._ended = array("d")
        self._failed_at = array("d")
        self._codes: list[str] = []

    def ok(self, ended: float, latency: float) -> None:
        """Note a success."""
        with self._lock:
            self._latencies.append(latency)
            self._ended.append(ended)

    def failed(self, ended: float, code: str) -> None:
        """Note a failure with the code of its error."""
        with self._lock:
            self._failed_at.append(ended)
            self._codes.append(code)

    @property
    def count(self) -> int:
        """How many have ended."""
        with self._lock:
            return len(self._ended) + len(self._codes)

    def between(self, start: float, end: float) -> tuple[array[float], Counter[str]]:
        """Give the latencies and the failures, by code, that ended from ``start`` to before ``end``."""
        with self._lock:
            first, last = bisect_left(self._ended, start), bisect_left(self._ended, end)
            a, b = bisect_left(self._failed_at, start), bisect_left(self._failed_at, end)
            return self._latencies[first:last], Counter(self._codes[a:b])


@dataclass
class Window:
    """What ended in a span of time.

    Attributes:
        start, end: In seconds on the clock of the load.
        latencies: Of each success, in seconds.
        failed: How many failed, by code.
    """

    start: float
    end: float
    latencies: array[float] = field(default_factory=lambda: array("d"))
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start

    @property
    def throughput_rps(self) -> float:
        """Successes per second."""
        return len(self.latencies) / self.seconds if self.seconds > 0 else 0.0

    @property
    def answered(self) -> int:
        """Successes and failures."""
        return len(self.latencies) + self.failed.total()

    @property
    def tells(self) -> bool:
        """Whether enough ended in it to compare it with others."""
        return self.answered >= LEAST_ANSWERS


def gathered(notes: list[Notes], start: float, end: float) -> Window:
    """Give what all of them noted in a span of time."""
    window = Window(start, end)
    for one in notes:
        latencies, failed = one.between(start, end)
        window.latencies.extend(latencies)
        window.failed.update(failed)
    return window


def agree(windows: list[Window], tolerance: float, *, by_rate: bool = True) -> bool:
    """Tell whether the windows differ from their mean by at most ``tolerance``, a share as 0.05.

    Compared are the throughput and the median latency. In an open loop the rate of arrivals is given
    and varies by chance, so ``by_rate = False`` compares the median alone.

    Args:
        windows: Those to compare, three as a rule.
        tolerance: The largest difference from the mean, over the mean.
        by_rate: Whether the throughput is compared, too.
    """
    if not all(one.tells and one.latencies for one in windows):
        return False
    rows = [[percentile(sorted(one.latencies), 50) for one in windows]]
    if by_rate:
        rows.append([one.throughput_rps for one in windows])
    for row in rows:
        mean = sum(row) / len(row)
        if any(abs(value - mean) > tolerance * mean for value in row):
            return False
    return True
