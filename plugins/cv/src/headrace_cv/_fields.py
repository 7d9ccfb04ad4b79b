"""Types of options that several backends of this plugin share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

import headrace
from headrace_cv.functions.limits import MAX_PIXELS, MAX_SIDE

__all__ = ["ImageOptions", "Interpolation", "PerChannel", "Side", "check_made"]

PerChannel = Annotated[tuple[FiniteFloat, ...], Field(min_length=1, max_length=4)]
"""One number per channel."""

Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
"""Height or width of an image that a backend makes, in pixels."""

Interpolation = Literal["nearest", "linear", "cubic", "area", "lanczos"]
"""How OpenCV computes values between pixels."""


class ImageOptions(headrace.Options):
    """The options of all backends that take or make images.

    Attributes:
        max_pixels: Largest image that is read or made, in pixels (width x height).
    """

    max_pixels: int = Field(MAX_PIXELS, ge=1, le=1 << 30)


def check_made(height: int | None, width: int | None, max_pixels: int) -> None:
    """Refuse options that ask for images above their own ``max_pixels``. None is an unknown side.

    Raises:
        ValueError: Height times width is more than ``max_pixels``.
    """
    if height is not None and width is not None and height * width > max_pixels:
        raise ValueError(
            f"{height} x {width} pixels are more than max_pixels allows, which is {max_pixels}"
        )
