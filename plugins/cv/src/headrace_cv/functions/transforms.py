"""Map boxes between an image and the canvas it was fitted into. The module needs numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_cv.functions.boxes import as_rows, corners_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LetterBoxTransform", "boxes_to_image"]


@dataclass(frozen=True)
class LetterBoxTransform:
    """Where an image lies in a canvas: maps boxes from the canvas to the image and back.

    Both sides of the resized image are rounded to whole pixels, so its two scales may differ a
    little. Each axis is mapped by its own scale, as the pixels were.

    Attributes:
        image_h, image_w: Size of the image before it was resized, in pixels.
        content_h, content_w: Size of the image inside the canvas, in pixels.
        canvas_h, canvas_w: Size of the canvas, in pixels.
        left, top: Where the upper left corner of the image lies in the canvas, in pixels.
    """

    image_h: int
    image_w: int
    content_h: int
    content_w: int
    canvas_h: int
    canvas_w: int
    left: int
    top: int

    @property
    def scale_x(self) -> float:
        """Canvas pixels per image pixel along the width."""
        return self.content_w / self.image_w

    @property
    def scale_y(self) -> float:
        """Canvas pixels per image pixel along the height."""
        return self.content_h / self.image_h

    def to_image(self, xyxy: Any) -> NDArray[np.float32]:
        """Map boxes from the canvas to the image. Nothing is clipped.

        Args:
            xyxy: ``[N, 4]``, in canvas pixels.

        Returns:
            A new ``float32 [N, 4]`` in image pixels, computed in ``float64`` and rounded once.

        Raises:
            InputError: ``xyxy`` are no such numbers, or a number is not finite.
        """
        return _single((corners_of(xyxy) - self._offset()) / self._scale())

    def to_canvas(self, xyxy: Any) -> NDArray[np.float32]:
        """Map boxes from the image to the canvas. Nothing is clipped.

        Args:
            xyxy: ``[N, 4]``, in image pixels.

        Returns:
            A new ``float32 [N, 4]`` in canvas pixels, computed in ``float64`` and rounded once.

        Raises:
            InputError: ``xyxy`` are no such numbers, or a number is not finite.
        """
        return _single(corners_of(xyxy) * self._scale() + self._offset())

    def _scale(self) -> NDArray[np.float64]:
        return np.array([self.scale_x, self.scale_y] * 2)

    def _offset(self) -> NDArray[np.float64]:
        return np.array([self.left, self.top] * 2, np.float64)


def _single(boxes: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite
        return boxes.astype(np.float32)


def boxes_to_image(
    rows: Any, transform: LetterBoxTransform, *, clip: bool = True
) -> NDArray[np.float32]:
    """Map rows that begin with a box from the canvas to the image. Further columns are kept.

    Args:
        rows: ``[N, C]``, C at least 4. The first four are ``x1, y1, x2, y2`` in canvas pixels.
        transform: The transform that `headrace_cv.letterbox_image` returned with the canvas.
        clip: Limit the boxes to the image: x to 0 and its width, y to 0 and its height.

    Returns:
        A new ``float32 [N, C]``.

    Raises:
        InputError: ``rows`` are no such numbers, or a number is not finite.
    """
    result = np.array(as_rows(rows, 4))
    result[:, :4] = transform.to_image(result[:, :4])
    if clip:
        np.clip(result[:, 0:4:2], 0, transform.image_w, out=result[:, 0:4:2])
        np.clip(result[:, 1:4:2], 0, transform.image_h, out=result[:, 1:4:2])
    return result
