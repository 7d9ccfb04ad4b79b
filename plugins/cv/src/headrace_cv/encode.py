"""`EncodeMat`: from an image to a file in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from headrace_cv._fields import ImageOptions
from headrace_cv._per_image import PerImage, read_key
from headrace_cv.color import read_color

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["EncodeMat"]


class EncodeMat(PerImage):
    """Encode an image as a JPEG, PNG or WebP file, with its colours as the request names them.

    Reads:
        data: ``uint8``: ``[H, W, 3]`` for ``rgb`` and ``bgr``; ``[H, W, 1]`` or ``[H, W]`` for
            ``gray``.
        color: The order of the channels of ``data``: ``"rgb"``, ``"bgr"`` or ``"gray"``.

    Writes:
        result: bytes, one file. WebP has no grey: a grey image is stored with three equal channels.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` or ``color`` is missing, ``data`` is no such image, ``color`` is
            unknown, ``data`` does not have the channels of ``color``, the image has more than ``max_pixels``,
            or a side is longer than the format allows: 65500 pixels for JPEG, 16383 for WebP,
            1000000 for PNG.

    Source:
        Own. The encoders of OpenCV's ``imencode``.
    """

    class Options(ImageOptions):
        """The format of the file, and its quality.

        Attributes:
            format: Format of the file (a name).
            quality: Quality of JPEG and lossy WebP, 1 to 100 (no unit); PNG loses nothing.
        """

        format: Literal["jpeg", "png", "webp"] = "jpeg"
        quality: int = Field(95, ge=1, le=100)

        positional = ("format", "quality")

    reads = ("data", "color")
    expected = "an image: uint8 [H, W, C] or [H, W]"

    def build(self, options: Any) -> Callable[[Request], None]:
        """Encode one image of the colour named by its request."""
        from headrace_cv.files.image_files import encode_image

        expected, form = self.expected, options.format
        quality, max_pixels = options.quality, options.max_pixels

        def work(request: Request) -> None:
            image = read_key(request, "data", expected)
            color = read_color(request)
            request["result"] = encode_image(
                image, color, form, quality=quality, max_pixels=max_pixels
            )

        return work
