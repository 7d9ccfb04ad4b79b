"""`NMS`: the best of boxes that overlap."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace_cv._per_image import PerImage, of_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["NMS"]


class NMS(PerImage):
    """Keep the best of overlapping boxes: greedy non-maximum suppression, class by class.

    The box of the highest score stays. All boxes of its class with an overlap above
    ``iou_threshold`` go. The same is done with the remaining boxes. Of rows with
    equal scores the first row comes first. A box without area overlaps nothing.

    Reads:
        data: Numbers ``[N, C]``, C at least 6: ``x1, y1, x2, y2, score, class``. N may be 0.

    Writes:
        result: ``float32 [K, C]``, a new array: the remaining rows, by descending score.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or something else, a number is not finite, or there are more
            than 100,000 rows to compare.

    Source:
        torchvision's ``nms`` and ``batched_nms`` (same rule, ``>``). Own computation.
    """

    class Options(headrace.Options):
        """When boxes count as the same object, and when rows are dropped.

        Attributes:
            iou_threshold: Overlap above which the lesser box is dropped (intersection over union, 0 to 1).
            score_threshold: Rows of a lower score are dropped, in units of the score; none keeps all.
            class_agnostic: Boxes of different classes drop each other too (true or false).
            max_boxes: Most rows of the result, the best ones; none means any number.
        """

        iou_threshold: float = Field(0.5, ge=0, le=1)
        score_threshold: float | None = Field(None, allow_inf_nan=False)
        class_agnostic: bool = False
        max_boxes: int | None = Field(None, ge=1)

        positional = ("iou_threshold", "score_threshold")

    expected = "numbers [N, C], C at least 6: x1, y1, x2, y2, score, class"

    def build(self, options: Any) -> Callable[[Request], None]:
        """Keep the best rows of one request."""
        from headrace_cv.functions.boxes import filter_detections

        return of_data(functools.partial(filter_detections, **options.model_dump()), self.expected)
