"""`CountLine` and `CountZone`: who crosses a line, and who is in a zone for how long."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, FiniteFloat

import headrace
from headrace.errors import InputError
from headrace_vision.models._each import TRACKED, ReadsSource, need, no_tracks
from headrace_vision.tracking._sources import Alone, PerSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["CountLine", "CountZone"]

Anchor = Literal["center", "bottom_center", "top_center", "corners"]


class _Reads(ReadsSource, total=False):
    counts: Any
    events: Any


class _ReadsLines(_Reads, total=False):
    lines: Any


class _ReadsZones(_Reads, total=False):
    zones: Any


class CountLine(Alone):
    """Count the tracks of each source that cross a line.

    *In* is from the right to the left of the way from the line's start to its end, as it is seen in the image. *out* is the
    other way. Only tracks that are confirmed count.

    Reads:
        data: ``supervision.Detections`` with ``tracker_id``, as Track writes it.
        context: As Track reads it.
        counts: Those of other words, which are kept.
        events: Those of other words, which are kept.
        lines: Those of other words, which are kept.

    Writes:
        result: The same detections.
        counts: ``counts[name] = {"in": n, "out": n}`` since the beginning of the source.
        events: A list with a dict per crossing in this frame: ``type`` (``"line"``), ``name``, ``direction``
            (``"in"``, ``"out"``), ``track_id``, ``class_name``, ``frame``, ``timestamp``.
        lines: ``lines[name]`` is the line.

    Batch:
        1 or more. Items go one after the other.

    Raises:
        InputError: ``data`` is missing, is something else or has no tracks, or a frame is not later than the one
            before of its source.

    Source:
        ``supervision.LineZone``.
    """

    class Options(headrace.Options):
        """The line, and what of a box crosses it.

        Attributes:
            line: Start and end of the line: x1, y1, x2, y2 in pixels of the source image.
            name: How the line is called in counts and events.
            anchor: Which part of a box must cross.
        """

        line: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]
        name: str = "line"
        anchor: Anchor = "center"

        positional = ("line",)

    rerun = False
    reads = _ReadsLines
    writes = ("result", "counts", "events", "lines")

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Return what works on one request."""
        import supervision as sv

        x1, y1, x2, y2 = options.line
        anchors = _anchors(options.anchor)

        def make() -> Any:
            return sv.LineZone(sv.Point(x1, y1), sv.Point(x2, y2), triggering_anchors=anchors)

        states = PerSource(make)

        def work(request: Request) -> None:
            detections = _tracked(request)
            line, timestamp = states.next(request)
            events: list[dict[str, Any]] = []
            for direction, hits in zip(("in", "out"), line.trigger(detections), strict=True):
                crossing = {"type": "line", "name": options.name, "direction": direction}
                rows = hits.nonzero()[0].tolist()
                events += [_event(detections, row, request, timestamp) | crossing for row in rows]
            _add(request, options.name, {"in": line.in_count, "out": line.out_count}, events)
            request["lines"] = {**request.get("lines", {}), options.name: list(options.line)}
            request["result"] = request["data"]

        return work


