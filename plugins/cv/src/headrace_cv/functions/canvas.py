"""Images fitted into a canvas of fixed size, with their aspect ratio kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from headrace.errors import InputError
from headrace_cv.functions.images import as_image, dense, resize_image
from headrace_cv.functions.limits import MAX_PIXELS, check_pixels, check_side
from headrace_cv.functions.transforms import LetterBoxTransform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["letterbox_image", "pad_image", "padding_of"]

_MOST = 3.4028234663852886e38
"""The greatest ``float32``."""


def letterbox_image(
    image: Any,
    height: int,
    width: int,
    *,
    fill_value: float | Sequence[float] = 114,
    centered: bool = True,
    enlarge: bool = True,
    interpolation: str = "linear",
    max_pixels: int = MAX_PIXELS,
) -> tuple[NDArray[Any], LetterBoxTransform]:
    """Fit an image into a canvas: resize it with its aspect ratio kept, and pad the rest.

    One side of the image becomes as long as that side of the canvas. The other side gets its exact
    length rounded to the nearest integer, halves up, at least 1 pixel.

    Args:
        image: See `headrace_cv.functions.images`. Returned itself when it has the size of the canvas.
        height: Height of the canvas in pixels, 1 to 32767.
        width: Width of the canvas in pixels, 1 to 32767.
        fill_value: The value of the padding, one number or one per channel. For ``uint8`` rounded
            to the nearest integer, limited to what the dtype holds.
        centered: True: the image lies in the middle (an odd pixel of padding goes right or below).
            False: it lies in the upper left corner.
        enlarge: False: an image smaller than the canvas keeps its size.
        interpolation: See `headrace_cv.resize_image`.
        max_pixels: Most pixels (width x height) of ``image`` and of the canvas.

    Returns:
        The canvas, same dtype and number of dimensions, and where the image lies in it.

    Raises:
        InputError: ``image`` is no image, has another number of channels than ``fill_value``, or the
            image or the canvas is too large.
        ValueError: A side is below 1, or ``interpolation`` is unknown.

    Source:
        The ``letterbox`` of YOLOv5 (centre, 114, which side gets the odd pixel) and the
        preprocessing of YOLOX (upper left corner, 114). Sizes by own rounding.
    """
    height, width = check_side("height", height), check_side("width", width)
    source = as_image(image, max_pixels)
    check_pixels(height, width, max_pixels, "the canvas")
    padding = padding_of(source, fill_value)
    old_height, old_width = source.shape[:2]
    new_height, new_width = old_height, old_width
    if enlarge or old_height > height or old_width > width:
        if old_width * height <= old_height * width:
            new_height = height
            new_width = max(1, (2 * old_width * height + old_height) // (2 * old_height))
        else:
            new_width = width
            new_height = max(1, (2 * old_height * width + old_width) // (2 * old_width))
    right, below = width - new_width, height - new_height
    left, top = (right // 2, below // 2) if centered else (0, 0)
    content = resize_image(
        source, new_height, new_width, interpolation=interpolation, max_pixels=max_pixels
    )
    canvas = pad_image(content, (top, below - top, left, right - left), padding)
    return canvas, LetterBoxTransform(
        image_h=old_height,
        image_w=old_width,
        content_h=new_height,
        content_w=new_width,
        canvas_h=height,
        canvas_w=width,
        left=left,
        top=top,
    )


def padding_of(image: NDArray[Any], value: float | Sequence[float]) -> list[float]:
    """Return the value of the padding as OpenCV wants it: four numbers.

    Raises:
        InputError: ``value`` is a list whose length is not the number of channels of ``image``.
    """
    channels = 1 if image.ndim == 2 else image.shape[2]
    each = value if isinstance(value, (int, float)) or np.ndim(value) else float(value)  # type: ignore[arg-type]
    values = (
        [float(each)] * channels if isinstance(each, (int, float)) else [float(v) for v in each]
    )
    if len(values) != channels:
        problem = "the value of the padding (fill_value) does not fit the image"
        expected = f"{len(values)} channel(s), one per value of the padding"
        got = f"{image.dtype} {list(image.shape)}"
        raise InputError(problem, key="data", expected=expected, got=got)
    # OpenCV limits numbers only within 32-bit integers: 3e9 became 0 in `uint8`.
    least, most = (0.0, 255.0) if image.dtype == np.uint8 else (-_MOST, _MOST)
    limited = [min(max(number, least), most) for number in values]
    return (limited + [0.0] * 4)[:4]


def pad_image(
    image: NDArray[Any], margins: tuple[int, int, int, int], padding: list[float]
) -> NDArray[Any]:
    """Put margins of ``top, bottom, left, right`` pixels, filled with ``padding``, around an image."""
    if not any(margins):
        return image
    top, bottom, left, right = margins
    height, width, *channels = image.shape
    # OpenCV computes without the interpreter lock. If it had to make the result array, it would
    # take the lock once more and wait for the other threads.
    padded = np.empty((top + height + bottom, left + width + right, *channels), image.dtype)
    cv2.copyMakeBorder(dense(image), *margins, cv2.BORDER_CONSTANT, padded, padding)
    return padded
