"""`YoloDetections`: the output of a detector of the YOLO family as detections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from headrace.errors import InputError
from headrace_vision.models._box_options import Score, SizedBoxes
from headrace_vision.models._each import Each, ReadsSize, need

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["YoloDetections"]


class YoloDetections(Each):
    """Turn the output of a YOLO network into detections in pixels of the source image.

    The best class of each box counts. Boxes below ``score_threshold`` are dropped, then the lesser ones of those
    that overlap (not for ``end2end``, where the network did that). The rest is mapped back through the letterbox and
    clipped to the image. Masks lie inside of their boxes.

    Reads:
        data: The output of one image, numbers ``[R, C]`` or ``[1, R, C]``. Of a network for masks, a mapping or list of it
            and the prototypes ``[M, h, w]`` or ``[1, M, h, w]``, whose M coefficients follow the classes of each box.
        letterbox: How the image was fitted into the input, as LetterBoxMat writes it.
        image: Without a letterbox, the source image, whose size says with ``input_size`` how it was resized.

    Writes:
        result: ``supervision.Detections``, by descending score, with ``data["class_name"]``, with prototypes ``mask``
            (``supervision.CompactMask``), and with ``keypoints`` ``data["keypoints"]``: ``float32 [N, K, 2 or 3]``. With
            ``oriented`` ``data["xyxyxyxy"]`` has the corners, ``float32 [N, 4, 2]``, and the boxes are those around them.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or something else, no layout or several fit, a score is above 1, or it is unknown how
            the image was resized.

    Source:
        The exports of YOLOv5, YOLOv8 (and its successors of the same layout), YOLOv10 and YOLOX, as their documentation
        describes them. The suppression is OpenCV's, the masks are those of YOLACT.
    """

    class Options(SizedBoxes):
        """The layout of the output, and which boxes are kept.

        Attributes:
            layout: How the output is laid out (v5, v8, end2end, yolox); auto tells by its shape, and refuses when two
                fit.
            iou_threshold: Overlap above which the lesser box is dropped (intersection over union, 0 to 1).
            class_agnostic: Boxes of different classes drop each other too (true or false).
            keypoints: How many keypoints follow the classes of each box, and of how many numbers: 2 (x, y) or 3 (and a
                score). [17, 3] for people.
            oriented: An angle in radians follows the classes of each box (true or false).
        """

        layout: Literal["auto", "v5", "v8", "end2end", "yolox"] = "auto"
        score_threshold: Score = 0.25
        iou_threshold: float = Field(0.5, ge=0, le=1)
        class_agnostic: bool = False
        keypoints: tuple[Annotated[int, Field(ge=1)], Literal[2, 3]] | None = None

        oriented: bool = False

        positional = ("layout", "score_threshold")

    reads = ReadsSize

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Read the labels, and return what works on one request."""
        import numpy as np

        from headrace_vision.models.boxes import QUADS, finite, fit_of, labels_of, make_detections
        from headrace_vision.models.layouts import guess_layout, read_layout
        from headrace_vision.models.masks import combined, image_masks

        labels = labels_of(options.labels)

        def work(request: Request) -> None:
            data, masks = _parts(need(request, "data", _EXPECTED))
            output = finite(data, "outputs", 2, is_narrow=True)
            size = options.input_size
            letterbox = request.get("letterbox")
            if letterbox is not None:
                size = (int(letterbox.canvas_h), int(letterbox.canvas_w))
            prototypes = None if masks is None else finite(masks, "prototypes", 3, is_narrow=True)
            extra = _extra(options.keypoints, prototypes, oriented=options.oriented)
            layout = options.layout
            if layout == "auto":
                shape = (output.shape[0], output.shape[1])
                layout = guess_layout(shape, size, len(labels) or None, extra)
            boxes, scores, classes, rest = read_layout(
                output, layout, size, options.score_threshold, extra
            )
            rows, quads = _choice(options, layout, boxes, scores, classes, rest)
            fit = fit_of(request, options.input_size)
            places = fit.to_image(boxes[rows])
            if quads is not None:
                quads = fit.to_image(quads[rows], clip=False)
                places = _upright(quads, fit.image)
            detections = make_detections(places, scores[rows], classes[rows], labels)
            rest = rest[rows]
            if quads is not None:
                detections.data[QUADS] = quads
            elif options.keypoints is not None:
                points = rest.reshape(-1, *options.keypoints).astype(np.float32)
                points[..., :2] = fit.to_image(points[..., :2])
                detections.data["keypoints"] = points
            elif prototypes is not None:
                part_of = combined(rest, prototypes)
                detections.mask = image_masks(detections.xyxy, prototypes.shape[1:], part_of, fit)
            request["result"] = detections

        return work


def _choice(
    options: Any, layout: str, boxes: Any, scores: Any, classes: Any, rest: Any
) -> tuple[Any, Any]:
    """Return the indices of the boxes that are kept, by descending score, and the corners of all if they are oriented."""
    import numpy as np
    import supervision as sv

    from headrace_vision.models.boxes import best_boxes, best_rows, quads_of

    quads = None
    order = np.argsort(-scores, kind="stable")
    if options.oriented:
        upright: Any = sv.xcycwh_to_xyxy(boxes) if layout == "end2end" else boxes
        quads = quads_of(upright, rest[:, 0])
    if layout == "end2end":
        rows = order
    elif quads is not None:
        kinds = classes[order] * (not options.class_agnostic)
        overlaps_of = sv.oriented_box_iou_batch
        rows = order[best_rows(quads[order], kinds, options.iou_threshold, overlaps_of)]
    else:
        limit, is_agnostic = options.iou_threshold, options.class_agnostic
        rows = best_boxes(boxes, scores, classes, iou_threshold=limit, class_agnostic=is_agnostic)
    return rows[: options.max_boxes], quads


def _upright(quads: Any, size_hw: tuple[int, int]) -> Any:
    """Return the boxes around quads, clipped to the image."""
    import supervision as sv

    return sv.clip_boxes(sv.xyxyxyxy_to_xyxy(quads), size_hw[::-1])


_EXPECTED = "the output of a network [R, C], or a mapping or list of it and prototypes [M, h, w]"


def _extra(keypoints: tuple[int, int] | None, prototypes: Any, *, oriented: bool) -> int:
    """Return how many numbers of each box follow its classes."""
    if (keypoints is not None) + (prototypes is not None) + oriented > 1:
        expected = "prototypes, keypoints or an angle"
        raise InputError("a box has one of these", expected=expected, got="several")
    if oriented:
        return 1
    if keypoints is not None:
        return keypoints[0] * keypoints[1]
    return 0 if prototypes is None else len(prototypes)


def _parts(data: Any) -> tuple[Any, Any]:
    """Return the output, and the prototypes or None."""
    parts = list(data.values()) if isinstance(data, Mapping) else data
    if not isinstance(parts, (list, tuple)) or getattr(parts[0] if parts else 0, "ndim", 0) < 2:
        return data, None
    axes = [getattr(part, "ndim", 0) for part in parts]
    if len(parts) > 2 or len(set(axes)) < len(parts):
        got = f"arrays with {' and '.join(map(str, axes))} axes"
        raise InputError("these are no outputs", expected=_EXPECTED, got=got)
    output, *prototypes = sorted(parts, key=lambda part: part.ndim)
    return output, prototypes[0] if prototypes else None
