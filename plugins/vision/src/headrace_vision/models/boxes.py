"""Boxes of a network as detections in pixels of the source image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.errors import InputError
from headrace.plugins import read_text
from headrace_formats import read_labels

if TYPE_CHECKING:
    import supervision as sv
    from numpy.typing import NDArray

QUADS = "xyxyxyxy"
"""The key of supervision for the corners of oriented boxes in ``data`` of detections: ``[N, 4, 2]`` in pixels."""

__all__ = [
    "QUADS",
    "Fit",
    "as_detections",
    "as_picture",
    "best_boxes",
    "best_rows",
    "class_scores",
    "finite",
    "fit_of",
    "image_size",
    "known_image_size",
    "labels_of",
    "make_detections",
    "names_of",
    "quads_of",
    "ranked",
]

_LETTERBOX = "the key letterbox, as LetterBoxMat writes it"


def finite(value: Any, label: str, dims: int, *, is_narrow: bool = False) -> NDArray[Any]:
    """Return numbers of a network as ``float64`` with ``dims`` axes. A leading axis of 1 is taken away.

    Args:
        value: The numbers.
        label: What they are, for errors.
        dims: How many axes they have.
        is_narrow: Whether ``float32`` stays as it is.

    Raises:
        InputError: They are no numbers, have other axes, or hold NaN or an infinity.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"the {label} are no array", got=type(value).__name__) from error
    if array.ndim == dims + 1 and array.shape[0] == 1:
        array = array[0]
    expected = f"finite numbers with {dims} axes"
    if array.dtype.kind not in "fiu" or array.ndim != dims:
        got = f"{array.dtype} {list(array.shape)}"
        raise InputError(f"the {label} have a wrong form", expected=expected, got=got)
    numbers = array if is_narrow and array.dtype == np.float32 else array.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InputError(f"the {label} are not finite", expected=expected, got="NaN or infinity")
    return numbers


