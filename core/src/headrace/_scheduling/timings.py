"""Durations, counted in buckets: constant memory, exact mean, percentiles within 5 per cent."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["Timings"]

_STEP = 1.1
_BOUNDS_MS = tuple(0.0001 * _STEP**i for i in range(220))
"""Upper bounds of the buckets: 0.1 µs to about 100 s, each 10 per cent above the last."""


class Timings:
    """A histogram of durations in milliseconds."""

    __slots__ = ("_counts", "count", "total_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_MS) + 1)
        self.count = 0
        self.total_ms = 0.0

    def add(self, duration_ms: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(_BOUNDS_MS, duration_ms)] += 1
        self.count += 1
        self.total_ms += duration_ms

    def merge(self, other: Timings) -> None:
        """Count all that ``other`` has counted."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self.total_ms += other.total_ms

    def percentile(self, share: float) -> float:
        """Give the duration in ms that ``share`` of all do not exceed, 0.0 when there is none."""
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                upper = _BOUNDS_MS[min(index, len(_BOUNDS_MS) - 1)]
                return 0.0 if index == 0 else upper / (1 + (_STEP - 1) / 2)
        return 0.0

    def summary(self) -> dict[str, float]:
        """Give mean, p50, p90 and p99 in milliseconds, rounded to 0.1 µs."""
        mean = self.total_ms / self.count if self.count else 0.0
        return {
            "mean": round(mean, 4),
            "p50": round(self.percentile(0.50), 4),
            "p90": round(self.percentile(0.90), 4),
            "p99": round(self.percentile(0.99), 4),
        }
