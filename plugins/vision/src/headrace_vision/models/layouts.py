"""The layouts of detectors of the YOLO family, as plain functions on one output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LAYOUTS", "cells_of", "fitting_layouts", "guess_layout", "read_layout"]

LAYOUTS = ("v5", "v8", "end2end", "yolox")
"""``v5``: ``[A, 5+C]`` (centre, size, objectness, classes), three anchors per cell. ``v8``: ``[4+C, A]``.
``end2end``: ``[K, 6]`` (corners, score, class). ``yolox``: ``[A, 5+C]``, relative to the cells."""

_STRIDES = ((8, 16, 32), (8, 16, 32, 64))


def cells_of(height: int, width: int, strides: tuple[int, ...] = _STRIDES[0]) -> int:
    """Return how many cells the grids of an input have together."""
    return sum((height // stride) * (width // stride) for stride in strides)


def fitting_layouts(
    shape: tuple[int, int], input_size: tuple[int, int] | None, classes: int | None, extra: int = 0
) -> list[str]:
    """Return the layouts that an output ``[R, C]`` may have.

    Args:
        shape: Rows and columns of the output of one image.
        input_size: Height and width of the input of the network, if known.
        classes: How many classes there are, if known.
        extra: How many numbers of each box follow its classes: coefficients of its mask, or keypoints.
    """
    rows, columns = shape
    cells = None if input_size is None else {cells_of(*input_size, stride) for stride in _STRIDES}

    def is_grid(count: int, anchors: int) -> bool:
        return cells is None or any(count == anchors * cell_count for cell_count in cells)

    def has_classes(count: int) -> bool:
        return count >= 1 and classes in (None, count)

    layouts = []
    if rows > columns and is_grid(rows, 3) and has_classes(columns - 5 - extra):
        layouts.append("v5")
    is_wide = cells is not None or columns > rows
    if is_wide and is_grid(columns, 1) and has_classes(rows - 4 - extra):
        layouts.append("v8")
    if columns == 6 + extra and (cells is None or not (is_grid(rows, 3) or is_grid(rows, 1))):
        layouts.append("end2end")
    if rows > columns and is_grid(rows, 1) and has_classes(columns - 5 - extra):
        layouts.append("yolox")
    return layouts


def guess_layout(
    shape: tuple[int, int], input_size: tuple[int, int] | None, classes: int | None, extra: int = 0
) -> str:
    """Return the one layout that an output may have.

    Args:
        shape: See `fitting_layouts`.
        input_size: See `fitting_layouts`.
        classes: See `fitting_layouts`.
        extra: See `fitting_layouts`.

    Raises:
        InputError: None fits, or several do.
    """
    layouts = fitting_layouts(shape, input_size, classes, extra)
    if len(layouts) == 1:
        return layouts[0]
    text = "several layouts fit" if layouts else "no layout fits"
    got = f"{list(shape)} for an input of {input_size}: {' and '.join(layouts) or 'none'}"
    hint = "Write layout = ... ; the options labels and input_size help to tell."
    raise InputError(text, expected=f"an output of one of {', '.join(LAYOUTS)}", got=got, hint=hint)


def read_layout(
    output: NDArray[Any],
    layout: str,
    input_size: tuple[int, int] | None,
    score_threshold: float,
    extra: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return boxes ``[N, 4]`` (``x1, y1, x2, y2``, pixels of the input), scores and classes ``[N]``, and the rest ``[N, extra]``.

    Args:
        output: What the network gave for one image, ``[R, C]``.
        layout: One of `LAYOUTS`.
        input_size: Height and width of the input. ``yolox`` needs it.
        score_threshold: Boxes of a lower score are left out, and those of 0.
        extra: How many numbers of each box follow its classes, or its class.

    Raises:
        InputError: The output does not have this layout.

    Source:
        v5: YOLOv5's export; score is objectness times class. v8: YOLOv8's export. end2end: YOLOv10's.
        yolox: YOLOX's export without decoding: ``(xy + cell) * stride``, ``exp(wh) * stride``.
    """
    import supervision as sv

    corners_of: Any = sv.xcycwh_to_xyxy
    cells = output.T if layout == "v8" else output
    rows, columns = cells.shape
    last = columns - extra
    fits = {"end2end": last == 6, "v8": last >= 5}.get(layout, last >= 6)
    if not fits:
        more = f" and {extra} more numbers of each box" if extra else ""
        got = f"an output {list(output.shape)}"
        expected = f"{layout!r}{more}"
        raise InputError("the output does not fit the layout", expected=expected, got=got)
    # Nearly all cells are below the threshold, so that only one number of each is looked at. No class is above 1.
    scores = (cells[:, 4:last].max(1) if layout == "v8" else cells[:, 4]).astype(np.float64)
    indices = _above(scores, score_threshold)
    values, scores = cells[indices].astype(np.float64), scores[indices]
    if layout == "end2end":
        return values[:, :4], scores, values[:, 5].astype(np.int64), values[:, last:]
    if layout == "v8":
        return (corners_of(values[:, :4]), scores, values[:, 4:last].argmax(1), values[:, last:])
    scores *= values[:, 5:last].max(1)
    best = _above(scores, score_threshold)
    values, indices = values[best], indices[best]
    places = values[:, :4] if layout == "v5" else _on_grid(values, indices, rows, input_size)
    return corners_of(places), scores[best], values[:, 5:last].argmax(1), values[:, last:]


def _above(scores: NDArray[np.float64], threshold: float) -> NDArray[np.int64]:
    return np.flatnonzero((scores >= threshold) & (scores > 0))


def _on_grid(
    rows: NDArray[np.float64],
    indices: NDArray[np.int64],
    count: int,
    input_size: tuple[int, int] | None,
) -> NDArray[np.float64]:
    """Return centres and sizes in pixels of the input of those of ``count`` cells that are kept."""
    sizes = [steps for steps in _STRIDES if input_size and cells_of(*input_size, steps) == count]
    if input_size is None or not sizes:
        expected, got = f"one row per cell of an input of {input_size}", f"{count} rows"
        raise InputError("the output does not fit the input", expected=expected, got=got)
    cells, strides = [], []
    for stride in sizes[0]:
        y, x = np.mgrid[: input_size[0] // stride, : input_size[1] // stride]
        cells.append(np.stack([x, y], -1).reshape(-1, 2))
        strides.append(np.full((x.size, 1), stride))
    cell, stride_of = np.concatenate(cells)[indices], np.concatenate(strides)[indices]
    center = (rows[:, :2] + cell) * stride_of
    with np.errstate(over="ignore"):
        size = np.exp(rows[:, 2:4]) * stride_of
    if not np.isfinite(size).all():
        raise InputError("a box is not finite", expected="logarithms of sizes", got="an overflow")
    return np.concatenate([center, size], 1)
