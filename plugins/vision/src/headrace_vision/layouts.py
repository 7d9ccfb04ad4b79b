"""The layouts of detectors of the YOLO family, as plain functions on one output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import InputError
from headrace_vision.boxes import from_center

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
    shape: tuple[int, int], input_size: tuple[int, int] | None, classes: int | None
) -> list[str]:
    """Return the layouts that an output ``[R, C]`` may have.

    Args:
        shape: Rows and columns of the output of one image.
        input_size: Height and width of the input of the network, if known.
        classes: How many classes there are, if known.
    """
    rows, columns = shape
    cells = None if input_size is None else {cells_of(*input_size, one) for one in _STRIDES}

    def is_grid(count: int, anchors: int) -> bool:
        return cells is None or any(count == anchors * one for one in cells)

    def has_classes(count: int) -> bool:
        return count >= 1 and classes in (None, count)

    found = []
    if columns >= 6 and rows > columns and is_grid(rows, 3) and has_classes(columns - 5):
        found.append("v5")
    is_wide = cells is not None or columns > rows
    if is_wide and is_grid(columns, 1) and has_classes(rows - 4):
        found.append("v8")
    if columns == 6 and (cells is None or not (is_grid(rows, 3) or is_grid(rows, 1))):
        found.append("end2end")
    if columns >= 6 and rows > columns and is_grid(rows, 1) and has_classes(columns - 5):
        found.append("yolox")
    return found


def guess_layout(
    shape: tuple[int, int], input_size: tuple[int, int] | None, classes: int | None
) -> str:
    """Return the one layout that an output may have.

    Args:
        shape: See `fitting_layouts`.
        input_size: See `fitting_layouts`.
        classes: See `fitting_layouts`.

    Raises:
        InputError: None fits, or several do.
    """
    found = fitting_layouts(shape, input_size, classes)
    if len(found) == 1:
        return found[0]
    raise InputError(
        "several layouts fit" if found else "no layout fits",
        expected=f"an output of one of {', '.join(LAYOUTS)}",
        got=f"{list(shape)} for an input of {input_size}: {' and '.join(found) or 'none'}",
        hint="Write layout = ... ; the options labels and input_size help to tell.",
    )


def read_layout(
    output: NDArray[np.float64], layout: str, input_size: tuple[int, int] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return boxes ``[N, 4]`` (``x1, y1, x2, y2``, pixels of the input), scores and classes ``[N]``.

    Args:
        output: What the network gave for one image, ``[R, C]``.
        layout: One of `LAYOUTS`.
        input_size: Height and width of the input; ``yolox`` needs it.

    Raises:
        InputError: The output does not have this layout.

    Source:
        v5: YOLOv5's export; score is objectness times class. v8: YOLOv8's export. end2end: YOLOv10's.
        yolox: YOLOX's export without decoding: ``(xy + cell) * stride``, ``exp(wh) * stride``.
    """
    rows, columns = output.shape
    if layout == "end2end":
        _check(output, layout, columns == 6)
        return output[:, :4], output[:, 4], output[:, 5].astype(np.int64)
    if layout == "v8":
        _check(output, layout, rows >= 5)
        scores, classes = _best(output[4:].T)
        return from_center(output[:4].T), scores, classes
    _check(output, layout, columns >= 6)
    scores, classes = _best(output[:, 5:])
    places = output[:, :4] if layout == "v5" else _on_grid(output, input_size)
    return from_center(places), scores * output[:, 4], classes


def _check(output: NDArray[np.float64], layout: str, fits: bool) -> None:
    if not fits:
        got = f"an output {list(output.shape)}"
        raise InputError("the output does not fit the layout", expected=f"{layout!r}", got=got)


def _best(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    if not len(scores):
        return np.empty(0), np.empty(0, np.int64)
    classes = scores.argmax(1)
    return np.take_along_axis(scores, classes[:, None], 1)[:, 0], classes.astype(np.int64)


def _on_grid(
    output: NDArray[np.float64], input_size: tuple[int, int] | None
) -> NDArray[np.float64]:
    sizes = (
        []
        if input_size is None
        else [one for one in _STRIDES if cells_of(*input_size, one) == len(output)]
    )
    if input_size is None or not sizes:
        raise InputError(
            "the output does not fit the input",
            expected=f"one row per cell of an input of {input_size}",
            got=f"{len(output)} rows",
        )
    cells, strides = [], []
    for stride in sizes[0]:
        y, x = np.mgrid[: input_size[0] // stride, : input_size[1] // stride]
        cells.append(np.stack([x, y], -1).reshape(-1, 2))
        strides.append(np.full((x.size, 1), stride))
    cell, stride_of = np.concatenate(cells), np.concatenate(strides)
    center = (output[:, :2] + cell) * stride_of
    with np.errstate(over="ignore"):
        size = np.exp(output[:, 2:4]) * stride_of
    if not np.isfinite(size).all():
        raise InputError("a box is not finite", expected="logarithms of sizes", got="an overflow")
    return np.concatenate([center, size], 1)
