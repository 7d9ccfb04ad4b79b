"""Privacy masks: parts of a source that nobody sees. They are black before its frames go anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PrivacyMasks", "check_masks", "refuse_copy"]

_SHIFT = 8
"""Bits behind the point of the corners that OpenCV draws."""


def check_masks(masks: Mapping[str, Any]) -> None:
    """Refuse masks that are no polygons.

    Raises:
        ValueError: One is none. The text has its name.
    """
    for name, corners in masks.items():
        is_list = isinstance(corners, (list, tuple)) and len(corners) >= 3
        if not is_list or not all(map(_is_corner, corners)):
            raise ValueError(
                f"privacy_masks.{name} is a list of at least 3 corners [x, y], each from 0 to 1: fractions of the picture's "
                f"width and height, not {corners!r}"
            )


def _is_corner(value: Any) -> bool:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    return is_pair and all(isinstance(n, (int, float)) and 0 <= n <= 1 for n in value)


def refuse_copy(sink: str) -> None:
    """Refuse a sink that writes packets as they came, which no mask covers.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        f'privacy_masks cover pictures, and the sink {sink!r} copies packets (codec = "copy"): let it use an encoder, or '
        "name other sinks for this source (sinks = [...])"
    )


class PrivacyMasks:
    """Covers parts of the pictures of a source.

    Args:
        polygons: Corners ``[x, y]`` as fractions of the width and height of a picture, from the left and the top.
    """

    def __init__(self, polygons: Iterable[Any]) -> None:
        self._polygons = list(polygons)
        self._kept: NDArray[np.uint8] | None = None

    def covered(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a picture, ``uint8 [H, W, 3]``, or a copy of it where each pixel that a polygon touches is black."""
        import cv2

        if not self._polygons:
            return image
        size_hw = image.shape[:2]
        if self._kept is None or self._kept.shape != size_hw:
            self._kept = self._kept_of(size_hw)
        return cv2.copyTo(image, self._kept)  # type: ignore[return-value]

    def _kept_of(self, size_hw: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return 255 for each pixel that stays, else 0."""
        import cv2
        import numpy as np

        covered = np.zeros(size_hw, np.uint8)
        # Not in one call, where two that overlap would uncover each other.
        for polygon in self._polygons:
            corners = np.asarray(polygon, np.float64) * size_hw[::-1] - 0.5  # of pixels' centers
            fixed = np.rint(corners * (1 << _SHIFT)).astype(np.int32)
            cv2.fillPoly(covered, [fixed], 255, cv2.LINE_8, _SHIFT)
        # What is drawn lies within a pixel of what is touched.
        return cv2.bitwise_not(cv2.dilate(covered, np.ones((3, 3), np.uint8)))  # type: ignore[return-value]
