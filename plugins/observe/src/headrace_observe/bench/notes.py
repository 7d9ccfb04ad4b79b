"""Notes of the requests of a load: when each ended, and its latency or the code of its error."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from math import inf

from headrace.errors import code_of
from headrace_observe.bench.figures import percentile
from headrace_observe.codes import text_of

__all__ = ["Notes", "Window", "agree", "gathered"]

LEAST_ANSWERS = 10
"""A window with fewer answers is too small to judge whether the load is stable."""


class Notes:
    """The ends of requests, in the order of time. Several threads may note ends while others read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latencies = array("d")
        self._ended = array("d")
        self._failed_at = array("d")
        self._codes: list[str] = []
        self.errors: dict[str, str] = {}
        """The text of the first error with each code."""

    def ok(self, ended: float, latency: float) -> None:
        """Note a success."""
        with self._lock:
            self._latencies.append(latency)
            self._ended.append(ended)

    def failed(self, ended: float, error: BaseException) -> None:
        """Note a failure with the code of its error."""
        code = code_of(error)
        if code not in self.errors:
            self.errors[code] = text_of(error)
        with self._lock:
            self._failed_at.append(ended)
            self._codes.append(code)

    @property
    def count(self) -> int:
        """How many have ended."""
        with self._lock:
            return len(self._ended) + len(self._codes)

    @property
    def last(self) -> float:
        """When the last one ended; minus infinity if none has."""
        with self._lock:
            return max((ends[-1] for ends in (self._ended, self._failed_at) if ends), default=-inf)

    def between(self, start: float, end: float) -> tuple[array[float], Counter[str]]:
        """Return the latencies, and the number of failures by code, of requests that ended in [``start``, ``end``)."""
        with self._lock:
            first, last = bisect_left(self._ended, start), bisect_left(self._ended, end)
            a, b = bisect_left(self._failed_at, start), bisect_left(self._failed_at, end)
            return self._latencies[first:last], Counter(self._codes[a:b])


@dataclass
class Window:
    """The requests that ended in a span of time.

    Attributes:
        start, end: The span, in seconds on the clock of the load.
        latencies: The latency of each request that succeeded, in seconds.
        failed: The number of requests that failed, by code.
        errors: The text of an error with each of these codes, perhaps from before the span.
    """

    start: float
    end: float
    latencies: array[float] = field(default_factory=lambda: array("d"))
    failed: Counter[str] = field(default_factory=Counter)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The length of the window, in seconds."""
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
    def comparable(self) -> bool:
        """Whether enough requests ended in the window to compare it with others."""
        return self.answered >= LEAST_ANSWERS


def gathered(notes: list[Notes], start: float, end: float) -> Window:
    """Return the window of a span of time, from the notes of several threads."""
    window = Window(start, end)
    for note in notes:
        latencies, failed = note.between(start, end)
        window.latencies.extend(latencies)
        window.failed.update(failed)
        window.errors.update((code, note.errors[code]) for code in failed)
    return window


def agree(windows: list[Window], tolerance: float, *, by_rate: bool = True) -> bool:
    """Return whether windows agree in throughput and median latency.

    In an open loop the throughput follows the arrivals, which vary by chance, so with ``by_rate = False`` only the
    median latencies are compared. Windows in which every request failed agree, because more time would change
    nothing.

    Args:
        windows: The windows to compare.
        tolerance: The largest difference of a window from their mean, as a share of the mean (0.05 is 5 %).
        by_rate: Whether the throughput is compared, too.
    """
    if not all(window.comparable and window.latencies for window in windows):
        return all(window.comparable and not window.latencies for window in windows)
    rows = [[percentile(sorted(window.latencies), 50) for window in windows]]
    if by_rate:
        rows.append([window.throughput_rps for window in windows])
    for row in rows:
        mean = sum(row) / len(row)
        if any(abs(value - mean) > tolerance * mean for value in row):
            return False
    return True
