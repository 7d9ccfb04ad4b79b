"""Pieces of images: upright boxes, and quadrilaterals made upright."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from headrace.errors import InputError
from headrace_cv.functions.arrays import array_of, describe, numbers_of
from headrace_cv.functions.canvas import pad_image, padding_of
from headrace_cv.functions.images import INTERPOLATIONS, as_image, dense
from headrace_cv.functions.limits import (
    MAX_PIXELS,
    MAX_SIDE,
    check_choice,
    check_pixels,
    check_side,
    check_sides,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["BOX", "QUAD", "center_crop_image", "crop_image", "crop_quad"]

BOX = "4 finite numbers: x1, y1, x2, y2 in pixels"
"""The definition of a box, as errors quote it."""

QUAD = "finite numbers [4, 2]: x, y in pixels of 4 corners, clockwise from the upper left one"
"""The definition of a quadrilateral, as errors quote it."""


def crop_image(
    image: Any,
    box: Any,
    *,
    outside: str = "clip",
    fill_value: float | Sequence[float] = 0,
    max_pixels: int = MAX_PIXELS,
) -> NDArray[Any]:
    """Cut a box out of an image.

    The box holds the pixels from ``x1`` to before ``x2`` and from ``y1`` to before ``y2``. Each
    number is rounded to the nearest integer first, halves up.

    Args:
        image: See `headrace_cv.functions.images`.
        box: ``x1, y1, x2, y2`` in pixels, a list or an array. Further numbers are ignored, so a row of a detector can
            be passed.
        outside: What happens to a box that leaves the image: ``"clip"`` cuts it at the border,
            ``"refuse"`` refuses it, ``"fill"`` keeps its size and fills the rest.
        fill_value: The value that ``"fill"`` gives to pixels outside of the image, one number or
            one per channel. For ``uint8`` rounded to the nearest integer and limited to 0 and 255.
        max_pixels: Most pixels (width x height) of ``image`` and of the crop. Pixels outside of
            the image count too, because they cost memory as well.

    Returns:
        A new array of the same dtype and number of dimensions, never a view into the image.

    Raises:
        InputError: ``image`` is no image. ``box`` is no box, holds no pixel of the image, or leaves
            the image where ``outside`` is ``"refuse"``. The image or the crop is too large, or a
            side of the filled crop is above `MAX_SIDE`. ``fill_value`` is a list whose length is
            not the number of channels.
        ValueError: ``outside`` is unknown.
    """
    check_choice("outside", outside, ("clip", "refuse", "fill"))
    pixels = as_image(image, max_pixels)
    padding = padding_of(pixels, fill_value if outside == "fill" else 0)
    height, width = pixels.shape[:2]
    x1, y1, x2, y2 = (math.floor(number + 0.5) for number in _four_numbers(box))
    got = f"{x1}, {y1}, {x2}, {y2}"
    left, top, right, bottom = max(x1, 0), max(y1, 0), min(x2, width), min(y2, height)
    if left >= right or top >= bottom:
        expected = f"x1 < x2, y1 < y2, some of it in the image of {width} x {height} pixels"
        raise InputError("the box holds no pixel", expected=expected, got=got)
    is_inside = (left, top, right, bottom) == (x1, y1, x2, y2)
    if outside == "refuse" and not is_inside:
        expected = f"a box inside 0, 0, {width}, {height}"
        raise InputError("the box leaves the image", expected=expected, got=got)
    piece: NDArray[Any] = pixels[top:bottom, left:right]
    if outside == "fill" and not is_inside:
        _check_size(y2 - y1, x2 - x1, max_pixels)
        return pad_image(piece, (top - y1, y2 - bottom, left - x1, x2 - right), padding)
    owned: NDArray[Any] = piece.copy()
    return owned


def center_crop_image(
    image: Any,
    height: int,
    width: int | None = None,
    *,
    fill_value: float | Sequence[float] = 0,
    max_pixels: int = MAX_PIXELS,
) -> NDArray[Any]:
    """Cut out the middle of an image. Where the image is smaller, fill up around it.

    Half of an odd number of pixels to cut off is rounded to the even integer. An odd pixel to fill
    goes right or below.

    Args:
        image: See `headrace_cv.functions.images`. Returned itself when it has the size already.
        height: Height of the result in pixels, 1 to `MAX_SIDE`.
        width: Width of the result in pixels. None: as ``height``.
        fill_value: The value of pixels outside of the image, one number or one per channel. For ``uint8`` rounded to
            the nearest integer and limited to 0 and 255.
        max_pixels: Most pixels (width x height) of ``image`` and of the result.

    Returns:
        An array of the same dtype and number of dimensions, never a view into the image.

    Raises:
        InputError: ``image`` is no image, the image or the crop is too large, or ``fill_value`` is a list whose length
            is not the number of channels.
        ValueError: A side is below 1.

    Source:
        The ``center_crop`` of torchvision: its offsets and its padding.
    """
    height = check_side("height", height)
    width = height if width is None else check_side("width", width)
    pixels = as_image(image, max_pixels)
    padding = padding_of(pixels, fill_value)
    _check_size(height, width, max_pixels)
    below, right = max(height - pixels.shape[0], 0), max(width - pixels.shape[1], 0)
    if pixels.shape[:2] == (height, width):
        return pixels
    top = round(max(pixels.shape[0] - height, 0) / 2)
    left = round(max(pixels.shape[1] - width, 0) / 2)
    piece: NDArray[Any] = pixels[top : top + height, left : left + width]
    if below or right:
        margins = (below // 2, below - below // 2, right // 2, right - right // 2)
        return pad_image(piece, margins, padding)
    owned: NDArray[Any] = piece.copy()
    return owned


def _four_numbers(box: Any) -> list[float]:
    four: list[float]
    if type(box) in (list, tuple) and len(box) == 4 and set(map(type, box)) == {float}:
        four = list(box)  # making an array would take longer than the rest of this function
    else:
        numbers = numbers_of(box)
        if numbers is None or numbers.ndim != 1 or len(numbers) < 4:
            array = array_of(box) if numbers is None else numbers
            raise InputError("this is no box", expected=BOX, got=describe(box, array))
        four = numbers[:4].tolist()
    if not all(map(math.isfinite, four)):
        raise InputError("the box is not finite", expected=BOX, got=str(four))
    return four


def _check_size(height: int, width: int, max_pixels: int) -> None:
    got = f"{width} x {height} pixels"
    if max(height, width) > MAX_SIDE:
        expected = f"at most {max_pixels} pixels, no side above {MAX_SIDE}"
        hint = "The option max_pixels sets the first of these limits."
        raise InputError("the crop is too large", expected=expected, got=got, hint=hint)
    check_pixels(height, width, max_pixels, "the crop", got=got)


def crop_quad(
    image: Any,
    quad: Any,
    height: int | None = None,
    width: int | None = None,
    *,
    rotate_upright: float | None = None,
    interpolation: str = "cubic",
    max_pixels: int = MAX_PIXELS,
) -> NDArray[Any]:
    """Cut a quadrilateral out of an image and make it an upright rectangle.

    The natural width of the crop is the longer of the upper and the lower side, its natural height
    the longer of the left and the right side. Fractions are dropped, at least 1 pixel is left. The
    pixel 0, 0 of the crop is the point of the first corner, so that a quadrilateral with upright
    sides and whole numbers gives exactly the pixels of `crop_image`. A crop of another size is
    computed in one step, as if the natural crop were resized (pixel centres at half coordinates).
    Points outside of the image have the value of the nearest pixel of the image.

    Args:
        image: See `headrace_cv.functions.images`.
        quad: ``[4, 2]``: x, y in pixels of the corners, clockwise from the upper left one.
        height: Height of the result in pixels, 1 to `MAX_SIDE`. None: the height follows from
            ``width`` by the natural aspect ratio (halves up, at least 1 pixel). It is the natural
            height when ``width`` is None too.
        width: Width of the result in pixels, likewise.
        rotate_upright: A crop whose natural height is at least this many times its width is turned
            by 90 degrees counter-clockwise. None turns none. ``height`` and ``width`` are the size
            after turning.
        interpolation: ``"linear"``, ``"cubic"`` or ``"lanczos"``.
        max_pixels: Most pixels (width x height) of ``image`` and of the crop.

    Returns:
        A new array of the same dtype and number of dimensions.

    Raises:
        InputError: ``image`` is no image. ``quad`` is not ``[4, 2]`` finite numbers, lies outside
            of the image, or is no convex quadrilateral in clockwise order. The image or the crop
            is too large, or a side of the crop is above `MAX_SIDE`.
        ValueError: ``height`` or ``width`` is below 1, ``rotate_upright`` is not above 0, or
            ``interpolation`` is unknown.

    Source:
        PaddleOCR's ``get_rotate_crop_image``: size, interpolation, border and the turn (at 1.5).
    """
    height, width = check_sides(height, width)
    check_choice("interpolation", interpolation, ("linear", "cubic", "lanczos"))
    if rotate_upright is not None and not rotate_upright > 0:
        raise ValueError(f"rotate_upright is a ratio above 0, not {rotate_upright!r}")
    pixels = as_image(image, max_pixels)
    corners = _corners(quad, *pixels.shape[:2])
    sides = np.linalg.norm(corners - np.roll(corners, -1, 0), axis=1).tolist()
    natural_width = max(1, int(max(sides[0], sides[2])))
    natural_height = max(1, int(max(sides[1], sides[3])))
    is_turned = rotate_upright is not None and natural_height / natural_width >= rotate_upright
    if is_turned:
        height, width = width, height
    height, width = _size(natural_height, natural_width, height, width)
    _check_size(height, width, max_pixels)
    pixels, corners = _neighbourhood(pixels, corners)
    w, h = natural_width, natural_height
    target = np.array([[0, 0], [w, 0], [w, h], [0, h]], np.float32)
    matrix = cv2.getPerspectiveTransform(corners, target)
    if (height, width) != (h, w):
        x, y = width / w, height / h
        matrix = np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5], [0, 0, 1]]) @ matrix
    crop = np.empty((height, width, *pixels.shape[2:]), pixels.dtype)
    flags = INTERPOLATIONS[interpolation]
    cv2.warpPerspective(dense(pixels), matrix, (width, height), crop, flags, cv2.BORDER_REPLICATE)
    return np.rot90(crop).copy() if is_turned else crop


def _corners(quad: Any, height: int, width: int) -> NDArray[np.float32]:
    numbers = numbers_of(quad)
    if numbers is None or numbers.shape != (4, 2):
        array = array_of(quad) if numbers is None else numbers
        raise InputError("this is no quadrilateral", expected=QUAD, got=describe(quad, array))
    corners = numbers.astype(np.float64)
    got = str(corners.tolist())
    if not np.isfinite(corners).all():
        raise InputError("a corner is not finite", expected=QUAD, got=got)
    if (corners.max(0) <= 0).any() or (corners.min(0) >= (width, height)).any():
        expected = f"some of it in the image of {width} x {height} pixels"
        raise InputError("the quadrilateral lies outside of the image", expected=expected, got=got)
    edges = np.roll(corners, -1, 0) - corners
    after = np.roll(edges, -1, 0)
    with np.errstate(over="ignore", invalid="ignore"):
        turns = edges[:, 0] * after[:, 1] - edges[:, 1] * after[:, 0]
    # A convex quadrilateral in clockwise order turns right at each corner. Beyond 1e6, float32
    # coordinates are too coarse to place a corner within a pixel.
    if not turns.min() > 1e-6 or np.abs(corners).max() > 1e6:
        expected = "a convex quadrilateral within 1e6 pixels, clockwise from the upper left corner"
        raise InputError("the corners make no rectangle in perspective", expected=expected, got=got)
    return corners.astype(np.float32)


def _size(
    natural_height: int, natural_width: int, height: int | None, width: int | None
) -> tuple[int, int]:
    if width is None:
        if height is None:
            return natural_height, natural_width
        width = (2 * natural_width * height + natural_height) // (2 * natural_height)
    elif height is None:
        height = (2 * natural_height * width + natural_width) // (2 * natural_width)
    return max(1, height), max(1, width)


def _neighbourhood(
    pixels: NDArray[Any], corners: NDArray[np.float32]
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Cut the surroundings of ``corners`` out of an image that is too large for OpenCV to warp.

    Returns:
        The piece of the image and the corners in coordinates of the piece.
    """
    height, width = pixels.shape[:2]
    if max(height, width) < MAX_SIDE:
        return pixels, corners
    lower, upper = np.floor(corners.min(0)) - 8, np.ceil(corners.max(0)) + 9
    left, right = (int(np.clip(x, 0, width)) for x in (lower[0], upper[0]))
    top, bottom = (int(np.clip(y, 0, height)) for y in (lower[1], upper[1]))
    left, top = min(left, width - 1), min(top, height - 1)
    piece = pixels[top : max(bottom, top + 1), left : max(right, left + 1)]
    if max(piece.shape[:2]) >= MAX_SIDE:
        problem = "the quadrilateral is too large"
        got = f"{piece.shape[1]} x {piece.shape[0]} pixels around it"
        raise InputError(problem, expected=f"sides below {MAX_SIDE} pixels", got=got)
    return piece, corners - np.array([left, top], np.float32)
