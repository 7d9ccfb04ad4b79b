"""`YoloDetections`: the output of a detector of the YOLO family as detections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from headrace_vision._box_options import SizedBoxes
from headrace_vision._each import Each, ReadsSize, need

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["YoloDetections"]


class YoloDetections(Each):
    """Turn the output of a YOLO network into detections in pixels of the source image.

    The best class of each box counts. Boxes below ``score_threshold`` are dropped, then the lesser ones of those
    that overlap (not for ``end2end``, where the network did that). The rest is mapped back through the letterbox and
    clipped to the image.

    Reads:
        data: The output of one image, numbers ``[R, C]`` or ``[1, R, C]``.
        letterbox: How the image was fitted into the input, as LetterBoxMat writes it.
        image: Without a letterbox, the source image, whose size says with ``input_size`` how it was resized.

    Writes:
        result: ``supervision.Detections``, by descending score, with ``data["class_name"]``.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or something else, no layout or several fit, a score is above 1, or it is unknown how
            the image was resized.

    Source:
        The exports of YOLOv5, YOLOv8 (and its successors of the same layout), YOLOv10 and YOLOX, as their documentation
        describes them. The suppression is OpenCV's.
    """

    class Options(SizedBoxes):
        """The layout of the output, and which boxes are kept."""

        layout: Literal["auto", "v5", "v8", "end2end", "yolox"] = Field(
            default="auto",
            description="How the output is laid out (v5, v8, end2end, yolox); auto tells by its shape, and refuses "
            "when two fit.",
        )
        score_threshold: float = Field(
            default=0.25, ge=0, le=1, description="Boxes of a lower score are dropped (0 to 1)."
        )
        iou_threshold: float = Field(
            default=0.5,
            ge=0,
            le=1,
            description="Overlap above which the lesser box is dropped (intersection over union, 0 to 1).",
        )
        class_agnostic: bool = Field(
            default=False,
            description="Boxes of different classes drop each other too (true or false).",
        )

        positional = ("layout", "score_threshold")

    reads = ReadsSize

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Read the labels, and return what works on one request."""
        import numpy as np

        from headrace_vision.boxes import best_boxes, finite, labels_of, make_detections, to_image
        from headrace_vision.layouts import guess_layout, read_layout

        labels = labels_of(options.labels)

        def work(request: Request) -> None:
            data = need(request, "data", "the output of a network [R, C]")
            output = finite(data, "outputs", 2, is_narrow=True)
            size = options.input_size
            letterbox = request.get("letterbox")
            if letterbox is not None:
                size = (int(letterbox.canvas_h), int(letterbox.canvas_w))
            layout = options.layout
            if layout == "auto":
                shape = (output.shape[0], output.shape[1])
                layout = guess_layout(shape, size, len(labels) or None)
            boxes, scores, classes = read_layout(output, layout, size, options.score_threshold)
            if layout == "end2end":
                kept = np.argsort(-scores, kind="stable")
            else:
                kept = best_boxes(
                    boxes,
                    scores,
                    classes,
                    iou_threshold=options.iou_threshold,
                    class_agnostic=options.class_agnostic,
                )
            kept = kept[: options.max_boxes]
            mapped = to_image(boxes[kept], request, options.input_size)
            request["result"] = make_detections(mapped, scores[kept], classes[kept], labels)

        return work
