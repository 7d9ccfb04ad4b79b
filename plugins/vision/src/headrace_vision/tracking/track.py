"""`Track`: the same object has the same number in every frame of its source."""

from __future__ import annotations

import importlib
import logging
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.errors import SetupError, among
from headrace.plugins import library
from headrace_vision.models._each import ReadsSource, need
from headrace_vision.tracking._sources import Alone, PerSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["TRACKERS", "Track"]

TRACKERS = {
    "bytetrack": "ByteTrackTracker",
    "ocsort": "OCSORTTracker",
    "sort": "SORTTracker",
    "botsort": "BoTSORTTracker",
}
"""The trackers of the library ``trackers``, by the name in a configuration."""

LEAST_PERIODS = 3
"""A track that was lost is kept for at least so many frames of its source: else none of a slow camera would be confirmed."""

_LOG = logging.getLogger("headrace.vision")


class _Reads(ReadsSource, total=False):
    image: Any


class Track(Alone):
    """Number the detections of each source: the same object keeps its number.

    Every source has a tracker of its own, told by ``context["source"]``, so numbers are never shared. Rows keep their
    order. -1 means *not confirmed*: the tracker has not seen the object often enough. A lost track is kept for ``lost_track_buffer`` / 30
    seconds, and for 3 frames where they come more slowly. Frames that are further apart get new numbers, and the log says so.

    Reads:
        data: ``supervision.Detections``.
        context: A mapping with ``source``, ``frame`` and ``timestamp`` (s), as VideoRunner writes it; without
            it, all requests are one source in the order in which they come.
        image: ``uint8 [H, W, 3]``, only for ``botsort`` and trackers of your own.

    Writes:
        result: ``supervision.Detections`` with ``tracker_id``.

    Batch:
        1 or more. Items go one after the other.

    Raises:
        InputError: ``data`` is missing or something else, or a frame is not later than the one before of its source.

    Source:
        SORT, ByteTrack, OC-SORT and BoT-SORT as in the library ``trackers``.
    """

    class Options(headrace.Options):
        """Which tracker.

        Attributes:
            tracker: bytetrack, ocsort, sort, botsort, or module:Class with the method update(detections, frame,
                timestamp).
            settings: Arguments of the tracker by name, in its own units.
        """

        tracker: str = "bytetrack"
        settings: dict[str, Any] = Field({})

        positional = ("tracker",)

    rerun = False
    reads = _Reads

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Find the tracker, make one to see that its settings are right, and return what works on a request."""
        import numpy as np

        from headrace_vision.models.boxes import as_detections

        tracker = _tracker_class(options.tracker, allow_import=context.allow_import)

        def make() -> Any:
            return tracker(**options.settings)

        try:
            make()
        except (TypeError, ValueError) as error:
            text = f"the tracker {options.tracker!r} refuses its settings: {error}"
            hint = "The option settings has the arguments of its class."
            raise SetupError(text, hint=hint) from error
        states = PerSource(lambda: _Tracker(make()))
        wants_image = options.tracker not in TRACKERS or options.tracker == "botsort"

        def work(request: Request) -> None:
            detections = as_detections(need(request, "data", "supervision.Detections"))
            state, timestamp = states.next(request)
            state.wait_for(timestamp, request)
            numbered = _copy(detections)
            numbered.data = {**detections.data, "_row": np.arange(len(detections))}
            image = request.get("image")
            tracked = state.tracker.update(
                numbered, frame=image if wants_image else None, timestamp=timestamp
            )
            ids = np.full(len(detections), -1, np.int64)
            if len(tracked):
                ids[np.asarray(tracked.data["_row"], np.int64)] = tracked.tracker_id
            numbered.data = dict(detections.data)
            numbered.tracker_id = ids
            request["result"] = numbered

        return work


class _Tracker:
    """A tracker of one source, and how long it keeps lost tracks.

    Args:
        tracker: It. One of your own may have no such time.
    """

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker
        self._buffer_s: float | None = getattr(tracker, "maximum_time_without_update", None)
        self._steps_s: deque[float] = deque(maxlen=5)
        self._last_s: float | None = None
        self._is_told = False

    def wait_for(self, time_s: float | None, request: Request) -> None:
        """Set how long lost tracks are kept, before the frame at ``time_s`` seconds. Say once where that is not long enough."""
        last_s, self._last_s = self._last_s, time_s
        if time_s is None or last_s is None or self._buffer_s is None:
            return
        self._steps_s.append(time_s - last_s)
        kept_s = max(self._buffer_s, LEAST_PERIODS * median(self._steps_s))
        self.tracker.maximum_time_without_update = kept_s
        if time_s - last_s > kept_s and not self._is_told:
            self._is_told = True
            source = (request.get("context") or {}).get("source", "")
            text = (
                "Track has no frame of %s for %.1f s, and keeps lost tracks for %.1f s: its objects get new numbers; "
                "settings = {lost_track_buffer = N} keeps them for N / 30 s"
            )
            _LOG.warning(text, source, time_s - last_s, kept_s)


def _copy(detections: Any) -> Any:
    from dataclasses import replace

    return replace(detections, tracker_id=None)


def _tracker_class(name: str, *, allow_import: bool) -> Any:
    if name in TRACKERS:
        return getattr(library("trackers", "headrace-vision[track]"), TRACKERS[name])
    module, colon, attribute = name.partition(":")
    if not colon:
        hint = f"{among(name, TRACKERS)} Or write module:Class."
        raise SetupError(f"there is no tracker {name!r}", hint=hint)
    if not allow_import:
        raise SetupError(
            f"the tracker {name!r} may not be imported", hint="Imports of configurations are off."
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SetupError(
            f"the tracker {name!r} cannot be imported: {error}", hint="Write module:Class."
        ) from error
