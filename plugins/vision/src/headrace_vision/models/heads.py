"""`BoxDetections`, `ClassDetections` and `FilterDetections`: boxes by name, classes, and a choice of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

import headrace
from headrace.errors import InputError
from headrace_vision.models._box_options import Activation, Labelled, Score, SizedBoxes
from headrace_vision.models._each import Each, ReadsSize, need

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["BoxDetections", "ClassDetections", "FilterDetections"]


class BoxDetections(Each):
    """Turn boxes, scores and classes that a network gives by name into detections.

    Reads:
        data: A mapping with the arrays that ``boxes`` (``[N, 4]``), ``scores`` (``[N]``) and ``classes`` (``[N]``) name,
            each with a leading axis of 1, if you like.
        letterbox: How the image was fitted into the input. Pixels of the source image need neither this nor ``image``.
        image: Without a letterbox, the source image, whose size says with ``input_size`` how it was resized.

    Writes:
        result: ``supervision.Detections``, by descending score, clipped to the source image where its size is known, with
            ``data["class_name"]``.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing, is no such mapping, a score is above 1, or ``unit`` needs the size of the source
            image, which is unknown.

    Source:
        own
    """

    class Options(SizedBoxes):
        """Which array is what, and in which unit the boxes are.

        Attributes:
            boxes: Name of the array of boxes.
            scores: Name of the array of scores.
            classes: Name of the array of classes.
            corners: What four numbers of a box are: corners; centre and size; first corner and size.
            unit: Pixels of the source image, pixels of the network's input, or parts of the input (0 to 1).
        """

        boxes: str = "boxes"
        scores: str = "scores"
        classes: str = "labels"
        corners: Literal["xyxy", "cxcywh", "xywh"] = "xyxy"
        unit: Literal["image", "input", "part"] = "image"
        score_threshold: Score = 0.25

        positional = ("boxes", "scores", "classes")

    reads = ReadsSize

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Read the labels, and return what works on one request."""
        import numpy as np
        import supervision as sv

        from headrace_vision.models.boxes import (
            finite,
            fit_of,
            image_size,
            known_image_size,
            labels_of,
            make_detections,
            ranked,
        )

        labels = labels_of(options.labels)
        ways: dict[str, Any] = {"cxcywh": sv.xcycwh_to_xyxy, "xywh": sv.xywh_to_xyxy}
        corners_of = ways.get(options.corners, np.array)
        names = (options.boxes, options.scores, options.classes)
        expected = f"a mapping with the arrays {', '.join(names)}"

        def arrays_of(data: Any) -> tuple[Any, Any, Any]:
            if not isinstance(data, Mapping):
                raise InputError("these are no arrays", expected=expected, got=type(data).__name__)
            for name in names:
                if name not in data:
                    known = ", ".join(map(str, data))
                    raise InputError(f"there is no array {name!r}", expected=expected, got=known)
            boxes = finite(data[names[0]], "boxes", 2)
            scores, classes = (finite(data[name], name, 1) for name in names[1:])
            if boxes.shape != (len(scores), 4) or len(classes) != len(scores):
                got = f"{list(boxes.shape)}, {len(scores)} and {len(classes)}"
                raise InputError("the arrays do not fit each other", expected=expected, got=got)
            return boxes, scores, classes.astype(np.int64)

        def work(request: Request) -> None:
            boxes, scores, classes = arrays_of(need(request, "data", expected))
            boxes = corners_of(boxes)
            order = ranked(scores, options.score_threshold, options.max_boxes)
            boxes = boxes[order]
            if options.unit == "image":
                known = known_image_size(request)
                mapped: Any = boxes if known is None else sv.clip_boxes(boxes, known[::-1])
            else:
                size = options.input_size
                if options.unit == "part":
                    box = request.get("letterbox")
                    size = image_size(request) if box is None else (box.canvas_h, box.canvas_w)
                    boxes = boxes * np.array([size[1], size[0]] * 2)
                mapped = fit_of(request, size).to_image(boxes)
            mapped = mapped.astype(np.float32)
            request["result"] = make_detections(mapped, scores[order], classes[order], labels)

        return work


class ClassDetections(Each):
    """Turn the logits of a classifier into detections: the whole image, once for each of the best classes.

    Reads:
        data: Numbers ``[C]`` or ``[1, C]``.
        letterbox: How the image was fitted into the input, which says the size of the source image.
        image: Without a letterbox, the source image, for its size.

    Writes:
        result: ``supervision.Detections``, by descending score, with ``data["class_name"]``.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or something else, a score is above 1, or the size of the source image is unknown.

    Source:
        own
    """

    class Options(Labelled):
        """How scores are made, and how many are kept.

        Attributes:
            top: How many of the best classes are kept.
            score_threshold: Classes of a lower score are dropped (0 to 1).
        """

        activation: Activation = "softmax"
        top: int = Field(default=1, ge=1)
        score_threshold: float = Field(0.0, ge=0, le=1)

        positional = ("top",)

    reads = ReadsSize

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Read the labels, and return what works on one request."""
        import numpy as np

        from headrace_vision.models.boxes import (
            class_scores,
            image_size,
            labels_of,
            make_detections,
            ranked,
        )

        labels = labels_of(options.labels)

        def work(request: Request) -> None:
            output = need(request, "data", "the logits of a classifier [C]")
            scores = class_scores(output, options.activation)
            order = ranked(scores, options.score_threshold, options.top)
            height, width = image_size(request)
            boxes = np.tile(np.array([0, 0, width, height], np.float32), (len(order), 1))
            request["result"] = make_detections(boxes, scores[order], order, labels)

        return work


class FilterDetections(Each):
    """Keep the detections that fulfil all conditions, in their order.

    Reads:
        data: ``supervision.Detections``.

    Writes:
        result: ``supervision.Detections``: those that are kept.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or something else, or lacks what a condition is about.

    Source:
        own
    """

    class Options(headrace.Options):
        """The conditions.

        Attributes:
            classes: Names or numbers of the classes that are kept; none keeps all.
            score_threshold: Lower scores are dropped (0 to 1).
            min_area: Smaller boxes are dropped (pixels of the source image).
            max_area: Larger boxes are dropped (pixels); none keeps all.
        """

        classes: list[str | int] | None = None
        score_threshold: float = Field(0.0, ge=0, le=1)
        min_area: float = Field(0.0, ge=0)
        max_area: float | None = Field(None, gt=0)

        positional = ("classes",)

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Return what works on one request."""
        import numpy as np

        from headrace_vision.models.boxes import as_detections

        def lacking(part: str) -> InputError:
            return InputError(f"the detections have no {part}", expected="detections with them")

        def work(request: Request) -> None:
            detections = as_detections(need(request, "data", "supervision.Detections"))
            keep = np.ones(len(detections), bool)
            if len(detections) and options.score_threshold > 0:
                if detections.confidence is None:
                    raise lacking("scores")
                keep &= detections.confidence >= options.score_threshold
            if len(detections) and options.classes is not None:
                if detections.class_id is None:
                    raise lacking("classes")
                names = detections.data.get("class_name", [None] * len(detections))
                allowed = options.classes
                pairs = zip(detections.class_id, names, strict=True)
                keep &= [int(c) in allowed or str(name) in allowed for c, name in pairs]
            keep &= detections.box_area >= options.min_area
            if options.max_area is not None:
                keep &= detections.box_area <= options.max_area
            request["result"] = detections[keep]

        return work
