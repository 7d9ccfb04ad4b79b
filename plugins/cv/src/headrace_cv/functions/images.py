"""Images as numpy arrays: resize, convert colour.

An image is ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]``. No function
changes its input. A function that has nothing to do returns its input itself, not a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from headrace.errors import InputError
from headrace_cv.functions.arrays import array_of, describe
from headrace_cv.functions.limits import (
    MAX_PIXELS,
    MAX_SIDE,
    check_choice,
    check_pixels,
    check_side,
    check_sides,
)
from headrace_cv.functions.pillow_resize import pillow_resizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "COLORS",
    "IMAGE",
    "INTERPOLATIONS",
    "as_image",
    "color_converter",
    "convert_color",
    "dense",
    "image_resizer",
    "resize_image",
]

IMAGE = "uint8 or float32 [H, W, C] with C from 1 to 4, or [H, W], no side empty"
"""The definition of an image, as errors quote it."""

INTERPOLATIONS = {
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}
"""OpenCV's flags for computing values between pixels, by the names that the options use."""

COLORS = {"rgb": 3, "bgr": 3, "gray": 1}
"""The colour orders, and how many channels each has."""

_CONVERSIONS = {
    ("rgb", "bgr"): cv2.COLOR_RGB2BGR,
    ("rgb", "gray"): cv2.COLOR_RGB2GRAY,
    ("bgr", "rgb"): cv2.COLOR_BGR2RGB,
    ("bgr", "gray"): cv2.COLOR_BGR2GRAY,
    ("gray", "rgb"): cv2.COLOR_GRAY2RGB,
    ("gray", "bgr"): cv2.COLOR_GRAY2BGR,
}


_ARRAY = np.ndarray
_DTYPES = (np.dtype(np.uint8), np.dtype(np.float32))
_CHANNELS = (1, 2, 3, 4)


def as_image(data: Any, max_pixels: int = MAX_PIXELS) -> NDArray[Any]:
    """Return ``data`` as a numpy image. Arrays of other libraries are read by DLPack or a similar protocol.

    Args:
        data: An array.
        max_pixels: Most pixels (width x height).

    Raises:
        InputError: ``data`` is no array, or not ``uint8`` or ``float32`` of shape ``[H, W, C]``
            with C from 1 to 4 or ``[H, W]``, has an empty side, or is too large.
    """
    if type(data) is _ARRAY and data.dtype in _DTYPES and data.ndim == 3:
        height, width, channels = data.shape
        if channels in _CHANNELS and 0 < height * width <= max_pixels <= MAX_PIXELS:
            return data  # nearly every image takes this short path
    image = array_of(data)
    wrong = (
        image is None
        or image.ndim not in (2, 3)
        or image.dtype not in _DTYPES
        or image.size == 0
        or (image.ndim == 3 and image.shape[2] > 4)
    )
    if image is None or wrong:
        raise InputError("this is no image", expected=IMAGE, got=describe(data, image))
    check_pixels(image.shape[0], image.shape[1], max_pixels)
    return image


def dense(image: NDArray[Any]) -> NDArray[Any]:
    """Return an image as OpenCV reads it: pixel by pixel without gaps, rows in ascending order.

    OpenCV itself would copy an image of another layout, and end the process when memory for the
    copy is missing. Numpy raises `MemoryError` instead, which fails one request.

    Raises:
        MemoryError: There is no memory for a copy.
    """
    if image.flags.c_contiguous:
        return image
    width = image.shape[1]
    pixel = image.itemsize * (1 if image.ndim == 2 else image.shape[2])
    within = image.ndim == 2 or image.shape[2] == 1 or image.strides[2] == image.itemsize
    columns = width == 1 or image.strides[1] == pixel
    rows = len(image) == 1 or image.strides[0] >= width * pixel
    return image if within and columns and rows else np.ascontiguousarray(image)


