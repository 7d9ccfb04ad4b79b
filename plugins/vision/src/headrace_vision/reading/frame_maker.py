"""What makes frames of the pictures of a source: numbers, times, privacy masks, and ids of events."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace_vision.clock import utc
from headrace_vision.frames import Frame, Shot
from headrace_vision.privacy import PrivacyMasks
from headrace_vision.reading.timing import Thinning, Timeline

if TYPE_CHECKING:
    from headrace_vision.options import SourceOptions

__all__ = ["FrameMaker"]

_LOG = logging.getLogger("headrace.vision")


class FrameMaker:
    """Makes the frames of one source. It has no lock: the thread that reads the source uses it, but for `name_events`.

    Args:
        name: What frames say as ``source``.
        options: How the source is read.
        live: Whether it goes on whether or not somebody reads.

    Attributes:
        timeline: The times of its frames.
    """

    def __init__(self, name: str, options: SourceOptions, *, live: bool) -> None:
        self._name, self._options, self._live = name, options, live
        self.timeline = Timeline(1.0 / options.image_fps)
        self._thinning = Thinning(options)
        self._masks = PrivacyMasks((options.privacy_masks or {}).values())
        self._number = 0
        self._has_wrong_clock = False
        self._run, self._events = secrets.token_hex(4), itertools.count(1)

    def next_frame(self, shot: Shot) -> Frame:
        """Return the frame of a picture, without its image."""
        number = self._number
        self._number += 1
        stamp = self.timeline.stamp(shot.time_s)
        frame = Frame(self._name, number, stamp, gap=shot.gap, path=shot.path, error=shot.error)
        frame.time, frame.time_from = self._capture_time(shot)
        frame.damaged, frame.live = shot.damaged, self._live
        frame.aspect, frame.color = shot.aspect, shot.color
        return frame

    def keeps(self, frame: Frame) -> bool:
        """Return whether a frame is not thinned out."""
        return frame.error is not None or self._thinning.keeps(frame.frame, frame.timestamp)

    def add_image(self, frame: Frame, shot: Shot) -> None:
        """Give a frame its image, or the error of that."""
        if shot.error is None:
            try:
                frame.image = self._masks.covered(shot.convert())
            except Exception as error:  # noqa: BLE001 - the outcome of this frame
                frame.error = error

    def name_events(self, frame: Frame) -> None:
        """Give each event of a frame the time of the frame, and an id that no other event has, of no run."""
        events = frame.request.get("events")
        if isinstance(events, (list, tuple)):
            frame.request["events"] = [
                {
                    "id": f"{self._name}:{self._run}:{next(self._events)}",
                    "time": frame.time,
                    **event,
                }
                if isinstance(event, Mapping)
                else event
                for event in events
            ]

    def _capture_time(self, shot: Shot) -> tuple[float, str]:
        """Return when a picture was captured, and who says so: not a camera whose clock is wrong, which is logged once."""
        came = utc() if shot.came is None else shot.came
        if shot.told is None:
            return came, "arrival"
        off_s, is_wrong = shot.told - came, self._has_wrong_clock
        self._has_wrong_clock = abs(off_s) > self._options.clock_tolerance_s
        if self._has_wrong_clock and not is_wrong:
            text = (
                "the clock of source %s is %+.0f s off: its frames have the time of their arrival"
            )
            _LOG.warning(text, self._name, off_s)
        elif is_wrong and not self._has_wrong_clock:
            _LOG.warning("the clock of source %s is right again", self._name)
        return (came, "arrival") if self._has_wrong_clock else (shot.told, "camera")
