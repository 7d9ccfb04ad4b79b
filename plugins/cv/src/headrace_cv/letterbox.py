"""`LetterBoxMat`, `TopLeftResizeMat`: fit an image into a canvas; `UnletterBox`: the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import FiniteFloat, model_validator

import headrace
from headrace.errors import InputError
from headrace_cv._fields import ImageOptions, Interpolation, PerChannel, Side, check_made
from headrace_cv._per_image import PerImage, read_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from headrace.keys import Request

__all__ = ["LetterBoxMat", "TopLeftResizeMat", "UnletterBox"]


class LetterBoxMat(PerImage):
    """Fit an image into the middle of a canvas, keeping its aspect ratio, and pad the rest.

    One side of the image becomes as long as the same side of the canvas. The other side gets its
    exact length rounded to the nearest integer, halves up, at least 1 pixel. An odd pixel of
    padding goes right or below.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]``.

    Writes:
        result: Same dtype and number of dimensions, ``[resize_h, resize_w, C]`` or
            ``[resize_h, resize_w]``: a new array, or ``data`` itself when it has the size already.
        letterbox: `headrace_cv.LetterBoxTransform`, to map boxes between canvas and image.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or no such image, has more than ``max_pixels``, or
            ``fill_value`` is a list of another length than C.

    Source:
        The ``letterbox`` of YOLOv5, with its 114. The other side by own rounding.
    """

    class Options(ImageOptions):
        """The canvas, and how the image is fitted into it.

        Attributes:
            resize_h: Height of the canvas, in pixels.
            resize_w: Width of the canvas, in pixels.
            fill_value: Value of the padding, in pixel values: one number or one per channel.
            enlarge: Make images larger that are smaller than the canvas (true or false).
            interpolation: How values between pixels are computed (a name).
        """

        resize_h: Side
        resize_w: Side
        fill_value: FiniteFloat | PerChannel = 114
        enlarge: bool = True
        interpolation: Interpolation = "linear"

        positional = ("resize_h", "resize_w", "fill_value")

        @model_validator(mode="after")
        def _canvas_within_limit(self) -> Self:
            check_made(self.resize_h, self.resize_w, self.max_pixels)
            return self

    writes = ("result", "letterbox")
    centered: ClassVar[bool] = True

    def build(self, options: Any) -> Callable[[Request], None]:
        """Fit one image, and record its position in the canvas."""
        from headrace_cv.functions.canvas import letterbox_image

        expected = self.expected
        own = options.model_dump(include={"fill_value", "enlarge", "interpolation", "max_pixels"})
        own["centered"], size = self.centered, (options.resize_h, options.resize_w)

        def work(request: Request) -> None:
            image = read_key(request, "data", expected)
            request["result"], request["letterbox"] = letterbox_image(image, *size, **own)

        return work


class TopLeftResizeMat(LetterBoxMat):
    """Fit an image into the upper left corner of a canvas, keeping its aspect ratio, and pad.

    Like `LetterBoxMat`, but all padding lies right and below: boxes need only be scaled.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]``.

    Writes:
        result: Same dtype and number of dimensions, ``[resize_h, resize_w, C]`` or
            ``[resize_h, resize_w]``: a new array, or ``data`` itself when it has the size already.
        letterbox: `headrace_cv.LetterBoxTransform`, to map boxes between canvas and image.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or no such image, has more than ``max_pixels``, or
            ``fill_value`` is a list of another length than C.

    Source:
        The preprocessing of YOLOX, with its 114. The other side by own rounding.
    """

    centered = False


class UnletterBox(PerImage):
    """Map boxes from the canvas of `LetterBoxMat` or `TopLeftResizeMat` back to the image.

    Coordinates count the edges of pixels: 0 is the left (upper) edge of the first pixel. They are
    computed in ``float64`` and rounded once, to ``float32``.

    Reads:
        data: Numbers ``[N, C]``, C at least 4: each row begins with ``x1, y1, x2, y2`` in pixels
            of the canvas. N may be 0.
        letterbox: `headrace_cv.LetterBoxTransform`, as `LetterBoxMat` and `TopLeftResizeMat` write it.

    Writes:
        result: ``float32 [N, C]``, a new array: the boxes in pixels of the image; the other columns do not change.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` or ``letterbox`` is missing or something else, or a number is not
            finite.

    Source:
        Own.
    """

    class Options(headrace.Options):
        """The rule for boxes reaching into the padding.

        Attributes:
            clip: Cut boxes off at the border of the image (true or false).
        """

        clip: bool = True

        positional = ("clip",)

    reads = ("data", "letterbox")
    expected = "numbers [N, C], C at least 4: x1, y1, x2, y2"

    def build(self, options: Any) -> Callable[[Request], None]:
        """Map the boxes of one request by the transform under its key ``letterbox``."""
        from headrace_cv.functions.transforms import LetterBoxTransform, boxes_to_image

        expected, clip = self.expected, options.clip
        needed = "a LetterBoxTransform, as LetterBoxMat and TopLeftResizeMat write it"

        def work(request: Request) -> None:
            rows = read_key(request, "data", expected)
            letterbox = read_key(request, "letterbox", needed)
            if not isinstance(letterbox, LetterBoxTransform):
                got = "None" if letterbox is None else type(letterbox).__name__
                problem = "the letterbox is unknown"
                raise InputError(problem, key="letterbox", expected=needed, got=got)
            request["result"] = boxes_to_image(rows, letterbox, clip=clip)

        return work
