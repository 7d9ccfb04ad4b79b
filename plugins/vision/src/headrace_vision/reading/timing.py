"""Which frames of a source are kept, and the times that they get. No thread."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from headrace_vision.clock import utc

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_vision.options import SourceOptions

__all__ = ["SMALLEST_STEP_S", "CaptureTimes", "PictureTimes", "Thinning", "Timeline"]

MOST_REORDERED = 16
"""Most pictures by which codecs change the order (H.264 and HEVC); times that go back further began again."""

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

        Where the clock of the source is not known yet, as behind a gap, the first time that it says is a period after the last frame.

        Args:
            time_s: The time that the source says. None where it says none.
        """
        last, placed = self._last, self._continued
        if last is None and time_s is None:
            placed = 0.0
        self._continued = None
        if placed is not None and time_s is None:
            stamp = placed
            self._continued = placed + self.period_s
        elif placed is not None and time_s is not None:
            stamp, self._offset = placed, placed - time_s
        else:
            known = None if time_s is None else time_s + self._offset
            stamp = (last or 0.0) + self.period_s if known is None else known
        if last is not None and stamp <= last:
            stamp = last + SMALLEST_STEP_S
        self._last = stamp
        return stamp


class PictureTimes:
    """The times of the pictures of one open video, by one clock.

    Args:
        clock: See ``SourceOptions``. None: ``"pts"``, and ``"dts"`` once presentation times go back and decoding times do not.
        period_s: Seconds between two pictures, until they say it.
        now: Returns the time of arrival, in seconds.
    """

    def __init__(self, clock: str | None, period_s: float, now: Callable[[], float]) -> None:
        self._clock = clock
        self._step_s = period_s
        self._now = now
        self._zero_s: float | None = None
        self._pts_s: float | None = None
        self._dts_s: float | None = None
        self._last_s: float | None = None
        self._offset_s = 0.0
        self._begins_again = False

    def stamp(self, picture: Any) -> tuple[float | None, bool]:
        """Return the time of the next picture in seconds, None where there is none, and whether its clock began again."""
        if self._clock == "arrival":
            now_s = self._now()
            self._zero_s = now_s if self._zero_s is None else self._zero_s
            return now_s - self._zero_s, False
        pts_s, dts_s = _seconds(picture, picture.pts), _seconds(picture, picture.dts)
        if _is_before(dts_s, self._dts_s):  # within a stream they never go back
            self._begins_again = True
        is_wrong = _is_before(pts_s, self._pts_s) and dts_s is not None and not self._begins_again
        if self._clock is None and is_wrong:
            self._clock = "dts"
            if self._pts_s is not None and self._dts_s is not None:
                self._offset_s += self._pts_s - self._dts_s
        self._pts_s, self._dts_s = pts_s, dts_s
        time_s = dts_s if self._clock == "dts" else pts_s
        last_s, next_s = self._last_s, (self._last_s or 0.0) + self._step_s
        if time_s is None:  # as the last pictures of a file, which come without a packet
            self._last_s = None if last_s is None else next_s
            return self._last_s, False
        time_s += self._offset_s
        begins_again = _is_before(time_s, last_s, MOST_REORDERED * self._step_s)
        if begins_again:
            self._offset_s += next_s - time_s
            time_s, self._begins_again = next_s, False
        elif last_s is not None and time_s > last_s:
            self._step_s = time_s - last_s
        self._last_s = time_s
        return time_s, begins_again


class CaptureTimes:
    """When the pictures of one open video were captured, in UTC: as its camera reports, and when their packets came.

    Source:
        ``AVProducerReferenceTime`` of FFmpeg: microseconds since 1970, which its RTP gets from sender reports.
    """

    def __init__(self) -> None:
        self._came: OrderedDict[int | None, float] = OrderedDict()
        self._ahead_s: float | None = None
        self._reports = 0

    def note(self, packet: Any) -> None:
        """Note a packet, before it is decoded."""
        self._came[packet.pts] = utc()
        if len(self._came) > 4 * MOST_REORDERED:
            self._came.popitem(last=False)
        begin_s = _seconds(packet, packet.pts)
        if begin_s is None or not packet.has_sidedata("prft"):
            return
        (wall_us,) = struct.unpack_from("=q", bytes(packet.get_sidedata("prft")))
        self._reports += wall_us > 0  # a camera without a clock of the day reports 0
        if self._reports > 1:  # the first one comes with the picture before its own
            self._ahead_s = wall_us / 1e6 - begin_s

    def of(self, picture: Any) -> tuple[float | None, float | None]:
        """Return when a picture came, and when it was captured, as its camera says. Each may be unknown."""
        came = self._came.pop(picture.pts, None)
        begin_s = _seconds(picture, picture.pts)
        if self._ahead_s is None or begin_s is None:
            return came, None
        return came, begin_s + self._ahead_s


def _seconds(picture: Any, ticks: int | None) -> float | None:
    return None if ticks is None else float(ticks * picture.time_base)


def _is_before(time_s: float | None, other_s: float | None, by_s: float = 0.0) -> bool:
    return time_s is not None and other_s is not None and time_s < other_s - by_s


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
