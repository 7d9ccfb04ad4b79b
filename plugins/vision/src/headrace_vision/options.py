"""What can be set for each source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, InstanceOf, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from headrace import PipelineConfig  # noqa: TC001 - pydantic reads it
from headrace.errors import among, nearest
from headrace_formats.mistakes import choices_of, text_of
from headrace_vision.privacy import check_masks

__all__ = ["FFMPEG", "PER_MODEL", "SourceOptions", "check_name", "options_of", "texts_of"]

FFMPEG = {
    **dict.fromkeys(("analyzeduration", "probesize", "fflags"), ("file", "address")),
    **dict.fromkeys(("max_delay", "reorder_queue_size", "rtsp_transport"), ("address",)),
    **dict.fromkeys(("video_size", "framerate", "input_format", "pixel_format"), ("camera",)),
    **dict.fromkeys(("threads", "hwaccel"), ("file", "address", "camera")),
}
"""FFmpeg's options that may be set, and what they are for. None of them opens anything."""

MAX_PIXELS = 1 << 30
"""Most that ``max_pixels`` may be, as it is in headrace-cv."""


def check_name(kind: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is not known.

    Raises:
        ValueError: It is not. The text has the nearest known one.
    """
    if name not in known:
        raise ValueError(f"there is no {kind} {name!r}. {among(name, known)}")


_Count = Annotated[int, Field(ge=1)]
_AboveZero = Annotated[float, Field(gt=0)]


@dataclass(
    frozen=True,
    config=ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
    ),
)
class SourceOptions:
    """How a source is read. A value of a wrong type or out of its range is refused.

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
    in_flight: _Count | None = None
    stride: _Count = 1
    clock: Literal["pts", "dts", "arrival"] | None = None
    max_fps: _AboveZero | None = None
    start: float | None = None
    stop: float | None = None
    loop: bool = False
    realtime: bool = False
    read_timeout: _AboveZero = 10.0
    clock_tolerance_s: _AboveZero = 60.0
    skip_damaged: bool = False
    image_fps: _AboveZero = 25.0
    max_pixels: Annotated[int, Field(ge=1, le=MAX_PIXELS)] = 100_000_000
    model: str | None = None
    models: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None
    ordered: str | Mapping[str, Any] | InstanceOf[PipelineConfig] | None = None
    gate: Literal["motion"] | None = None
    lines: Mapping[str, Any] | None = None
    zones: Mapping[str, Any] | None = None
    privacy_masks: Mapping[str, Any] | None = None
    sinks: Sequence[str] | None = None
    ffmpeg: Mapping[str, Any] | None = None

    @field_validator("ffmpeg")
    @classmethod
    def _check_ffmpeg(cls, value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        for option in value or ():
            check_name("option of FFmpeg that may be set", option, FFMPEG)
        transport = (value or {}).get("rtsp_transport", "tcp")
        if transport not in ("tcp", "udp"):
            raise ValueError(f'rtsp_transport is "tcp" or "udp", not {transport!r}')
        return value

    def __post_init__(self) -> None:
        """Check what must fit together.

        Raises:
            ValueError: It does not. The text says what.
        """
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
        for name, own in models.items() if isinstance(models, Mapping) else ():
            for key in own:
                check_name("key of a model of a source", key, PER_MODEL)
            try:
                options_of(self, {**own, "models": None})
            except ValueError as error:
                raise ValueError(f"models.{name}.{error}") from None

    def by_model(self) -> dict[str | None, SourceOptions]:
        """Return the options for each of `models`, or for the one `model`, with what is its own."""
        if self.models is None:
            return {self.model: self}
        own = self.models if isinstance(self.models, Mapping) else {}
        return {name: replace(self, models=None, **own.get(name, {})) for name in self.models}


PER_MODEL = ("ordered", "lines", "zones")
"""What belongs to a source and a model."""


def texts_of(
    table: Any, error: ValidationError, keys_at: Callable[[Any], Collection[str]] = lambda _: ()
) -> list[tuple[str, str]]:
    """Return where a value is wrong, as keys with points between them, and what is wrong with it.

    Args:
        table: What was read.
        error: What pydantic found in it. It may find several mistakes in a value that may be of several types.
        keys_at: Gives the keys that may stand in the table at a place.
    """
    texts: dict[tuple[str, str], list[str]] = {}
    ends: dict[tuple[str, str], str] = {}
    for detail in error.errors():
        place = _place_of(table, detail["loc"])
        text = text_of(detail)
        key = ""
        if detail["type"] == "extra_forbidden":
            *place, key = place
            text = f"there is no key {key!r}. {among(key, keys_at(place))}"
        at = ".".join(place), key
        texts.setdefault(at, []).append(text)
        if isinstance(detail["input"], (int, float)) and not key:  # a text may be a secret
            ends[at] = f", not {detail['input']!r}"
        elif choices := choices_of(detail):
            near = nearest(str(detail["input"]), choices)
            ends[at] = f", not {detail['input']!r}" + (f". Did you mean {near!r}?" if near else "")
        elif detail["type"] == "kind" and "kind" in detail["input"]:
            ends[at] = f", not {detail['input']['kind']!r}"
    return [(at[0], " or ".join(ways) + ends.get(at, "")) for at, ways in texts.items()]


def _place_of(table: Any, location: tuple[Any, ...]) -> list[str]:
    """Return the keys of a place in a table, without what pydantic calls the parts of a union."""
    place = []
    for number, part in enumerate(location, 1):
        if (isinstance(table, dict) and part in table) or (
            isinstance(table, list) and isinstance(part, int) and part < len(table)
        ):
            table = table[part]
        elif not isinstance(table, dict) or number < len(location):
            continue
        place.append(str(part))
    return place


def options_of(defaults: SourceOptions, changes: dict[str, Any]) -> SourceOptions:
    """Return ``defaults`` with the values in ``changes``.

    Raises:
        TypeError: A name is unknown. The text has the nearest known one.
        ValueError: A value is out of its range.
    """
    known = {field.name: getattr(defaults, field.name) for field in fields(SourceOptions)}
    for name in changes:
        if name not in known:
            raise TypeError(f"a source has no option {name!r}. {among(name, known)}")
    values = {**known, **changes}
    try:
        return SourceOptions(**values)
    except ValidationError as error:
        rows = (f"{place}: {text}" if place else text for place, text in texts_of(values, error))
        raise ValueError("; ".join(rows)) from None
