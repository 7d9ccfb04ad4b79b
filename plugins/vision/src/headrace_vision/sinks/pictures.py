"""What a frame looks like, and as the bytes of an image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace_vision.records import is_detections

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace_vision.frames import Frame
    from headrace_vision.tracking.drawing import Annotators

__all__ = ["encoded", "picture_of"]


def picture_of(
    frame: Frame, *, draw: bool, annotators: Annotators | None = None
) -> NDArray[np.uint8] | None:
    """Return what a frame looks like: ``uint8 [H, W, 3]``, blue, green, red. None if it has no image.

    Args:
        frame: A result that is a picture (of DrawDetections) is returned as it is.
        draw: Whether detections, lines and zones are drawn on the image.
        annotators: What draws the detections. None: boxes, masks, keypoints and labels.
    """
    image = frame.image
    for answer in frame.models.values() if draw else ():
        image = picture_of(replace(answer, image=image), draw=True)
    if frame.models:
        return image
    result = frame.result
    if not draw or frame.image is None or frame.error is not None:
        return frame.image
    if is_detections(result):
        from headrace_vision.tracking.drawing import Annotators, draw_counts

        drawn = (annotators or Annotators()).draw(frame.image, result)
        draw_counts(drawn, frame.request)
        return drawn
    is_picture = getattr(result, "ndim", 0) == 3 and str(getattr(result, "dtype", "")) == "uint8"
    return result if is_picture and result.shape[2] == 3 else frame.image


def encoded(suffix: str, image: Any, *options: int) -> bytes:
    """Return an image in the format of a suffix, with ``options`` of ``cv2.imencode``.

    Raises:
        ValueError: The suffix names no format of images.
    """
    import cv2

    done, data = cv2.imencode(suffix, image, options)
    if not done:
        raise ValueError(f"no image can be encoded as {suffix}")
    return data.tobytes()
