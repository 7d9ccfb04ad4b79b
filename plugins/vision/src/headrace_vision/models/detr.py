"""`DetrDetections`: the outputs of a detector of the DETR family as detections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import InputError
from headrace_vision.models._box_options import KeptBoxes, Score
from headrace_vision.models._each import Each, ReadsSize, need

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["DetrDetections"]

_EXPECTED = "a mapping or list of boxes [Q, 4], logits [Q, C], and masks [Q, h, w] if there are any, or one array [Q, 4 + C]"


class DetrDetections(Each):
    """Turn the outputs of a DETR network into detections in pixels of the source image.

    Boxes are centre and size, in parts of the input (0 to 1). ``activation`` says how scores come from the logits:
    ``sigmoid`` takes the best pairs of query and class (RF-DETR, RT-DETR, D-FINE), ``softmax`` the best class of each
    query, the last class being *no object* (DETR), ``identity`` the best class of each query of what are scores already,
    ``best`` a score and the number of its class (Ultralytics' RT-DETR since 8.4).

    Reads:
        data: A mapping or list of two arrays, boxes ``[Q, 4]`` and logits ``[Q, C]`` (with a leading axis of 1, if you
            like), or one array ``[Q, 4 + C]``. With four classes, a mapping whose names contain ``box`` or ``dets`` for
            the boxes. A third array may have the logits of masks, ``[Q, h, w]``.
        letterbox: How the image was fitted into the input, if it was.
        image: Without a letterbox, the source image, for its size.

    Writes:
        result: ``supervision.Detections``, by descending score, with ``data["class_name"]``, and with masks ``mask``
            (``supervision.CompactMask``), which may reach beyond their boxes.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or something else, a score is above 1, or the size of the source image is unknown.

    Source:
        The post-processing described by DETR (softmax) and by Deformable DETR (sigmoid, best pairs); masks as RF-DETR has them.
    """

    class Options(KeptBoxes):
        """How scores are made, and which boxes are kept.

        Attributes:
            activation: How scores come from the logits: sigmoid, softmax (the last class is no object), identity, where
                they are scores already, or best, where they are the best score and its class.
        """

        activation: Literal["sigmoid", "softmax", "identity", "best"] = "sigmoid"
        score_threshold: Score = 0.5

        positional = ("activation", "score_threshold")

    reads = ReadsSize

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Read the labels, and return what works on one request."""
        import numpy as np
        import supervision as sv

        from headrace_vision.models.boxes import (
            fit_of,
            image_size,
            labels_of,
            make_detections,
            ranked,
        )
        from headrace_vision.models.masks import image_masks

        labels = labels_of(options.labels)

        def work(request: Request) -> None:
            places, logits, masks = _parts(need(request, "data", _EXPECTED))
            scores, queries, classes = _scores(logits, options.activation)
            order = ranked(scores, options.score_threshold, options.max_boxes)
            fit = fit_of(request, image_size(request))
            scale = np.array([*fit.canvas[::-1]] * 2, np.float64)
            best = queries[order]
            boxes = fit.to_image(sv.xcycwh_to_xyxy(places[best]) * scale)
            detections = make_detections(boxes, scores[order], classes[order], labels)
            if masks is not None:
                whole = np.tile([0, 0, *fit.image[::-1]], (len(best), 1))
                maps = masks[best]
                detections.mask = image_masks(whole, maps.shape[1:], lambda *at: maps[at], fit)
            request["result"] = detections

        return work


def _parts(data: Any) -> tuple[Any, Any, Any]:
    """Return boxes ``[Q, 4]``, logits ``[Q, C]``, and masks ``[Q, h, w]`` or None."""
    from headrace_vision.models.boxes import finite

    if not isinstance(data, (Mapping, list, tuple)):
        rows = finite(data, "outputs", 2)
        if rows.shape[1] < 5:
            raise InputError("these are no outputs", expected=_EXPECTED, got=str(list(rows.shape)))
        return rows[:, :4], rows[:, 4:], None
    if len(data) not in (2, 3) or (isinstance(data, Mapping) and "keypoints" in data):
        got = ", ".join(map(str, data)) if isinstance(data, Mapping) else f"{len(data)} parts"
        raise InputError("these are no outputs", expected=_EXPECTED, got=got)
    parts = list(data.items()) if isinstance(data, Mapping) else [("", array) for array in data]
    parts.sort(key=lambda part: getattr(part[1], "ndim", 0))
    masks = None if len(parts) == 2 else finite(parts.pop()[1], "masks", 3, is_narrow=True)
    arrays = [(str(name).lower(), finite(value, "outputs", 2)) for name, value in parts]
    boxes = [k for k, (_, array) in enumerate(arrays) if array.shape[1] == 4]
    if len(boxes) == 2:
        boxes = [k for k, (name, _) in enumerate(arrays) if "box" in name or "dets" in name]
    if len(boxes) != 1 or len(arrays[0][1]) != len(arrays[1][1]):
        got = " and ".join(str(list(array.shape)) for _, array in arrays)
        raise InputError("it is unclear which array has the boxes", expected=_EXPECTED, got=got)
    if masks is not None and len(masks) != len(arrays[0][1]):
        got = f"{len(masks)} masks for {len(arrays[0][1])} boxes"
        raise InputError("the arrays do not fit each other", expected=_EXPECTED, got=got)
    return arrays[boxes[0]][1], arrays[1 - boxes[0]][1], masks


def _scores(logits: Any, activation: str) -> tuple[Any, Any, Any]:
    """Return scores, queries and classes, each ``[N]``."""
    import numpy as np

    count, classes = logits.shape
    if activation == "sigmoid":
        scores = 1 / (1 + np.exp(-np.clip(logits, -60, 60)))
        pairs = np.arange(count * classes)
        return scores.reshape(-1), pairs // max(classes, 1), pairs % max(classes, 1)
    if activation == "best":
        if classes != 2:
            got = f"[Q, {classes}]"
            raise InputError("these are no scores and classes", expected="[Q, 2]", got=got)
        return logits[:, 0], np.arange(count), logits[:, 1].astype(np.int64)
    if activation == "softmax":
        if classes < 2:
            raise InputError("one class is none", expected="logits [Q, C], C at least 2")
        shifted = np.exp(logits - logits.max(1, keepdims=True)) if count else logits
        logits = (shifted / shifted.sum(1, keepdims=True))[:, :-1] if count else logits[:, :-1]
    best = logits.argmax(1) if count else np.empty(0, np.int64)
    return np.take_along_axis(logits, best[:, None], 1)[:, 0], np.arange(count), best