def known_image_size(request: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return height and width of the source image, in pixels, or None.

    They are those of ``letterbox`` (written by LetterBoxMat), else those of ``image``.
    """
    box = request.get("letterbox")
    if box is not None:
        return int(box.image_h), int(box.image_w)
    shape: tuple[int, ...] = getattr(request.get("image"), "shape", ())
    return (int(shape[0]), int(shape[1])) if len(shape) >= 2 and all(shape) else None


def image_size(request: Mapping[str, Any]) -> tuple[int, int]:
    """Return what `known_image_size` does.

    Raises:
        InputError: The request has neither ``letterbox`` nor ``image``.
    """
    size = known_image_size(request)
    if size is None:
        expected = f"{_LETTERBOX}, or the key image: uint8 [H, W, 3]"
        text = "the size of the source image is unknown"
        raise InputError(text, key="image", expected=expected, got="neither")
    return size


class Fit(NamedTuple):
    """How an image was fitted into the input of a network.

    Attributes:
        image: Its height and width, in pixels.
        canvas: Height and width of the input, in pixels.
        shift: Where x and y of the image begin in the input, in pixels.
        scale: How many pixels of the image one of the input has along x and y.
    """

    image: tuple[int, int]
    canvas: tuple[int, int]
    shift: NDArray[np.float64]
    scale: NDArray[np.float64]

    def to_image(self, points: NDArray[Any], *, clip: bool = True) -> NDArray[np.float32]:
        """Map points from pixels of the input to the image.

        Args:
            points: ``[..., 2k]``, x and y in turn: boxes, or keypoints.
            clip: Whether they end at the border of the image.
        """
        mapped = (points.reshape(-1, 2) - self.shift) * self.scale
        if clip:
            mapped = np.clip(mapped, 0, self.image[::-1])
        return mapped.astype(np.float32).reshape(points.shape)


def fit_of(request: Mapping[str, Any], input_size: tuple[int, int] | None) -> Fit:
    """Return how the image of a request was fitted into the input.

    Args:
        request: Has ``letterbox``, else ``image``.
        input_size: Height and width of the input, if the image was resized without a letterbox.

    Raises:
        InputError: It is unknown how the image was resized.
    """
    height, width = image_size(request)
    box = request.get("letterbox")
    if box is not None:
        canvas = (int(box.canvas_h), int(box.canvas_w))
        scale = np.array([width / box.content_w, height / box.content_h])
        return Fit((height, width), canvas, np.array([box.left, box.top], np.float64), scale)
    if input_size is not None:
        scale = np.array([width / input_size[1], height / input_size[0]])
        return Fit((height, width), input_size, np.zeros(2), scale)
    text = "it is unknown how the image was resized"
    expected = f"{_LETTERBOX}, or the option input_size"
    raise InputError(text, key="letterbox", expected=expected, got="neither")


def best_boxes(
    boxes: NDArray[np.float64],
    scores: NDArray[np.float64],
    classes: NDArray[np.int64],
    *,
    iou_threshold: float,
    class_agnostic: bool,
) -> NDArray[np.int64]:
    """Return the indices of the boxes that no better one overlaps, by descending score.

    Args:
        boxes: ``[N, 4]``: ``x1, y1, x2, y2``.
        scores: ``[N]``, above 0.
        classes: ``[N]``.
        iou_threshold: Intersection over union above which the lesser box is dropped.
        class_agnostic: Whether boxes of different classes drop each other.

    Source:
        ``cv2.dnn.NMSBoxes`` and ``cv2.dnn.NMSBoxesBatched``.
    """
    import cv2
    import supervision as sv

    suppress: Any = cv2.dnn
    if not len(boxes):
        return np.empty(0, np.int64)
    sides = sv.xyxy_to_xywh(boxes)
    if class_agnostic:
        indices = suppress.NMSBoxes(sides, scores.astype(np.float32), 0.0, iou_threshold)
    else:
        numbers = classes.astype(np.int32)
        indices = suppress.NMSBoxesBatched(
            sides, scores.astype(np.float32), numbers, 0.0, iou_threshold
        )
    rows = np.asarray(indices, np.int64).reshape(-1)
    return rows[np.argsort(-scores[rows], kind="stable")]


def quads_of(boxes: NDArray[np.float64], angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the corners ``[N, 4, 2]`` of boxes that are turned around their centres.

    Args:
        boxes: ``[N, 4]``: ``x1, y1, x2, y2`` before that.
        angles: ``[N]``, in radians, clockwise as it is seen.
    """
    center, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    along = np.stack([np.cos(angles), np.sin(angles)], 1)
    width, height = along * half[:, :1], along[:, ::-1] * [-1, 1] * half[:, 1:]
    corners = (width + height, width - height, -width - height, -width + height)
    return np.stack([center + corner for corner in corners], 1)


def best_rows(
    places: NDArray[Any],
    classes: NDArray[Any],
    threshold: float,
    overlaps_of: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]],
) -> NDArray[np.bool_]:
    """Return which of boxes or quads, by descending score, no better one of their class overlaps.

    Tiles of a crowd have thousands of boxes, of which a matrix of all pairs takes gigabytes.

    Args:
        places: ``[N, 4]`` or ``[N, 4, 2]``.
        classes: ``[N]``.
        threshold: Overlap above which the lesser one is dropped.
        overlaps_of: Gives the overlaps ``[1, M]`` of one of them with M others.
    """
    is_best = np.ones(len(places), bool)
    for row in range(len(places) - 1):
        if is_best[row]:
            rest = slice(row + 1, None)
            overlaps = overlaps_of(places[row : row + 1], places[rest])[0]
            is_best[rest] &= (overlaps <= threshold) | (classes[rest] != classes[row])
    return is_best


