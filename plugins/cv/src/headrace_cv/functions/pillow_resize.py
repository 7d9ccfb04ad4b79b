"""Images made smaller by Pillow, which is imported when such a function is made.

Its filters grow with the step from pixel to pixel, so that every pixel of the image counts (antialias). OpenCV's do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.plugins import library
from headrace_cv.functions.limits import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["pillow_resizer"]

_FILTERS = {"linear": "BILINEAR", "cubic": "BICUBIC", "lanczos": "LANCZOS"}


def pillow_resizer(interpolation: str) -> Callable[[NDArray[Any], int, int], NDArray[Any]]:
    """Return a function of an image, a height and a width that makes a new image of that size.

    Args:
        interpolation: ``"linear"``, ``"cubic"`` or ``"lanczos"``.

    Raises:
        MissingDependencyError: Pillow is not installed.
        ValueError: ``interpolation`` is unknown.
    """
    check_choice("with antialias, interpolation", interpolation, _FILTERS)
    pillow = library("PIL.Image", "headrace-cv[formats]", "Pillow resizes with antialias")
    chosen = getattr(pillow.Resampling, _FILTERS[interpolation])

    def resize(image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
        whole = image.ndim == 2 or (image.shape[2] == 3 and image.dtype == np.uint8)
        # Pillow has no mode for other channels that it resizes each alone: it multiplies by alpha.
        planes = [image] if whole else [image[:, :, k] for k in range(image.shape[2])]
        pictures = [pillow.fromarray(np.ascontiguousarray(plane)) for plane in planes]
        planes = [np.asarray(each.resize((width, height), chosen)) for each in pictures]
        return planes[0].copy() if whole else np.stack(planes, axis=2)

    return resize
