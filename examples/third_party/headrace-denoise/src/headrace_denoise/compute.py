"""What is computed: plain functions of arrays, useful without a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from headrace.errors import InputError
from skimage.restoration import denoise_tv_chambolle

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["as_image", "denoise"]


def as_image(data: Any) -> NDArray[np.uint8]:
    """Return ``data`` as an image, without a copy where its library allows.

    Raises:
        InputError: It is no ``uint8 [H, W, C]``; the error names the key ``data``.
    """
    try:
        image = np.asarray(data)
    except (TypeError, ValueError):
        image = np.empty(0, object)
    if image.dtype != np.uint8 or image.ndim != 3 or image.size == 0:
        got = f"{type(data).__name__} of {image.dtype} {list(image.shape)}"
        raise InputError(key="data", expected="an image: uint8 [H, W, C], not empty", got=got)
    return image


def denoise(data: Any, weight: float, max_iterations: int) -> NDArray[np.uint8]:
    """Take the noise out of an image.

    Args:
        data: ``uint8 [H, W, C]``.
        weight: Strength, above 0; see ``denoise_tv_chambolle``, which sees values from 0 to 1.
        max_iterations: Most iterations.

    Returns:
        ``uint8 [H, W, C]``, a new array.

    Raises:
        InputError: ``data`` is no such image.
    """
    image = as_image(data)
    clean = denoise_tv_chambolle(
        image / 255.0, weight=weight, max_num_iter=max_iterations, channel_axis=-1
    )
    return (np.asarray(clean) * 255.0).round().clip(0, 255).astype(np.uint8)
