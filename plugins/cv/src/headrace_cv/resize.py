"""`ResizeMat`: an image in another size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from headrace_cv._fields import ImageOptions, Interpolation, Side, check_made
from headrace_cv._per_image import PerImage, of_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from headrace.keys import Request

__all__ = ["ResizeMat"]


class ResizeMat(PerImage):
    """Resize an image to a height and a width, or to one of them or the shorter side with its aspect ratio kept.

    A missing side follows from the other side: its exact length is rounded to the nearest integer,
    halves up, at least 1 pixel. With ``resize_short`` it is rounded down, as in torchvision. Pixel
    centres lie at half coordinates, for ``nearest`` too. ``cubic`` and ``lanczos`` overshoot at
    edges: ``float32`` values may leave their range. Choose ``area`` or ``antialias`` to shrink an
    image a lot: they average all pixels, the other methods skip some.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]``.

    Writes:
        result: Same dtype and number of dimensions, ``[resize_h, resize_w, C]`` or
            ``[resize_h, resize_w]``: a new array, or ``data`` itself when it has the size already.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing, is no such image, or is so long and thin that the missing
            side would exceed 32767 pixels. ``data`` or the result has more than ``max_pixels``.

    Source:
        OpenCV's ``resize``. With ``antialias`` Pillow's ``resize``, as in torchvision. ``nearest`` is own: the pixel
        around the centre.
    """

    class Options(ImageOptions):
        """The size, and how values between pixels are computed.

        Attributes:
            resize_h: Height of the result, in pixels; none keeps the aspect ratio.
            resize_w: Width of the result, in pixels; none keeps the aspect ratio.
            resize_short: Length of the shorter side, in pixels, in place of resize_h and resize_w.
            interpolation: How values between pixels are computed (a name).
            antialias: Let Pillow compute linear, cubic or lanczos, from all pixels of an image that becomes smaller
                (true or false).
        """

        resize_h: Side | None = None
        resize_w: Side | None = None
        resize_short: Side | None = None
        interpolation: Interpolation = "linear"
        antialias: bool = False

        positional = ("resize_h", "resize_w")

        @model_validator(mode="after")
        def _a_side_is_given(self) -> Self:
            is_free = self.resize_h is None and self.resize_w is None
            if is_free and self.resize_short is None:
                raise ValueError("resize_h, resize_w or both must be given, or resize_short")
            if not is_free and self.resize_short is not None:
                raise ValueError("resize_short takes the place of resize_h and resize_w")
            if self.antialias and self.interpolation in ("nearest", "area"):
                raise ValueError("antialias is for the interpolations linear, cubic and lanczos")
            check_made(self.resize_h, self.resize_w, self.max_pixels)
            check_made(self.resize_short, self.resize_short, self.max_pixels)
            return self

    def build(self, options: Any) -> Callable[[Request], None]:
        """Resize one image."""
        from headrace_cv.functions.images import image_resizer

        own = options.model_dump(include={"interpolation", "antialias", "max_pixels"})
        size = (options.resize_h, options.resize_w)
        return of_data(image_resizer(*size, short=options.resize_short, **own), self.expected)