class CountZone(Alone):
    """Count the tracks of each source inside a polygon, and say who enters and leaves, and how long each was inside.

    A track that is not seen for ``patience_s`` has left when it was last seen inside.

    Reads:
        data: ``supervision.Detections`` with ``tracker_id``, as Track writes it.
        context: As Track reads it.
        counts: Those of other words, which are kept.
        events: Those of other words, which are kept.
        zones: Those of other words, which are kept.

    Writes:
        result: The same detections.
        counts: ``counts[name] = {"inside": n, "entered": n}``: now, and since the beginning of the source.
        events: A list with a dict for each that enters or leaves in this frame, or has been inside for so long: ``type``
            (``"zone"``), ``name``, ``direction`` (``"enter"``, ``"leave"``, ``"dwell"``), ``track_id``, ``class_name``, ``frame``,
            ``timestamp``. Those that leave or dwell have ``dwell_s``: for how many seconds they were inside.
        zones: ``zones[name]`` is the zone.

    Batch:
        1 or more. Items go one after the other.

    Raises:
        InputError: ``data`` is missing, is something else or has no tracks, or a frame is not later than the one
            before of its source.

    Source:
        ``supervision.PolygonZone``. The times are own.
    """

    class Options(headrace.Options):
        """The zone, and what of a box is in it.

        Attributes:
            zone: Corners of the polygon: a list of [x, y] in pixels of the source image.
            name: How the zone is called in counts and events.
            anchor: Which part of a box must be inside.
            patience_s: A track that is unseen for longer has left (seconds).
            dwell_s: A track that is inside for so many seconds gives an event, one for each stay. None: no such event.
        """

        zone: list[Annotated[tuple[FiniteFloat, FiniteFloat], Field()]] = Field(min_length=3)
        name: str = "zone"
        anchor: Anchor = "bottom_center"
        patience_s: float = Field(1.0, ge=0)
        dwell_s: float | None = Field(None, gt=0)

        positional = ("zone",)

    rerun = False
    reads = _ReadsZones
    writes = ("result", "counts", "events", "zones")

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Return what works on one request."""
        import numpy as np
        import supervision as sv

        polygon = np.rint(np.array(options.zone)).astype(np.int64)
        if (polygon < 0).any():
            raise InputError("the zone has a corner outside of the image", key="zone")
        zone = sv.PolygonZone(polygon, triggering_anchors=_anchors(options.anchor))
        states = PerSource(lambda: _Visits(options.patience_s, options.dwell_s))

        def work(request: Request) -> None:
            detections = _tracked(request)
            visits, timestamp = states.next(request)
            inside = zone.trigger(detections)
            ids = detections.tracker_id if len(detections) else []
            rows = {int(number): row for row, number in enumerate(ids) if number >= 0}
            events = []
            for direction, track_id, dwell_s in visits.look(rows, inside, timestamp):
                event = _event(detections, rows.get(track_id), request, timestamp)
                event |= {"type": "zone", "name": options.name, "direction": direction}
                event["track_id"] = track_id
                if dwell_s is not None:
                    event["dwell_s"] = dwell_s
                events.append(event)
            counts = {"inside": len(visits.since), "entered": visits.entered}
            _add(request, options.name, counts, events)
            request["zones"] = {**request.get("zones", {}), options.name: options.zone}
            request["result"] = request["data"]

        return work


class _Visits:
    """Who is inside since when, and when each was last seen there; times in seconds."""

    def __init__(self, patience_s: float, dwell_s: float | None) -> None:
        self.since: dict[int, float] = {}
        self.entered = 0
        self._seen: dict[int, float] = {}
        self._told: set[int] = set()
        self._patience_s = patience_s
        self._dwell_s = math.inf if dwell_s is None else dwell_s
        self._now = 0.0

    def look(
        self, rows: dict[int, int], inside: Any, time_s: float | None
    ) -> list[tuple[str, int, float | None]]:
        """Return who enters (None), dwells and leaves (with the seconds inside). Without a time, none has passed."""
        self._now = now = self._now if time_s is None else float(time_s)
        moves: list[tuple[str, int, float | None]] = []
        for track_id, row in rows.items():
            if inside[row]:
                if track_id not in self.since:
                    self.since[track_id] = now
                    self.entered += 1
                    moves.append(("enter", track_id, None))
                self._seen[track_id] = now
                moves += self._dwelling(track_id, now)
        for track_id in list(self.since):
            unseen = track_id not in rows and now - self._seen[track_id] > self._patience_s
            if unseen or (track_id in rows and not inside[rows[track_id]]):
                end = self._seen.pop(track_id) if unseen else now
                self._seen.pop(track_id, None)
                moves += self._dwelling(track_id, end)
                self._told.discard(track_id)
                moves.append(("leave", track_id, end - self.since.pop(track_id)))
        return moves

    def _dwelling(self, track_id: int, now: float) -> list[tuple[str, int, float | None]]:
        """Return a track that is inside for long enough, once for each stay."""
        inside_s = now - self.since[track_id]
        if inside_s < self._dwell_s or track_id in self._told:
            return []
        self._told.add(track_id)
        return [("dwell", track_id, inside_s)]


def _anchors(name: str) -> list[Any]:
    import supervision as sv

    if name == "corners":
        corners = ("TOP_LEFT", "TOP_RIGHT", "BOTTOM_LEFT", "BOTTOM_RIGHT")
        return [sv.Position[corner] for corner in corners]
    return [sv.Position[name.upper()]]


def _tracked(request: Request) -> Any:
    from headrace_vision.models.boxes import as_detections

    detections = as_detections(need(request, "data", TRACKED))
    if len(detections) and detections.tracker_id is None:
        raise no_tracks("the detections have no tracks")
    return detections


def _event(
    detections: Any, row: int | None, request: Request, timestamp: float | None
) -> dict[str, Any]:
    names = detections.data.get("class_name")
    return {
        "track_id": None if row is None else int(detections.tracker_id[row]),
        "class_name": None if row is None or names is None else str(names[row]),
        "frame": (request.get("context") or {}).get("frame"),
        "timestamp": timestamp,
    }


def _add(request: Request, name: str, counts: dict[str, int], events: list[dict[str, Any]]) -> None:
    request["counts"] = {**request.get("counts", {}), name: counts}
    request["events"] = [*request.get("events", []), *events]
