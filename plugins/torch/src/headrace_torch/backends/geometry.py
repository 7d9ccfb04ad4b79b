"""`ResizeTensor`, `CropTensor`, `PadTensor`: change the size of images, or cut parts out of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, FiniteFloat, model_validator

import headrace
from headrace.errors import InputError
from headrace_torch.backends.base import PerImage, read_key
from headrace_torch.backends.fields import Interpolation, PerChannel, Side

if TYPE_CHECKING:
    from collections.abc import Hashable

    import torch
    from typing_extensions import Self

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["CropTensor", "PadTensor", "ResizeTensor"]

_MOST = 32_767
_MOST_PIXELS = 100_000_000


def _refuse_box(box: tuple[float, ...], outside: str) -> None:
    """Refuse a box that no image has.

    Raises:
        ValueError: The box is empty or turned round, lies above or left of every image, or leaves every image
            although ``outside`` is ``refuse``, or ``fill`` and the crop would be too large.
    """
    x1, y1, x2, y2 = (int((edge + 0.5) // 1) for edge in box)  # rounded as in `box_edges`
    if max(x1, 0) >= x2 or max(y1, 0) >= y2:
        raise ValueError(
            "box holds no pixel of any image: it is x1, y1, x2, y2 with x1 < x2, y1 < y2"
        )
    if min(x1, y1) < 0 and outside == "refuse":
        raise ValueError("box leaves every image, and outside = 'refuse' refuses that")
    large = max(x2 - x1, y2 - y1) > _MOST or (x2 - x1) * (y2 - y1) > _MOST_PIXELS
    if min(x1, y1) < 0 and outside == "fill" and large:
        raise ValueError(
            f"box makes a crop of more than {_MOST_PIXELS} pixels or with a side above {_MOST}"
        )


def _numbers(
    value: Any, count: int, key: str, expected: str, *, exactly: bool
) -> tuple[float, ...]:
    """Read the first ``count`` numbers of a list, or of an array of any library.

    Raises:
        InputError: ``value`` is something else, has fewer numbers (or, if ``exactly``, more), or one that is not
            finite.
    """
    from headrace_torch.requests.tensors import plain_numbers

    listed = plain_numbers(value)
    if listed is not None and (len(listed) == count if exactly else len(listed) >= count):
        numbers = tuple(listed[:count])
        plain = all(isinstance(n, (int, float)) and type(n) is not bool for n in numbers)
        if plain and all(abs(number) <= sys.float_info.max for number in numbers):
            return numbers
    got = type(value).__name__ if listed is None else repr(listed)
    raise InputError("these are not the numbers", key=key, expected=expected, got=got[:200])


def _size(request: Request, key: str) -> tuple[int, int]:
    """Read height and width, in pixels, from a key of a request.

    Raises:
        InputError: The key is missing, or its value is no height and width, or they make more than 100 million pixels.
    """
    expected = f"2 whole numbers from 1 to {_MOST}: height and width in pixels"
    numbers = _numbers(read_key(request, key, expected), 2, key, expected, exactly=True)
    if not all(number == int(number) and 1 <= number <= _MOST for number in numbers):
        raise InputError("this is no size", key=key, expected=expected, got=repr(numbers))
    if numbers[0] * numbers[1] > _MOST_PIXELS:
        most = f"at most {_MOST_PIXELS} pixels"
        raise InputError("the image would be too large", key=key, expected=most, got=repr(numbers))
    return int(numbers[0]), int(numbers[1])


class ResizeTensor(PerImage):
    """Resize images to a height and a width, or to one of them with the aspect ratio kept.

    A missing side follows from the other side: the exact value rounded to the nearest integer,
    halves up, at least 1 pixel. Pixel centres lie at half coordinates, for ``nearest`` too: it
    takes the pixel around the centre. ``cubic`` overshoots at edges: floating values may leave
    their range. ``uint8`` is computed in ``float32`` and rounded: ``linear`` and ``cubic`` are within 1 of OpenCV,
    with ``antialias`` within 1 (``linear``) or 2 (``cubic``) of Pillow. If Pillow resizes the columns first, as
    version 13 may, rare pixels of ``linear`` differ by 2, and pixels of ``cubic`` by more if values overshoot
    between the two passes. Floating images are within 1e-4 of the greatest value of OpenCV's.

    Reads:
        data: ``uint8`` or floating ``[C, H, W]`` with C 1, 3 or 4, or ``[N, C, H, W]`` with
            ``request_size = N``.
        size_key: Height and width in pixels under the key named by this option, if it is set.

    Writes:
        result: Same dtype and number of dimensions, of the new height and width: new memory, or
            ``data`` itself when it has the size already.

    Batch:
        1 or more. Images of one shape are resized in one call, a bad item fails alone.

    Raises:
        InputError: ``data`` is missing, no such image, or on another device. The size of the request is missing,
            something else, or above 100 million pixels, or an image is so long and thin that the free side would
            exceed 32767 pixels.

    Source:
        torch's ``interpolate``. Sizes as in headrace-cv.
    """

    class Options(headrace.Options):
        """The size, and how pixels between pixels are computed.

        Attributes:
            resize_h: Height of the result, in pixels; none keeps the aspect ratio.
            resize_w: Width of the result, in pixels; none keeps the aspect ratio.
            interpolation: How values between pixels are computed (a name).
            antialias: When shrinking, average over all pixels under each new pixel.
            size_key: Key of the request that holds height and width, in place of the options.
        """

        resize_h: Side | None = None
        resize_w: Side | None = None
        interpolation: Interpolation = "linear"
        antialias: bool = False
        size_key: str | None = Field(default=None, min_length=1)

        positional = ("resize_h", "resize_w")

        @model_validator(mode="after")
        def _a_size_is_given(self) -> Self:
            is_set = self.resize_h is not None or self.resize_w is not None
            if is_set == (self.size_key is not None):
                raise ValueError(
                    "give either a size (resize_h, resize_w or both) or size_key, not both"
                )
            if self.antialias and self.interpolation == "nearest":
                raise ValueError("antialias averages pixels, nearest takes one")
            return self

    reads = ("data", "{size_key}")

    def build(self, options: Any, context: InitContext) -> None:
        """Keep the options, and the functions for images."""
        from headrace_torch.images import transforms

        self._options, self._transforms = options, transforms
        self.how_key = options.size_key

    def how(self, request: Request, rows: torch.Tensor) -> Hashable:
        """Return the height and width of the result."""
        options = self._options
        if options.size_key is not None:
            return _size(request, options.size_key)
        height, width = rows.shape[2:]
        return self._transforms.resized_hw((height, width), options.resize_h, options.resize_w)

    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Resize."""
        options = self._options
        return self._transforms.resize_image(
            whole, how, interpolation=options.interpolation, antialias=options.antialias
        )


