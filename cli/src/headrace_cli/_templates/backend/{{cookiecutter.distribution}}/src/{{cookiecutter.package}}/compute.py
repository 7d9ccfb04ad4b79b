"""The computation: plain functions of arrays, which are useful without a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from headrace.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["as_image", "scale"]


def as_image(data: Any) -> NDArray[np.uint8]:
    """Give ``data`` as an image, without a copy where its library allows.

    Raises:
        InputError: ``data`` is no ``uint8 [H, W, C]``; the error names the key ``data``.
    """
    try:
        image = np.asarray(data)
    except (TypeError, ValueError):
        image = np.empty(0, object)
    if image.dtype != np.uint8 or image.ndim != 3:
        got = f"{type(data).__name__} of {image.dtype} {list(image.shape)}"
        raise InputError(key="data", expected="an image: uint8 [H, W, C]", got=got)
    return image


def scale(data: Any, factor: float) -> NDArray[np.uint8]:
    """Multiply the values of an image.

    Args:
        data: ``uint8 [H, W, C]``.
        factor: The number by which each value is multiplied, at least 0.

    Returns:
        ``uint8 [H, W, C]``, a new array: the nearest whole numbers, at most 255.

    Raises:
        InputError: ``data`` is no such image.
    """
    scaled = np.multiply(as_image(data), factor, dtype=np.float64)
    result: NDArray[np.uint8] = scaled.clip(0, 255).round().astype(np.uint8)
    return result
