"""Which frames of a source are kept, and the times that they get. No thread, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_vision.options import SourceOptions

__all__ = ["SMALLEST_STEP_S", "Thinning", "Timeline"]

SMALLEST_STEP_S = 1e-6
"""Least difference between the times of two frames, in seconds."""


class Timeline:
    """Times that strictly increase, whatever the times of the file or camera do.

    Args:
        period_s: Seconds between two frames where the source says no times.
    """

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._last: float | None = None
        self._offset = 0.0
        self._continued: float | None = None

    def continue_after(self, elapsed_s: float) -> None:
        """Let the next frame come ``elapsed_s`` seconds after the last one, whatever time it says."""
        if self._last is not None:
            self._continued = self._last + max(elapsed_s, SMALLEST_STEP_S)

    def stamp(self, time_s: float | None) -> float:
        """Return the time of the next frame, in seconds.

        Args:
            time_s: The time that the source says; None where it says none.
        """
        last = self._last
        if time_s is None:
            stamp = 0.0 if last is None else last + self.period_s
            stamp = stamp if self._continued is None else self._continued
        elif self._continued is None:
            stamp = time_s + self._offset
        else:
            self._offset = self._continued - time_s
            stamp = self._continued
        self._continued = None
        if last is not None and stamp <= last:
            stamp = last + SMALLEST_STEP_S
        self._last = stamp
        return stamp


class Thinning:
    """Says which frames are kept: each ``stride``-th one, at most ``max_fps`` in a second.

    Args:
        options: ``stride`` and ``max_fps`` of the source.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._stride = options.stride
        self._period = None if options.max_fps is None else 1.0 / options.max_fps
        self._due: float | None = None

    def keeps(self, number: int, timestamp: float) -> bool:
        """Return whether frame ``number`` at ``timestamp`` seconds is kept."""
        if number % self._stride:
            return False
        if self._period is None:
            return True
        slack = 1e-9
        if self._due is not None and timestamp + slack < self._due:
            return False
        due = timestamp if self._due is None else self._due
        late = timestamp - due >= self._period
        self._due = (timestamp if late else due) + self._period
        return True