def ranked(scores: NDArray[np.float64], threshold: float, most: int) -> NDArray[np.int64]:
    """Return the indices of the best scores, by descending score.

    Args:
        scores: ``[N]``.
        threshold: Lower ones are left out.
        most: How many at most.
    """
    order = np.argsort(-scores, kind="stable")[:most]
    rows: NDArray[np.int64] = order[scores[order] >= threshold]
    return rows


def labels_of(labels: list[str] | str | Path | None) -> list[str]:
    """Return the names of the classes: a list, or those in a file, which `headrace_formats.read_labels` reads."""
    if labels is None or isinstance(labels, list):
        return list(labels or ())
    return read_labels(read_text(labels), Path(labels).suffix)


def names_of(classes: NDArray[np.int64], labels: list[str]) -> NDArray[np.str_]:
    """Return the names of classes; one without a name, or with an empty one, is called by its number."""
    named = {c: name for c, name in enumerate(labels) if name.strip()}
    return np.array([named.get(c, str(c)) for c in classes.tolist()], dtype=str)


def class_scores(output: Any, activation: str) -> NDArray[Any]:
    """Return the scores ``[C]`` of a classifier.

    Args:
        output: Its output, ``[C]`` or ``[1, C]``.
        activation: ``"softmax"``, ``"sigmoid"`` or ``"identity"``.

    Raises:
        InputError: These are no finite numbers, or there are none, or a score is above 1, by more than rounding.
    """
    scores = finite(output, "outputs of the classifier", 1)
    if not scores.size:
        raise InputError("the classifier has no class", expected="numbers [C]", got="[0]")
    if activation == "softmax":
        scores = np.exp(scores - scores.max())
        scores = scores / scores.sum()
    elif activation == "sigmoid":
        scores = 1 / (1 + np.exp(-np.clip(scores, -60, 60)))
    _check_scores(scores)
    return scores


def _check_scores(scores: NDArray[Any]) -> None:
    if len(scores) and scores.max() > 1.01:
        expected, got = "scores from 0 to 1", f"{scores.max():g}"
        hint = "The network is for another task, has another layout, or its scores are logits."
        raise InputError("a score is above 1", expected=expected, got=got, hint=hint)


def make_detections(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float64],
    classes: NDArray[np.int64],
    labels: list[str],
) -> sv.Detections:
    """Return ``supervision.Detections`` with ``data["class_name"]``.

    Args:
        boxes: ``float32 [N, 4]`` in pixels of the source image.
        scores: ``[N]``.
        classes: ``[N]``.
        labels: Names by class. One without a name, or with an empty one, is called by its number.

    Raises:
        InputError: A score is above 1, by more than rounding.
    """
    import supervision as sv

    _check_scores(scores)
    named: dict[str, Any] = {"class_name": names_of(classes, labels)}
    confidence, numbers = scores.astype(np.float32), classes.astype(np.int64)
    return sv.Detections(boxes.reshape(-1, 4), confidence=confidence, class_id=numbers, data=named)


def as_detections(value: Any) -> sv.Detections:
    """Return ``value`` if it is ``supervision.Detections``.

    Raises:
        InputError: It is something else.
    """
    import supervision as sv

    if not isinstance(value, sv.Detections):
        got = f"{type(value).__module__}.{type(value).__name__}"
        raise InputError("these are no detections", expected="supervision.Detections", got=got)
    return value


def as_picture(request: Mapping[str, Any], key: str = "image") -> NDArray[np.uint8]:
    """Return the picture in a key.

    Raises:
        InputError: There is none.
    """
    image = request.get(key)
    shape: tuple[int, ...] = getattr(image, "shape", ())
    is_colour = len(shape) == 3 and shape[2] == 3 and all(shape)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and is_colour:
        return image
    got = f"{image.dtype} {list(shape)}" if isinstance(image, np.ndarray) else type(image).__name__
    raise InputError("this is no image", key=key, expected="uint8 [H, W, 3]", got=got)
