"""`CvtColorMat`: an image with its channels in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import InputError
from headrace_cv._fields import ImageOptions
from headrace_cv._per_image import PerImage, read_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["CvtColorMat", "read_color"]

_COLORS = ("rgb", "bgr", "gray")
_EXPECTED = " or ".join(map(repr, _COLORS))


def read_color(request: Request) -> str:
    """Return the colour that ``request`` names under ``color``.

    Raises:
        InputError: There is no ``color``, or it is unknown.
    """
    color = request["color"] if "color" in request else read_key(request, "color", _EXPECTED)
    if not isinstance(color, str) or color not in _COLORS:
        got = repr(color) if isinstance(color, str) else type(color).__name__
        raise InputError("the color is unknown", key="color", expected=_EXPECTED, got=got)
    return color


class CvtColorMat(PerImage):
    """Convert an image to ``rgb``, ``bgr`` or ``gray`` from the colour named by the request.

    Grey keeps its channel axis, so ``[H, W, C]`` holds everywhere. It is
    0.299 red + 0.587 green + 0.114 blue.

    Reads:
        data: ``uint8`` or ``float32``: ``[H, W, 3]`` for ``rgb`` and ``bgr``; ``[H, W, 1]`` or
            ``[H, W]`` for ``gray``.
        color: The order of the channels of ``data``: ``"rgb"``, ``"bgr"`` or ``"gray"``.

    Writes:
        result: Same dtype, ``[H, W, 3]``, or ``[H, W, 1]`` for ``gray``: a new array, or ``data``
            itself when it has the colour already (``[H, W]`` as a view with a channel axis).
        color: The order of the channels of ``result``.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` or ``color`` is missing, ``data`` is no such image or has more than
            ``max_pixels``, ``color`` is unknown, or ``data`` does not have the channels of ``color``.

    Source:
        OpenCV's ``cvtColor``. Grey after ITU-R BT.601.
    """

    class Options(ImageOptions):
        """The colour to convert to.

        Attributes:
            color: Order of the channels of the result (a name).
        """

        color: Literal["rgb", "bgr", "gray"]

        positional = ("color",)

    # The backend overwrites `color`, which it also reads: a second run on the same request would
    # take the colour of the result for that of `data`.
    rerun = False
    reads = ("data", "color")
    writes = ("result", "color")

    def build(self, options: Any) -> Callable[[Request], None]:
        """Convert one image from the colour named by its request."""
        from headrace_cv.functions.images import color_converter

        expected, target = self.expected, options.color
        convert = color_converter(target, options.max_pixels)

        def work(request: Request) -> None:
            image = request["data"] if "data" in request else read_key(request, "data", expected)
            request["result"] = convert(image, read_color(request))
            request["color"] = target

        return work
