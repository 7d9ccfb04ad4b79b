"""What a source reads, and what a frame is once the pipeline has answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "SAID",
    "UNKNOWN_COLOR",
    "Frame",
    "NoFrameError",
    "Shot",
    "TooLargeError",
    "check_pixels",
    "too_large",
]


UNKNOWN_COLOR = (2, 0, 2, 2)
"""What `Frame.color` is where nobody says it."""


class NoFrameError(InputError):
    """A video was read to its end, and has no frame."""


class TooLargeError(InputError):
    """A picture has more pixels than its source allows."""


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """Refuse a picture that is too large.

    Args:
        width: Its width in pixels.
        height: Its height in pixels.
        max_pixels: Most pixels (width x height).

    Raises:
        TooLargeError: It has more.
    """
    if width * height > max_pixels:
        raise too_large(max_pixels, f"{width} x {height} = {width * height} pixels")


def too_large(max_pixels: int, got: str) -> TooLargeError:
    """Return the error for a picture of more than ``max_pixels``."""
    expected = f"at most {max_pixels} pixels"
    hint = "The option max_pixels of its source sets this limit."
    return TooLargeError("the picture is too large", expected=expected, got=got, hint=hint)


SAID = ("source", "frame", "timestamp", "gap", "damaged", "path", "time", "time_from")
"""What is said of a frame beside its outcome: attributes of `Frame`, in records and in the ``context`` of requests."""


@dataclass(slots=True)
class Shot:
    """One picture as a reader found it. It is converted only if it is not dropped.

    Attributes:
        convert: Returns the picture as ``uint8 [H, W, 3]`` in the order blue, green, red.
        time_s: Its time in seconds as the file or camera says it. None where there is none.
        gap: Whether pictures are missing between the one before and this one.
        damaged: See `Frame`.
        path: The file it was read from, or None.
        error: Why there is no picture, then ``convert`` is not called.
        aspect, color: See `Frame`.
        stream_s: Its presentation time in seconds as its packet has it. None where there is none.
        came: When this machine took it, in seconds since 1970 (UTC). None: now.
        told: When it was captured, as its camera says, or None.
    """

    convert: Callable[[], NDArray[np.uint8]]
    time_s: float | None = None
    gap: bool = False
    path: str | None = None
    error: Exception | None = None
    damaged: bool = False
    aspect: tuple[int, int] = (1, 1)
    color: tuple[int, int, int, int] = UNKNOWN_COLOR
    stream_s: float | None = None
    came: float | None = None
    told: float | None = None


@dataclass(slots=True, eq=False)
class Frame:
    """One frame of one source with its outcome: a ``result`` or an ``error``.

    Attributes:
        source: Name of the source.
        frame: Number of the frame in its source, from 0. Dropped frames are counted.
        timestamp: Seconds, strictly increasing within a source.
        image: ``uint8 [H, W, 3]`` in the order blue, green, red. None where it could not be read.
        result: What the pipeline, and ``ordered`` behind it, answered. None after an error.
        error: Why there is no result, or None.
        gap: Whether frames were lost between the one before and this one: a reconnect, damaged
            packets, the start of another round of a file that is repeated.
        damaged: Whether it is built on a picture that is missing or lacks a part, as all are up to the next key frame. Then ``gap``
            is set, and once more at that one.
        path: The file it was read from, or None.
        aspect: Width and height of a pixel, as ``(2, 1)``.
        color: How the file or camera stored the colours: ``(matrix, range, primaries, transfer)``, as FFmpeg numbers them
            (``AVColorSpace`` and so on, which but for the range are those of ITU-T H.273).
        request: The request as it came back, with all keys that backends wrote.
        models: What each of several models answered, by name: a frame with a ``result`` or an ``error``. Then ``result`` has
            those that there are by name of the model, ``error`` is the first one, and ``request`` has ``counts`` and ``events``,
            with the model in front of the name: ``"cars.door"``.
        time: When it was captured: seconds since 1970 in UTC, as ``time.time()`` says them.
        time_from: Who says so: ``"camera"`` (the sender reports of RTSP, RFC 3550), or ``"arrival"``, where this machine took it
            at that time. A camera is asked as soon as it has sent its first report, and again behind each gap, and is believed up to
            ``clock_tolerance_s`` from the arrival.
        live: Whether its source is live, so that its times pass as those of a clock do.
    """

    source: str
    frame: int
    timestamp: float
    image: NDArray[np.uint8] | None = None
    result: Any = None
    error: BaseException | None = None
    gap: bool = False
    path: str | None = None
    aspect: tuple[int, int] = (1, 1)
    color: tuple[int, int, int, int] = UNKNOWN_COLOR
    request: dict[str, Any] = field(default_factory=dict, repr=False)
    models: dict[str, Frame] = field(default_factory=dict, repr=False)
    time: float | None = None
    time_from: str = "arrival"
    damaged: bool = False
    live: bool = False

    def join(self) -> None:
        """Write what the models answered into the frame that they share."""
        self.result = {name: own.result for name, own in self.models.items() if own.error is None}
        self.error = next((own.error for own in self.models.values() if own.error), None)
        counts: dict[str, Any] = {}
        events: list[Any] = []
        for model, own in self.models.items():
            counts |= {f"{model}.{k}": v for k, v in own.request.get("counts", {}).items()}
            own_events = own.request.get("events", ())
            events += [{**e, "name": f"{model}.{e.get('name', '')}"} for e in own_events]
        self.request = {"counts": counts, "events": events} if counts or events else {}
