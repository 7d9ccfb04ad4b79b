"""What can be set for each source."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import among
from headrace_vision.privacy import check_masks

if TYPE_CHECKING:
    from headrace import PipelineConfig

__all__ = [
    "FFMPEG",
    "PER_MODEL",
    "SourceOptions",
    "check_count",
    "check_name",
    "options_of",
]

FFMPEG = {
    **dict.fromkeys(("analyzeduration", "probesize", "fflags"), ("file", "address")),
    **dict.fromkeys(("max_delay", "reorder_queue_size", "rtsp_transport"), ("address",)),
    **dict.fromkeys(("video_size", "framerate", "input_format", "pixel_format"), ("camera",)),
    **dict.fromkeys(("threads", "hwaccel"), ("file", "address", "camera")),
}
"""FFmpeg's options that may be set, and what they are for. None of them opens anything."""

MAX_PIXELS = 1 << 30
"""Most that ``max_pixels`` may be, as it is in headrace-cv."""


def check_name(what: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is not known.

    Raises:
        ValueError: It is not. The text has the nearest known one.
    """
    if name not in known:
        raise ValueError(f"there is no {what} {name!r}. {among(name, known)}")


@dataclass(frozen=True)
class SourceOptions:
    """How a source is read.

    Attributes:
        frames: ``"every"``: reading waits for the pipeline. ``"latest"``: frames that nobody began
            give way to newer ones. None: ``"latest"`` for what is live, else ``"every"``.
        in_flight: Most frames of one source between reading and delivery. None: 4, and 3 where frames give way to newer
            ones, so that those of eight sources and batches of eight are at most three batches old.
        stride: Each how manieth frame is kept.
        clock: Whose times frames have: ``"pts"`` (those at which they are shown), ``"dts"`` (at which they are decoded) or
            ``"arrival"`` (at which a live source sends them. Also pictures in memory). None: ``"arrival"`` for what is live
            and has no times, ``"dts"`` once those of ``"pts"`` go back, else ``"pts"``.
        max_fps: Most frames kept per second of the source's own time. None for all.
        start: Second of the file at which reading begins, or None.
        stop: Second of the file at which reading ends, or None.
        loop: Whether a file begins again at its end, without end.
        realtime: Whether a file is read no faster than it plays, then it counts as live.
        read_timeout: Seconds a live source may be silent before it is lost.
        clock_tolerance_s: Most seconds by which the time of an RTSP camera may differ from the arrival of its pictures. Beyond that it
            is not believed.
        skip_damaged: Whether pictures that are built on a missing or damaged one are left out, up to the next key frame. See
            ``Frame.damaged``.
        image_fps: Pictures per second of stills that follow each other in one source.
        max_pixels: Largest picture that is decoded or taken, in pixels (width x height). A larger one is a failed frame.
        model: Which of several models gets the frames. None for the only one.
        models: Names of several models that get the frames, or a table by name with ``ordered``, ``lines`` and ``zones`` of each
            for this source. Then a frame has the outcome of each in ``Frame.models``.
        ordered: What gets the results in order, an expression or a configuration. None for that of the model.
        gate: ``"motion"``: a model gets only frames that differ from the last one that it got, and one each 5 s. The others have
            its answer again, and ``gated`` in their ``request``. What is in order, and sinks, get all. None: a model gets all.
        lines: Lines that are counted behind that, by name: ``{"door": [x1, y1, x2, y2]}``, in pixels. See CountLine.
            Its other options stand in a table: ``{"door": {"line": [...], "anchor": "bottom_center"}}``.
        zones: Zones that are counted, by name: ``{"yard": [[x, y], [x, y], [x, y]]}``, in pixels, or
            ``{"yard": {"zone": [...], "dwell_s": 60}}``. See CountZone.
        privacy_masks: Parts of the picture that nobody sees, by name: ``{"window": [[x, y], [x, y], [x, y]]}``, from 0 to 1 of its
            width and height, as it is delivered. They are black before models and sinks get a frame.
        sinks: Names of the sinks that get the frames. None for all.
        ffmpeg: Options of FFmpeg by name: ``analyzeduration`` (us) and ``probesize`` for the time to the first frame, ``fflags``,
            of an address ``max_delay``, ``reorder_queue_size``, ``rtsp_transport`` (``"tcp"``, ``"udp"``), of a camera
            ``video_size``, ``framerate``, ``input_format``, ``pixel_format``, and ``threads`` of the decoder, or its ``hwaccel``
            (``"cuda"``, ``"cuda:1"``, ``"vaapi"``).
    """

    frames: Literal["every", "latest"] | None = None
    in_flight: int | None = None
    stride: int = 1
    clock: Literal["pts", "dts", "arrival"] | None = None
    max_fps: float | None = None
    start: float | None = None
    stop: float | None = None
    loop: bool = False
    realtime: bool = False
    read_timeout: float = 10.0
    clock_tolerance_s: float = 60.0
    skip_damaged: bool = False
    image_fps: float = 25.0
    max_pixels: int = 100_000_000
    model: str | None = None
    models: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None
    ordered: str | Mapping[str, Any] | PipelineConfig | None = None
    gate: Literal["motion"] | None = None
    lines: Mapping[str, Any] | None = None
    zones: Mapping[str, Any] | None = None
    privacy_masks: Mapping[str, Any] | None = None
    sinks: Sequence[str] | None = None
    ffmpeg: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: A value is out of its range. The text says which one.
        """
        if self.frames not in (None, "every", "latest"):
            raise ValueError(f'frames is "every" or "latest", not {self.frames!r}')
        if self.clock not in (None, "pts", "dts", "arrival"):
            raise ValueError(f'clock is "pts", "dts" or "arrival", not {self.clock!r}')
        if self.gate not in (None, "motion"):
            raise ValueError(f'gate is "motion", not {self.gate!r}')
        if self.in_flight is not None:
            check_count("in_flight", self.in_flight)
        check_count("stride", self.stride)
        check_count("max_pixels", self.max_pixels, MAX_PIXELS)
        for name, kind in _KINDS.items():
            _check_kind(name, getattr(self, name), kind)
        for name in ("max_fps", "read_timeout", "clock_tolerance_s", "image_fps"):
            _check_seconds(name, getattr(self, name), above=0.0)
        for name in ("start", "stop"):
            _check_seconds(name, getattr(self, name), above=-math.inf)
        if self.start is not None and self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop = {self.stop} is not after start = {self.start}")
        check_masks(self.privacy_masks or {})
        if self.models is not None:
            self._check_models(self.models)

    def _check_models(self, models: Any) -> None:
        if not models:
            raise ValueError("models is empty: name a model, or leave it out")
        if self.model is not None:
            raise ValueError("write model or models, not both")
        for key in PER_MODEL:
            if getattr(self, key) is not None:
                raise ValueError(f"with models, {key} belongs to one of them: models.NAME.{key}")
        for name, one in models.items() if isinstance(models, Mapping) else ():
            _check_kind(f"models.{name}", one, Mapping)
            for key in one:
                check_name("key of a model of a source", key, PER_MODEL)
            replace(self, models=None, **one)

    def by_model(self) -> dict[str | None, SourceOptions]:
        """Return the options for each of `models`, or for the one `model`, with what is its own."""
        if self.models is None:
            return {self.model: self}
        own = self.models if isinstance(self.models, Mapping) else {}
        return {name: replace(self, models=None, **own.get(name, {})) for name in self.models}


PER_MODEL = ("ordered", "lines", "zones")
"""What belongs to a source and a model."""

_KINDS = {
    **dict.fromkeys(("loop", "realtime", "skip_damaged"), bool),
    **dict.fromkeys(("lines", "zones", "privacy_masks", "ffmpeg"), Mapping),
    "models": (list, tuple, Mapping),
    "sinks": (list, tuple),
}
_NAMES = {bool: "true or false", Mapping: "a table by name"}


def _check_kind(name: str, value: Any, kind: Any) -> None:
    if not isinstance(value, kind) and (kind is bool or value is not None):
        raise ValueError(f"{name} is {_NAMES.get(kind, 'a list of names')}, not {value!r}")
    for option in (value or ()) if name == "ffmpeg" else ():
        check_name("option of FFmpeg that may be set", option, FFMPEG)
    if name == "ffmpeg" and value and value.get("rtsp_transport", "tcp") not in ("tcp", "udp"):
        raise ValueError(f'rtsp_transport is "tcp" or "udp", not {value["rtsp_transport"]!r}')


def check_count(name: str, value: Any, most: float = math.inf, *, least: int = 1) -> None:
    """Refuse what is no whole number in a range.

    Raises:
        ValueError: It is none. The text has the range.
    """
    if type(value) is not int or not least <= value <= most:
        range_ = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name} is a whole number {range_}, not {value!r}")


def _check_seconds(name: str, value: Any, *, above: float) -> None:
    if value is None and name in ("max_fps", "start", "stop"):
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value > above):
        more = "" if above == -math.inf else f" above {above:g}"
        raise ValueError(f"{name} is a number{more}, not {value!r}")


def options_of(defaults: SourceOptions, changes: dict[str, Any]) -> SourceOptions:
    """Return ``defaults`` with the values in ``changes``.

    Raises:
        TypeError: A name is unknown. The text has the nearest known one.
        ValueError: A value is out of its range.
    """
    known = {one.name: getattr(defaults, one.name) for one in fields(SourceOptions)}
    for name in changes:
        if name not in known:
            raise TypeError(f"a source has no option {name!r}. {among(name, known)}")
    return SourceOptions(**{**known, **changes})