class CropTensor(PerImage):
    """Cut a box out of images.

    The box holds the pixels from ``x1`` to before ``x2`` and from ``y1`` to before ``y2``. Each
    number is rounded to the nearest integer first, halves up. It comes with the request, or is the
    same for all (``box``), or lies in the middle of each (``crop_h``, ``crop_w``).

    Reads:
        data: ``uint8`` or floating ``[C, H, W]`` with C 1, 3 or 4, or ``[N, C, H, W]`` with
            ``request_size = N``. Each image is cut.
        box: ``x1, y1, x2, y2`` in pixels, a list or an array; further numbers are ignored. The
            option ``key`` names another key. Not read if ``box`` or ``crop_h`` and ``crop_w`` are set.

    Writes:
        result: Same dtype and number of dimensions, ``[..., y2 - y1, x2 - x1]``: new memory, never
            a view into the image.

    Batch:
        1 or more. Images of one shape and one box are cut in one call, a bad item fails alone.

    Raises:
        InputError: ``data`` is missing, no such image, or on another device. The box is missing or
            something else, holds no pixel of the image, leaves it where ``outside`` is
            ``refuse``, or with ``fill`` makes a crop of more than 100 million pixels or with a side
            above 32767. ``fill_value`` is a list of another length than C.

    Source:
        Own. Boxes as in headrace-cv.
    """

    class Options(headrace.Options):
        """The place of the box, and the rule outside of the image.

        Attributes:
            key: Key of the request that holds the box.
            box: The box of all requests: x1, y1, x2, y2 in pixels.
            crop_h: Height of a box in the middle of the image, in pixels.
            crop_w: Width of a box in the middle of the image, in pixels.
            outside: A box that leaves the image is cut off, refused, or filled up (a name).
            fill_value: What `fill` puts there, in pixel values: one number or one per channel.
        """

        key: str = Field(default="box", min_length=1)
        box: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat] | None = None
        crop_h: Side | None = None
        crop_w: Side | None = None
        outside: Literal["clip", "refuse", "fill"] = "clip"
        fill_value: FiniteFloat | PerChannel = 0

        positional = ("key",)

        @model_validator(mode="after")
        def _one_box(self) -> Self:
            if (self.crop_h is None) != (self.crop_w is None):
                raise ValueError("crop_h and crop_w go together")
            if self.box is not None and self.crop_h is not None:
                raise ValueError("box and crop_h, crop_w say two boxes")
            if self.box is not None:
                _refuse_box(self.box, self.outside)
            return self

    reads: tuple[str, ...] | type = ("data", "{key}")

    def build(self, options: Any, context: InitContext) -> None:
        """Keep the options, and the functions for images. If an option gives the box, no key is read."""
        from headrace_torch.images.transforms import box_edges, cut_image

        self._options, self._edges, self._cut = options, box_edges, cut_image
        if options.box is None and options.crop_h is None:
            self.how_key = options.key
        else:
            self.reads = ("data",)

    def how(self, request: Request, rows: torch.Tensor) -> Hashable:
        """Return the edges of the box, in whole pixels."""
        options = self._options
        height, width = rows.shape[2:]
        box: tuple[float, ...]
        if options.box is not None:
            box = options.box
        elif options.crop_h is not None:
            left, top = (width - options.crop_w) // 2, (height - options.crop_h) // 2
            box = left, top, left + options.crop_w, top + options.crop_h
        else:
            expected = "4 finite numbers: x1, y1, x2, y2 in pixels"
            value = read_key(request, options.key, expected)
            box = _numbers(value, 4, options.key, expected, exactly=False)
        key = self.how_key or "data"  # a box of the options does not fit this image
        return self._edges((height, width), box, outside=options.outside, key=key)

    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Cut."""
        return self._cut(whole, how, fill_value=self._options.fill_value)


class PadTensor(PerImage):
    """Pad images to a height and a width, or both sides to the next multiple of a number of pixels.

    Reads:
        data: ``uint8`` or floating ``[C, H, W]`` with C 1, 3 or 4, or ``[N, C, H, W]`` with
            ``request_size = N``.
        size_key: Height and width in pixels under the key named by this option, if it is set.

    Writes:
        result: Same dtype and number of dimensions, of the new height and width: new memory, or
            ``data`` itself when it has the size already.

    Batch:
        1 or more. Images of one shape are padded in one call, a bad item fails alone.

    Raises:
        InputError: ``data`` is missing, no such image, on another device, or larger than the
            result. The size of the request is missing, something else, or above 100 million pixels. ``fill_value``
            is a list of another length than C.

    Source:
        Own.
    """

    class Options(headrace.Options):
        """The size, the place of the image in it, and the filling around it.

        Attributes:
            pad_h: Height of the result, in pixels.
            pad_w: Width of the result, in pixels.
            multiple: In place of a size: pad both sides to a multiple of so many pixels.
            size_key: Key of the request that holds height and width, in place of the options.
            fill_value: Value of the padding, in pixel values: one number or one per channel.
            centered: Pad on all sides, not only right and below (true or false).
        """

        pad_h: Side | None = None
        pad_w: Side | None = None
        multiple: Side | None = None
        size_key: str | None = Field(default=None, min_length=1)
        fill_value: FiniteFloat | PerChannel = 0
        centered: bool = False

        positional = ("pad_h", "pad_w")

        @model_validator(mode="after")
        def _a_size_is_given(self) -> Self:
            if (self.pad_h is None) != (self.pad_w is None):
                raise ValueError("pad_h and pad_w go together")
            if sum(way is not None for way in (self.pad_h, self.multiple, self.size_key)) != 1:
                raise ValueError("give exactly one of pad_h with pad_w, multiple, and size_key")
            return self

    reads = ("data", "{size_key}")

    def build(self, options: Any, context: InitContext) -> None:
        """Keep the options, and the function for padding."""
        from headrace_torch.images.transforms import pad_image

        self._options, self._pad_image = options, pad_image
        self.how_key = options.size_key

    def how(self, request: Request, rows: torch.Tensor) -> Hashable:
        """Return the height and width of the result."""
        options = self._options
        height, width = rows.shape[2:]
        if options.multiple is not None:
            step = options.multiple
            return -(-height // step) * step, -(-width // step) * step
        if options.size_key is not None:
            return _size(request, options.size_key)
        return int(options.pad_h), int(options.pad_w)

    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Pad."""
        options = self._options
        return self._pad_image(whole, how, fill_value=options.fill_value, centered=options.centered)