def resize_image(
    image: Any,
    height: int | None = None,
    width: int | None = None,
    *,
    short: int | None = None,
    interpolation: str = "linear",
    antialias: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> NDArray[Any]:
    """Resize an image. Dtype and number of dimensions are kept.

    Pixel centres lie at half coordinates. A side that is None follows from the other one, so that
    the aspect ratio is kept: the exact value rounded to the nearest integer, halves up, at least 1.
    With ``short``, the longer side follows from the shorter one, rounded down, as in torchvision.

    Args:
        image: See the module's docstring. Returned itself when it has the size already.
        height: The height of the result in pixels, 1 to `MAX_SIDE`. None if ``width`` is given.
        width: The width of the result in pixels, 1 to `MAX_SIDE`. None if ``height`` is given.
        short: The shorter side of the result in pixels, in place of ``height`` and ``width``.
        interpolation: ``"nearest"``, ``"linear"``, ``"cubic"``, ``"area"`` or ``"lanczos"``.
        antialias: Let Pillow resize, whose ``linear``, ``cubic`` and ``lanczos`` average all pixels of an image that
            becomes smaller.
        max_pixels: Most pixels (width x height) of ``image`` and of the result.

    Raises:
        InputError: ``image`` is no image, or the image or the result is too large, or a side of the
            result would exceed `MAX_SIDE`.
        MissingDependencyError: ``antialias`` is set, and Pillow is not installed.
        ValueError: No side is given, or too many, a side is below 1, or ``interpolation`` is unknown, or has no
            ``antialias``.
    """
    resize = image_resizer(
        height,
        width,
        short=short,
        interpolation=interpolation,
        antialias=antialias,
        max_pixels=max_pixels,
    )
    return resize(image)


def image_resizer(
    height: int | None,
    width: int | None,
    *,
    short: int | None = None,
    interpolation: str,
    antialias: bool = False,
    max_pixels: int,
) -> Callable[[Any], NDArray[Any]]:
    """Return `resize_image` with its options, for many images.

    Raises:
        MissingDependencyError: ``antialias`` is set, and Pillow is not installed.
        ValueError: No side is given, or too many, a side is below 1, or ``interpolation`` is unknown, or has no
            ``antialias``.
    """
    height, width = check_sides(height, width)
    short = None if short is None else check_side("short", short)
    is_free = height is None and width is None
    if is_free and short is None:
        raise ValueError("height and width are both None, and so is short")
    if not is_free and short is not None:
        raise ValueError("short takes the place of height and width")
    check_choice("interpolation", interpolation, ("nearest", *INTERPOLATIONS))
    is_nearest = interpolation == "nearest"
    by_pillow = pillow_resizer(interpolation) if antialias else None
    flag: int = 0 if is_nearest else INTERPOLATIONS[interpolation]
    resize: Callable[..., Any] = cv2.resize
    empty = np.empty
    size_hw = None if height is None or width is None else (height, width)
    is_within = size_hw and max(size_hw) <= MAX_SIDE and size_hw[0] * size_hw[1] <= max_pixels

    def resized(image: Any) -> NDArray[Any]:
        source = as_image(image, max_pixels)
        old_hw, new_hw = source.shape[:2], size_hw
        if new_hw is None:
            new_hw = _free_side(old_hw[0], old_hw[1], height, width, short)
        if new_hw == old_hw:
            return source
        if not is_within:
            _check_resized(old_hw, new_hw, max_pixels)
        if is_nearest:
            return _nearest(source, *new_hw)
        if by_pillow is not None:
            return by_pillow(source, *new_hw)
        # OpenCV computes without the interpreter lock. If it had to make the result array, it
        # would take the lock once more and wait for the other threads.
        target = empty(new_hw + source.shape[2:], source.dtype)
        source = source if source.flags.c_contiguous else dense(source)
        resize(source, new_hw[::-1], target, 0, 0, flag)
        return target

    return resized


def _free_side(
    old_height: int, old_width: int, height: int | None, width: int | None, short: int | None
) -> tuple[int, int]:
    """Return height and width of the result; the side that is None follows from the aspect ratio."""
    if short is not None:
        if old_height <= old_width:
            return short, old_width * short // old_height
        return old_height * short // old_width, short
    if height is not None:
        return height, max(1, (2 * old_width * height + old_height) // (2 * old_height))
    if width is None:  # for the type checker: `image_resizer` has refused it
        raise ValueError("height and width are both None")
    return max(1, (2 * old_height * width + old_width) // (2 * old_width)), width


def _check_resized(old_hw: tuple[int, int], new_hw: tuple[int, int], max_pixels: int) -> None:
    """Refuse a resized image that is too large."""
    (old_height, old_width), (height, width) = old_hw, new_hw
    if max(new_hw) > MAX_SIDE:
        raise InputError(
            "the image is too long and thin to keep its aspect ratio",
            expected=f"sides of at most {MAX_SIDE} pixels after resizing",
            got=f"{old_height} x {old_width} pixels, which become {height} x {width}",
        )
    got = f"{old_width} x {old_height} pixels, which become {width} x {height}"
    check_pixels(height, width, max_pixels, "the resized image", got=got)


def _nearest(source: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """Return each pixel of the result the value of the source pixel that holds its centre.

    The function does not use OpenCV: its versions differ in which pixel is nearest, and some fail
    beyond 32767 pixels.
    """
    old_height, old_width = source.shape[:2]
    rows, columns = _centres(old_height, height), _centres(old_width, width)
    if height * old_width <= old_height * width:  # the order with the smaller array in between
        return source.take(rows, 0).take(columns, 1)
    return source.take(columns, 1).take(rows, 0)


def _centres(old: int, new: int) -> NDArray[np.int64]:
    """Give, for each of ``new`` pixels, the index of the one of ``old`` that holds its centre."""
    return (2 * np.arange(new, dtype=np.int64) + 1) * old // (2 * new)


def convert_color(
    image: Any, source: str, target: str, *, max_pixels: int = MAX_PIXELS
) -> NDArray[Any]:
    """Convert between ``"rgb"``, ``"bgr"`` and ``"gray"``. The result is always ``[H, W, C]``.

    Grey is ``[H, W, 1]``, 0.299 red + 0.587 green + 0.114 blue.

    Args:
        image: See the module's docstring, with the channels of ``source``. When ``source`` is
            ``target``, ``image`` itself is returned (``[H, W]`` as a view with a channel axis).
        source: The order of the channels of ``image``.
        target: The order of the channels of the result.
        max_pixels: Most pixels (width x height).

    Raises:
        InputError: ``image`` is no image, is too large, or does not have the channels of ``source``.
        ValueError: ``source`` or ``target`` is unknown.

    Source:
        ITU-R BT.601 for grey, as in OpenCV's ``cvtColor``.
    """
    check_choice("source", source, COLORS)
    return color_converter(target, max_pixels)(image, source)


def color_converter(target: str, max_pixels: int) -> Callable[[Any, str], NDArray[Any]]:
    """Return `convert_color` with its options, for many images, of the image and the colour that it has.

    Raises:
        ValueError: ``target`` is unknown.
    """
    check_choice("target", target, COLORS)
    depth, empty = COLORS[target], np.empty
    flags = {source: flag for (source, result), flag in _CONVERSIONS.items() if result == target}

    def converted(image: Any, source: str) -> NDArray[Any]:
        pixels = as_image(image, max_pixels)
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        height, width, channels = pixels.shape
        if channels != COLORS[source]:
            problem = f"the image is not {source}"
            expected = f"{COLORS[source]} channel(s), as its color is {source!r}"
            raise InputError(problem, expected=expected, got=f"{pixels.dtype} {list(pixels.shape)}")
        if source == target:
            return pixels
        # OpenCV would take the interpreter lock once more to make the result array, as in `image_resizer`.
        result = empty((height, width, depth), pixels.dtype)
        pixels = pixels if pixels.flags.c_contiguous else dense(pixels)
        cv2.cvtColor(pixels, flags[source], result)
        return result

    return converted
