"""`DrawDetections`: boxes, names and numbers on the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace_vision._each import Each, need

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["DrawDetections", "draw_detections"]


def draw_detections(
    image: NDArray[np.uint8], detections: Any, *, labels: bool = True, thickness: int = 2
) -> NDArray[np.uint8]:
    """Return a copy of an image with the boxes of ``supervision.Detections`` on it, their masks, and ``data["keypoints"]``.

    Args:
        image: ``uint8 [H, W, 3]`` in the order blue, green, red.
        detections: Colours follow the tracks, else the classes.
        labels: Whether names, numbers of tracks and scores are written.
        thickness: Width of the lines, in pixels.
    """
    import supervision as sv

    drawn: NDArray[np.uint8] = image.copy()
    if not len(detections):
        return drawn
    lookup = sv.ColorLookup.INDEX
    if detections.tracker_id is not None and (detections.tracker_id >= 0).all():
        lookup = sv.ColorLookup.TRACK
    elif detections.class_id is not None:
        lookup = sv.ColorLookup.CLASS
    if detections.mask is not None:
        drawn = sv.MaskAnnotator(color_lookup=lookup).annotate(drawn, detections)
    _draw_keypoints(drawn, detections.data.get("keypoints", ()), thickness)
    drawn = sv.BoxAnnotator(thickness=thickness, color_lookup=lookup).annotate(drawn, detections)
    if labels:
        texts = [_text(detections, row) for row in range(len(detections))]
        annotator = sv.LabelAnnotator(color_lookup=lookup, text_padding=3, text_scale=0.4)
        drawn = annotator.annotate(drawn, detections, labels=texts)
    return drawn


def _draw_keypoints(image: NDArray[np.uint8], objects: Any, thickness: int) -> None:
    """Draw points ``x, y`` or ``x, y, score`` of objects; those with a score of 0 are not there."""
    import cv2

    for points in objects:
        for x, y, *score in points.tolist():
            if all(score):
                center = (round(x), round(y))
                cv2.circle(image, center, thickness + 1, (0, 255, 255), cv2.FILLED, cv2.LINE_AA)


def _text(detections: Any, row: int) -> str:
    parts = []
    if detections.tracker_id is not None and detections.tracker_id[row] >= 0:
        parts.append(f"#{detections.tracker_id[row]}")
    if "class_name" in detections.data:
        parts.append(str(detections.data["class_name"][row]))
    if detections.confidence is not None:
        parts.append(f"{detections.confidence[row]:.2f}")
    return " ".join(parts) or str(row)


class DrawDetections(Each):
    """Draw the boxes of the detections on the image, their masks and ``data["keypoints"]``.

    Reads:
        data: ``supervision.Detections``.
        image: ``uint8 [H, W, 3]``, blue, green, red; it is not changed.

    Writes:
        result: A new ``uint8 [H, W, 3]``.
        detections: The detections.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` or ``image`` is missing or something else.

    Source:
        ``supervision.BoxAnnotator``, ``supervision.MaskAnnotator`` and ``supervision.LabelAnnotator``.
    """

    class Options(headrace.Options):
        """What is drawn."""

        labels: bool = Field(
            default=True,
            description="Write names, numbers of tracks and scores too (true or false).",
        )
        thickness: int = Field(default=2, ge=1, description="Width of the lines, in pixels.")

        positional = ("labels",)

    reads = ("data", "image")
    writes = ("result", "detections")

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Return what works on one request."""
        from headrace_vision.boxes import as_detections, as_picture

        def work(request: Request) -> None:
            detections = as_detections(need(request, "data", "supervision.Detections"))
            drawn = draw_detections(
                as_picture(request),
                detections,
                labels=options.labels,
                thickness=options.thickness,
            )
            request["detections"] = detections
            request["result"] = drawn

        return work
