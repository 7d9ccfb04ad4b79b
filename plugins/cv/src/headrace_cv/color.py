"""`CvtColorMat`: an image with its channels in another order."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from headrace.errors import InputError
from headrace_cv._fields import ImageOptions
from headrace_cv._per_image import PerImage

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["CvtColorMat", "read_color"]

_COLORS = ("rgb", "bgr", "gray")


def read_color(backend: PerImage, request: Request) -> str:
    """Give the colour that ``request`` names, or say what it should be."""
    wanted = " or ".join(repr(color) for color in _COLORS)
    color = backend.read(request, "color", wanted)
    if not isinstance(color, str) or color not in _COLORS:
        got = repr(color) if isinstance(color, str) else type(color).__name__
        raise InputError("the color is unknown", key="color", expected=wanted, got=got)
    return color


class CvtColorMat(PerImage):
    """Convert an image to ``rgb``, ``bgr`` or ``gray`` from whatever the request says it is.

    Grey keeps its channel axis, so that ``[H, W, C]`` holds everywhere; it is
    0.299 red + 0.587 green + 0.114 blue.

    Reads:
        data: ``uint8`` or ``float32``: ``[H, W, 3]`` for ``rgb`` and ``bgr``; ``[H, W, 1]`` or
            ``[H, W]`` for ``gray``.
        color: What ``data`` is now: ``"rgb"``, ``"bgr"`` or ``"gray"``.

    Writes:
        result: Same dtype, ``[H, W, 3]``, or ``[H, W, 1]`` for ``gray``: a new array, or ``data``
            itself when it has the colour already (``[H, W]`` as a view with a channel axis).
        color: What ``result`` is.

    Batch:
        1 or more; items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` or ``color`` is missing, ``data`` is no such image or has more than
            ``max_pixels``, ``color`` is another word, or the two do not fit.

    Source:
        OpenCV's ``cvtColor``; grey after ITU-R BT.601.
    """

    class Options(ImageOptions):
        """The colour to convert to."""

        color: Literal["rgb", "bgr", "gray"] = Field(
            description="Order of the channels of the result (a name)."
        )

        positional = ("color",)

    # What it reads as `color` it overwrites, so it must not run twice on one request.
    rerun = False
    reads = ("data", "color")
    writes = ("result", "color")
    expected = "an image: uint8 or float32 [H, W, C] or [H, W]"

    def build(self, options: Any) -> Callable[[Any], Any]:
        """Keep `headrace_cv.convert_color` and the target; the source comes with each request."""
        from headrace_cv.images import convert_color

        self._target: str = options.color
        self._convert: Callable[[Any, str, str], Any] = functools.partial(
            convert_color, max_pixels=options.max_pixels
        )
        return lambda image: image

    def one(self, request: Request) -> None:
        """Convert one image from the colour that its request names."""
        image = self.read(request, "data", self.expected)
        source = read_color(self, request)
        request["result"] = self._convert(image, source, self._target)
        request["color"] = self._target
