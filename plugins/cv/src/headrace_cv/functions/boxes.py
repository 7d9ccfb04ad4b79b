"""Boxes in images: how much they overlap, and which of several overlapping boxes is the best.

A box is ``x1, y1, x2, y2`` in pixels. Coordinates count the edges of pixels: 0 is the left (upper)
edge of the first pixel, the width (height) the right (lower) edge of the last one. The module needs
numpy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_cv.functions.arrays import array_of, check_numbers, describe, numbers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["as_rows", "corners_of", "filter_detections", "nms"]


MAX_CANDIDATES = 100_000
"""Most boxes that `filter_detections` compares with each other: that takes the square of their number."""


def as_rows(data: Any, columns: int, names: str = "x1, y1, x2, y2") -> NDArray[np.float32]:
    """Return ``data`` as ``float32 [N, C]`` with C of at least ``columns``. N may be 0.

    Args:
        data: An array of integers or floats, or a list of rows. An empty list has no rows.
        columns: Fewest columns.
        names: What the columns hold, for the error.

    Raises:
        InputError: ``data`` is something else, holds more than `headrace_cv.functions.limits.MAX_NUMBERS`
            numbers, or a value is not finite in ``float32``.
    """
    numbers = numbers_of(data)
    if numbers is not None and numbers.shape == (0,):
        numbers = numbers.reshape(0, columns)
    expected = f"numbers [N, C], C at least {columns}: {names}"
    if numbers is None or numbers.ndim != 2 or numbers.shape[1] < columns:
        array = array_of(data) if numbers is None else numbers
        raise InputError("these are no boxes", expected=expected, got=describe(data, array))
    check_numbers(numbers.size)
    with np.errstate(over="ignore"):
        rows = numbers.astype(np.float32, copy=False)
    finite = np.isfinite(rows).all(1)
    if not finite.all():
        bad = int(np.argmin(finite))
        got = f"row {bad}: {numbers[bad].tolist()}"
        raise InputError("a box is not finite", expected="finite numbers of float32", got=got)
    return rows


def corners_of(xyxy: Any) -> NDArray[np.float64]:
    """Return the first four columns of ``xyxy`` as ``float64 [N, 4]``, in which areas are exact enough.

    Raises:
        InputError: ``xyxy`` are no finite numbers ``[N, C]`` with C of at least 4.
    """
    corners: NDArray[np.float64] = as_rows(xyxy, 4)[:, :4].astype(np.float64)
    return corners


def nms(
    boxes: Any, scores: Any, *, iou_threshold: float = 0.5, classes: Any = None
) -> NDArray[np.int64]:
    """Keep the best of boxes that overlap: greedy non-maximum suppression.

    The box of the highest score is kept, all boxes that overlap it by more than ``iou_threshold``
    are dropped, and the same is done with the boxes that are left. Of boxes with equal scores, the
    first in the input comes first.

    Args:
        boxes: ``[N, 4]``: ``x1, y1, x2, y2``, N may be 0.
        scores: ``[N]``, greater is better.
        iou_threshold: Intersection over union above which the lesser box is dropped, in [0, 1].
        classes: ``[N]``: only boxes of equal class suppress each other. None: all do.

    Returns:
        ``int64 [K]``: the numbers of the boxes that are kept, by descending score.

    Raises:
        InputError: ``boxes``, ``scores`` or ``classes`` is no such array, holds a number that is not
            finite, or their lengths differ.
        ValueError: ``iou_threshold`` is not from 0 to 1.

    Source:
        torchvision's ``nms`` and ``batched_nms`` (same rule, ``>``). Own computation.
    """
    if not 0 <= iou_threshold <= 1:
        raise ValueError(f"iou_threshold is from 0 to 1, not {iou_threshold!r}")
    corners = corners_of(boxes)
    order = np.argsort(-_column(scores, len(corners), "scores"), kind="stable")
    groups = np.zeros(len(corners))
    if classes is not None:
        groups = _column(classes, len(corners), "classes")
    mask = np.zeros(len(corners), bool)
    for group in np.unique(groups):
        members = order[groups[order] == group]
        mask[members[_best(corners[members], iou_threshold)]] = True
    return order[mask[order]].astype(np.int64, copy=False)


def _best(corners: NDArray[np.float64], iou_threshold: float) -> list[int]:
    """Return the indices of the boxes that no better box suppresses; ``corners`` has the best first."""
    x1, y1, x2, y2 = np.ascontiguousarray(corners.T)
    area = np.maximum(x2 - x1, 0) * np.maximum(y2 - y1, 0)
    dropped = np.zeros(len(corners), bool)
    picks = []
    for i in range(len(corners)):
        if dropped[i]:
            continue
        picks.append(i)
        rest = slice(i + 1, None)
        width = np.minimum(x2[rest], x2[i]) - np.maximum(x1[rest], x1[i])
        height = np.minimum(y2[rest], y2[i]) - np.maximum(y1[rest], y1[i])
        touched = np.flatnonzero((width > 0) & (height > 0))
        shared = width[touched] * height[touched]
        touched += i + 1
        overlap = shared / (area[i] + area[touched] - shared)
        dropped[touched[overlap > iou_threshold]] = True
    return picks


def _column(values: Any, length: int, name: str) -> NDArray[np.float64]:
    numbers = numbers_of(values)
    if numbers is not None and numbers.size == 0:
        numbers = numbers.reshape(-1)
    if numbers is None or numbers.shape != (length,) or not np.isfinite(numbers).all():
        problem = f"the {name} do not fit the boxes"
        got = describe(values, array_of(values) if numbers is None else numbers)
        raise InputError(problem, expected=f"{length} finite number(s), one per box", got=got)
    return numbers.astype(np.float64)


def filter_detections(
    rows: Any,
    *,
    iou_threshold: float = 0.5,
    score_threshold: float | None = None,
    class_agnostic: bool = False,
    max_boxes: int | None = None,
) -> NDArray[np.float32]:
    """Keep the best rows of a detector: `nms` on ``x1, y1, x2, y2, score, class, ...``.

    Args:
        rows: ``[N, C]``, C at least 6. Further columns are kept. N may be 0.
        iou_threshold: See `nms`.
        score_threshold: Rows with a score below it are dropped first. None keeps all.
        class_agnostic: Boxes of different classes suppress each other too.
        max_boxes: Most rows of the result, the best ones. None means any number.

    Returns:
        A new ``float32 [K, C]``, by descending score.

    Raises:
        InputError: ``rows`` are no such numbers, a number is not finite, or there are more than
            100,000 rows to compare.
        ValueError: ``iou_threshold`` is not from 0 to 1, or ``max_boxes`` is below 0.
    """
    if max_boxes is not None and max_boxes < 0:
        raise ValueError(f"max_boxes is a number of rows, not {max_boxes!r}")
    boxes = as_rows(rows, 6, "x1, y1, x2, y2, score, class")
    if score_threshold is not None:
        boxes = boxes[boxes[:, 4] >= score_threshold]
    if len(boxes) > MAX_CANDIDATES:
        problem, got = "these are too many boxes to compare", f"{len(boxes)} rows"
        expected = f"at most {MAX_CANDIDATES} rows of at least the score that is asked for"
        raise InputError(problem, expected=expected, got=got, hint="Raise score_threshold.")
    classes = None if class_agnostic else boxes[:, 5]
    best = nms(boxes[:, :4], boxes[:, 4], iou_threshold=iou_threshold, classes=classes)
    return boxes[best[:max_boxes]]
