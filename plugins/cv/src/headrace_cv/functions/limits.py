"""Bounds on the images and numbers that are read and made, so that no request can use up all memory.

An array that takes one byte of memory can have any shape (`numpy.broadcast_to`), and OpenCV copies
arrays whose layout it cannot read. If memory for that copy runs out, the process ends. So sizes are
checked before anything is computed. The module needs the standard library only.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "MAX_NUMBERS",
    "MAX_PIXELS",
    "MAX_SIDE",
    "check_choice",
    "check_pixels",
    "check_side",
    "check_sides",
]

MAX_PIXELS = 100_000_000
"""Default of ``max_pixels``: the largest image, in pixels (width x height)."""

MAX_SIDE = 32_767
"""Longest side of an image that a function makes, in pixels: OpenCV counts some sides in 16 bits."""

MAX_NUMBERS = 100_000_000
"""Most numbers in an array or list of boxes: rows times columns."""

_SIDES = 1 << 31


def check_pixels(
    height: int, width: int, max_pixels: int, subject: str = "the image", *, got: str = ""
) -> None:
    """Refuse an image that is too large.

    Args:
        height: Height of the image in pixels.
        width: Width of the image in pixels.
        max_pixels: Most pixels (width x height).
        subject: The name of the image in the error.
        got: The size and its origin in the error. Empty: the error gives width, height and their
            product.

    Raises:
        InputError: The image has more than ``max_pixels``, or a side of 2147483648 pixels or more,
            which OpenCV cannot count.
    """
    if height * width > max_pixels:
        expected, hint = f"at most {max_pixels} pixels", "The option max_pixels sets this limit."
    elif max(height, width) >= _SIDES:
        expected, hint = f"no side of {_SIDES} pixels or more", None
    else:
        return
    got = got or f"{width} x {height} = {height * width} pixels"
    raise InputError(f"{subject} is too large", expected=expected, got=got, hint=hint)


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """Refuse a name that a function does not know.

    Raises:
        ValueError: ``value`` is none of ``known``.
    """
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}")


def check_sides(height: int | None, width: int | None) -> tuple[int | None, int | None]:
    """Return both sides as `check_side` does; None is a side that follows from the other side."""
    return (
        None if height is None else check_side("height", height),
        None if width is None else check_side("width", width),
    )


def check_side(name: str, side: Any) -> int:
    """Return a side as Python's integer: a product of numpy's, such as ``uint8``, may overflow.

    Raises:
        ValueError: The side is no whole number of at least 1, which no image can have.
    """
    try:
        number = 0 if isinstance(side, bool) else operator.index(side)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} is a number of pixels of at least 1, not {side!r}")
    return number
