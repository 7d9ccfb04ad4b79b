"""`CropMat` and `PerspectiveCropMat`: pieces of an image."""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, FiniteFloat, model_validator

from headrace.errors import InputError
from headrace_cv._fields import ImageOptions, PerChannel, Side, check_made
from headrace_cv._per_image import PerImage, of_data, read_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from headrace.keys import Request

__all__ = ["CenterCropMat", "CropMat", "PerspectiveCropMat"]


class _Crop(PerImage):
    """A backend to cut one piece out of an image, at the place named by a key of the request."""

    reads = ("data", "{key}")
    expected_place: ClassVar[str]

    @abstractmethod
    def cutter(self, options: Any) -> Callable[[Any, Any], Any]:
        """Import the function and return it with the options filled in.

        It takes an image and a place in the image.
        """

    def build(self, options: Any) -> Callable[[Request], None]:
        """Cut one piece out of one image.

        `as_image` checks the image first. So an `InputError` without a key is about the place, and
        gets its key.
        """
        from headrace_cv.functions.images import as_image

        key, max_pixels = options.key, options.max_pixels
        expected, expected_place = self.expected, self.expected_place
        cut = self.cutter(options)

        def work(request: Request) -> None:
            image = as_image(read_key(request, "data", expected), max_pixels)
            place = read_key(request, key, expected_place)
            try:
                request["result"] = cut(image, place)
            except InputError as error:
                error.key = error.key or key
                raise

        return work


class CropMat(_Crop):
    """Cut a box out of an image.

    The box holds the pixels from ``x1`` to before ``x2`` and from ``y1`` to before ``y2``. Each
    number is rounded to the nearest integer first, halves up.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]``.
        box: ``x1, y1, x2, y2`` in pixels, a list or an array; further numbers are ignored. The
            option ``key`` names another key.

    Writes:
        result: Same dtype and number of dimensions, ``[y2 - y1, x2 - x1, C]`` or
            ``[y2 - y1, x2 - x1]``: a new array, never a view into the image.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` or the box is missing or something else. The box holds no pixel of the
            image. The box leaves the image and ``outside`` is ``refuse``. With ``fill`` the crop
            has more than ``max_pixels`` or a side above 32767. The image has more than
            ``max_pixels``. ``fill_value`` is a list of another length than C.

    Source:
        Own.
    """

    class Options(ImageOptions):
        """The place of the box, and the rule outside of the image.

        Attributes:
            key: Key of the request that holds the box.
            outside: A box that leaves the image is cut off, refused, or filled up (a name).
            fill_value: What `fill` puts there, in pixel values: one number or one per channel.
        """

        key: str = Field("box", min_length=1)
        outside: Literal["clip", "refuse", "fill"] = "clip"
        fill_value: FiniteFloat | PerChannel = 0

        positional = ("key",)

    expected_place = "4 finite numbers: x1, y1, x2, y2 in pixels"

    def cutter(self, options: Any) -> Callable[[Any, Any], Any]:
        """Return `headrace_cv.crop_image` with the options filled in."""
        from headrace_cv.functions.crops import crop_image

        own = options.model_dump(include={"outside", "fill_value", "max_pixels"})
        return functools.partial(crop_image, **own)


class CenterCropMat(PerImage):
    """Cut out the middle of an image, and fill up around a smaller one.

    Half of an odd number of pixels to cut off is rounded to the even integer. An odd pixel to fill goes right or below.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]``.

    Writes:
        result: Same dtype and number of dimensions, ``[crop_h, crop_w, C]`` or ``[crop_h, crop_w]``: a new array, or
            ``data`` itself when it has the size already.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing, is no such image or has more than ``max_pixels``, or ``fill_value`` is a list
            of another length than C.

    Source:
        The ``center_crop`` of torchvision: its offsets and its padding.
    """

    class Options(ImageOptions):
        """The size of the crop.

        Attributes:
            crop_h: Height of the result, in pixels.
            crop_w: Width of the result, in pixels; none: as crop_h.
            fill_value: Value of pixels outside of the image, in pixel values: one number or one per channel.
        """

        crop_h: Side
        crop_w: Side | None = None
        fill_value: FiniteFloat | PerChannel = 0

        positional = ("crop_h", "crop_w")

        @model_validator(mode="after")
        def _crop_within_limit(self) -> Self:
            width = self.crop_h if self.crop_w is None else self.crop_w
            check_made(self.crop_h, width, self.max_pixels)
            return self

    def build(self, options: Any) -> Callable[[Request], None]:
        """Cut the middle out of one image."""
        from headrace_cv.functions.crops import center_crop_image

        own = options.model_dump(include={"fill_value", "max_pixels"})
        own |= {"height": options.crop_h, "width": options.crop_w}
        return of_data(functools.partial(center_crop_image, **own), self.expected)


class PerspectiveCropMat(_Crop):
    """Cut a quadrilateral, such as a line of text, out of an image and make it upright.

    The natural width of the crop is the longer of the upper and the lower side, its natural height
    the longer of the left and the right side. Fractions are dropped, at least 1 pixel is left. A
    crop of another size is computed in one step, as if the natural crop were resized. Points
    outside of the image have the value of the nearest pixel of the image.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]``.
        quad: Numbers ``[4, 2]``: x, y in pixels of the corners, clockwise from the upper left one.
            The option ``key`` names another key.

    Writes:
        result: Same dtype and number of dimensions, of the natural size or of the size in the
            options: a new array.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` or the corners are missing or something else. The corners lie outside
            of the image, or are not those of a convex quadrilateral in clockwise order. The crop
            or the image has more than ``max_pixels``. The crop has a side above 32767.

    Source:
        PaddleOCR's ``get_rotate_crop_image``: size, interpolation, border and the turn (at 1.5).
    """

    class Options(ImageOptions):
        """Where the corners are, and the size of the crop.

        Attributes:
            key: Key of the request that holds the corners.
            crop_h: Height of the result, in pixels; none: natural, or by the aspect ratio.
            crop_w: Width of the result, in pixels; none: natural, or by the aspect ratio.
            rotate_upright: Turn crops by 90 degrees counter-clockwise whose height is at least this many times their
                width (a ratio); none turns none.
            interpolation: How values between pixels are computed (a name).
        """

        key: str = Field("quad", min_length=1)
        crop_h: Side | None = None
        crop_w: Side | None = None
        rotate_upright: FiniteFloat | None = Field(None, gt=0)
        interpolation: Literal["linear", "cubic", "lanczos"] = "cubic"

        positional = ("key",)

        @model_validator(mode="after")
        def _crop_within_limit(self) -> Self:
            check_made(self.crop_h, self.crop_w, self.max_pixels)
            return self

    expected_place = "finite numbers [4, 2]: x, y in pixels of 4 corners, clockwise"

    def cutter(self, options: Any) -> Callable[[Any, Any], Any]:
        """Return `headrace_cv.crop_quad` with the options filled in."""
        from headrace_cv.functions.crops import crop_quad

        own = options.model_dump(include={"rotate_upright", "interpolation", "max_pixels"})
        return functools.partial(crop_quad, height=options.crop_h, width=options.crop_w, **own)
