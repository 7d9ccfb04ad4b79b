"""`LetterBoxMat`, `TopLeftResizeMat`: fit an image into a canvas; `UnletterBox`: the way back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, FiniteFloat, model_validator

import headrace
from headrace.errors import InputError
from headrace_cv._fields import ImageOptions, Interpolation, PerChannel, Side, check_made
from headrace_cv._per_image import PerImage

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from headrace.keys import Request

__all__ = ["LetterBoxMat", "TopLeftResizeMat", "UnletterBox"]


class LetterBoxMat(PerImage):
    """Fit an image into the middle of a canvas, keeping its aspect ratio, and pad the rest.

    One side of the image becomes that of the canvas; the other is the exact value rounded to the
    nearest integer, halves up, at least 1 pixel. An odd pixel of padding goes right or below.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]``.

    Writes:
        result: Same dtype and number of dimensions, ``[resize_h, resize_w, C]`` or
            ``[resize_h, resize_w]``: a new array, or ``data`` itself when it has the size already.
        letterbox: `headrace_cv.LetterBoxTransform`, which maps boxes between canvas and image.

    Batch:
        1 or more; items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or no such image, has more than ``max_pixels``, or
            ``pad_value`` is a list whose length is not C.

    Source:
        The ``letterbox`` of YOLOv5, with its 114; the other side by own rounding.
    """

    class Options(ImageOptions):
        """The canvas, and how the image is fitted into it."""

        resize_h: Side = Field(description="Height of the canvas, in pixels.")
        resize_w: Side = Field(description="Width of the canvas, in pixels.")
        pad_value: FiniteFloat | PerChannel = Field(
            default=114,
            description="Value of the padding, in pixel values: one number or one per channel.",
        )
        enlarge: bool = Field(
            default=True,
            description="Make images larger that are smaller than the canvas (true or false).",
        )
        interpolation: Interpolation = Field(
            default="linear", description="How values between pixels are computed (a name)."
        )

        positional = ("resize_h", "resize_w", "pad_value")

        @model_validator(mode="after")
        def _canvas_within_limit(self) -> Self:
            check_made(self.resize_h, self.resize_w, self.max_pixels)
            return self

    writes = ("result", "letterbox")
    expected = "an image: uint8 or float32 [H, W, C] or [H, W]"
    centered: ClassVar[bool] = True

    def build(self, options: Any) -> Callable[[Any], Any]:
        """Give `headrace_cv.letterbox_image` with the options filled in."""
        from headrace_cv.canvas import letterbox_image

        return functools.partial(
            letterbox_image,
            height=options.resize_h,
            width=options.resize_w,
            pad_value=options.pad_value,
            centered=self.centered,
            enlarge=options.enlarge,
            interpolation=options.interpolation,
            max_pixels=options.max_pixels,
        )

    def one(self, request: Request) -> None:
        """Fit one image, and say where in the canvas it lies."""
        canvas, transform = self.function(self.read(request, "data", self.expected))
        request["result"] = canvas
        request["letterbox"] = transform


class TopLeftResizeMat(LetterBoxMat):
    """Fit an image into the upper left corner of a canvas, keeping its aspect ratio, and pad.

    Like `LetterBoxMat`, but all padding lies right and below, so that boxes need only be scaled.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]``.

    Writes:
        result: Same dtype and number of dimensions, ``[resize_h, resize_w, C]`` or
            ``[resize_h, resize_w]``: a new array, or ``data`` itself when it has the size already.
        letterbox: `headrace_cv.LetterBoxTransform`, which maps boxes between canvas and image.

    Batch:
        1 or more; items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or no such image, has more than ``max_pixels``, or
            ``pad_value`` is a list whose length is not C.

    Source:
        The preprocessing of YOLOX, with its 114; the other side by own rounding.
    """

    centered = False


class UnletterBox(PerImage):
    """Map boxes from the canvas of `LetterBoxMat` or `TopLeftResizeMat` back to the image.

    Coordinates count the edges of pixels: 0 is the left (upper) edge of the first pixel. They are
    computed in ``float64`` and rounded once, to ``float32``.

    Reads:
        data: Numbers ``[N, C]``, C at least 4: each row begins with ``x1, y1, x2, y2`` in pixels
            of the canvas. N may be 0.
        letterbox: `headrace_cv.LetterBoxTransform`, as those backends write it.

    Writes:
        result: ``float32 [N, C]``, a new array: the boxes in pixels of the image, the other columns
            as they were.

    Batch:
        1 or more; items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` or ``letterbox`` is missing or something else, or a number is not
            finite.

    Source:
        Own.
    """

    class Options(headrace.Options):
        """What happens to boxes that reach into the padding."""

        clip: bool = Field(
            default=True, description="Cut boxes off at the border of the image (true or false)."
        )

        positional = ("clip",)

    reads = ("data", "letterbox")
    expected = "numbers [N, C], C at least 4: x1, y1, x2, y2"

    def build(self, options: Any) -> Callable[[Any], Any]:
        """Keep `headrace_cv.boxes_to_image`; the transform comes with each request."""
        from headrace_cv.transforms import LetterBoxTransform, boxes_to_image

        self._transform_class: type = LetterBoxTransform
        self._to_image: Callable[..., Any] = functools.partial(boxes_to_image, clip=options.clip)
        return lambda rows: rows

    def one(self, request: Request) -> None:
        """Map the boxes of one request by its own transform."""
        rows = self.read(request, "data", self.expected)
        wanted = "a LetterBoxTransform, as LetterBoxMat and TopLeftResizeMat write it"
        transform = self.read(request, "letterbox", wanted)
        if not isinstance(transform, self._transform_class):
            got = "None" if transform is None else type(transform).__name__
            raise InputError("the letterbox is unknown", key="letterbox", expected=wanted, got=got)
        request["result"] = self._to_image(rows, transform)
