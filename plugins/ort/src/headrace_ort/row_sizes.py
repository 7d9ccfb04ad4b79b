"""The numbers of rows with which an instance runs, where a change of the number takes long."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from headrace_ort import cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["RowSizes"]


class RowSizes:
    """Gives each run its number of rows: the next one that is allowed, or that of an earlier run.

    Args:
        allowed: The numbers of rows that runs may have. A batch is filled up to the next one. Empty: any.
        measured: Whether the warm-up measures a change of the number. It then becomes seldom, or all numbers are allowed.

    Attributes:
        allowed: The numbers of rows that runs may have, ascending. Empty: any.
        measured: The argument.
    """

    def __init__(self, allowed: Iterable[int], *, measured: bool) -> None:
        self.allowed, self.measured = sorted(allowed), measured
        # The size that runs keep, the largest size needed since, the seconds lost by that, and the most that may be.
        self._size, self._needed, self._lost_s, self._most_s = 0, 0, 0.0, 0.0
        self._took_s: dict[int, float] = {}  # a run's seconds by its size

    def filled(self, rows: int) -> int:
        """Return the rows with which a run is made: an earlier run's, until copies of rows have cost two changes."""
        size = next((n for n in self.allowed if n >= rows), None)
        if size is None or not self._took_s:
            return size or rows
        self._needed = max(self._needed, size)
        self._lost_s += self._took_s[self._size] - self._took_s[size]
        if size >= self._size or self._lost_s > self._most_s:
            self._size, self._needed, self._lost_s = self._needed, 0, 0.0
        return self._size

    def measure(self, run: Callable[[int], object] | None) -> None:
        """Time runs of all sizes, and a change to the largest. Allow any size if it takes no longer than a run.

        Args:
            run: Runs a number of rows. None: there is nothing to run, and any size is allowed.
        """
        sizes, self.allowed = self.allowed, []
        if run is None:
            return
        try:
            for rows in (*sizes, sizes[0], sizes[-1]):
                changed_s, *same_s = (_seconds_of(run, rows) for _ in range(4))
                self._took_s[rows] = min(same_s)
        except Exception as error:
            if cuda.lost_device(error) is not None:
                raise
            return  # a default fails no node whose batches may never be so large
        if changed_s >= 2 * min(same_s):
            self.allowed, self._size = sizes, sizes[-1]
            self._most_s = 2 * (changed_s - min(same_s))  # to fewer rows, and back


def _seconds_of(run: Callable[[int], object], rows: int) -> float:
    begun_s = perf_counter()
    run(rows)
    return perf_counter() - begun_s
