"""`DrawDetections`: what was found, on the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

import headrace
from headrace_vision.models._each import ReadsSource, need, no_tracks
from headrace_vision.tracking._sources import Alone, PerSource

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["DRAWN", "Annotators", "DrawDetections", "draw_counts"]

Name = Literal[
    "box", "label", "mask", "polygon", "keypoints", "trace", "heatmap", "blur", "pixelate"
]
DRAWN: tuple[Name, ...] = ("mask", "keypoints", "box", "label")
"""What is drawn where nobody says what, in this order."""

_KEEPING_STATE = {"trace", "heatmap"}
_COLOUR = (255, 255, 255)
_THICKNESS = 2
"""Width of the lines, in pixels."""


class Annotators:
    """Draws by annotators of supervision. Some draw what was in earlier frames too, so one is for one source.

    Args:
        names: Which, in the order in which they draw.
    """

    def __init__(self, names: Sequence[str] = DRAWN) -> None:
        import supervision as sv

        annotators: dict[str, Callable[[], Any]] = {
            "box": lambda: sv.BoxAnnotator(thickness=_THICKNESS),
            "label": lambda: sv.LabelAnnotator(text_padding=3, text_scale=0.4),
            "mask": sv.MaskAnnotator,
            "polygon": lambda: sv.PolygonAnnotator(thickness=_THICKNESS),
            "keypoints": lambda: sv.VertexAnnotator(sv.Color(255, 255, 0), _THICKNESS + 1),
            "trace": lambda: sv.TraceAnnotator(thickness=_THICKNESS),
            "heatmap": sv.HeatMapAnnotator,
            "blur": sv.BlurAnnotator,
            "pixelate": sv.PixelateAnnotator,
        }
        self._made = {name: annotators[name]() for name in names}
        self._oriented = sv.OrientedBoxAnnotator(thickness=_THICKNESS)

    def draw(self, image: NDArray[np.uint8], detections: Any) -> NDArray[np.uint8]:
        """Return a copy of an image with ``supervision.Detections`` on it.

        Args:
            image: ``uint8 [H, W, 3]`` in the order blue, green, red.
            detections: Colours follow the tracks, else the classes.

        Raises:
            InputError: ``trace`` is drawn, and the detections have no tracks.
        """
        drawn: NDArray[np.uint8] = self._on(image.copy(), detections, self._made)
        return drawn

    def skip(self, detections: Any) -> None:
        """Note a frame that is not drawn, for those that draw what was in earlier frames."""
        import numpy as np

        self._on(np.zeros((1, 1, 3), np.uint8), detections, _KEEPING_STATE & set(self._made))

    def _on(self, scene: Any, detections: Any, names: Any) -> Any:
        import supervision as sv

        lookup = sv.ColorLookup.INDEX
        if detections.tracker_id is not None and (detections.tracker_id >= 0).all():
            lookup = sv.ColorLookup.TRACK
        elif detections.class_id is not None:
            lookup = sv.ColorLookup.CLASS
        for name in names:
            is_oriented = name == "box" and "xyxyxyxy" in detections.data
            annotator: Any = self._oriented if is_oriented else self._made[name]
            if name == "keypoints":
                annotator.annotate(scene, _keypoints_of(detections))
                continue
            if name == "trace" and len(detections) and detections.tracker_id is None:
                raise no_tracks("trace needs the tracks of the detections")
            if hasattr(annotator, "color_lookup"):
                annotator.color_lookup = lookup
            texts = {"labels": _texts(detections)} if name == "label" else {}
            annotator.annotate(scene, detections, **texts)
        return scene


def _keypoints_of(detections: Any) -> Any:
    """Return the points ``x, y`` or ``x, y, score`` of the detections; those with a score of 0 are not there."""
    import numpy as np
    import supervision as sv

    points = np.asarray(detections.data.get("keypoints", np.empty((0, 0, 3))), np.float32)
    visible = points[..., 2] > 0 if points.shape[-1] > 2 else None
    return sv.KeyPoints(xy=points[..., :2].round(), visible=visible)


def _texts(detections: Any) -> list[str]:
    texts = []
    for row in range(len(detections)):
        parts = []
        if detections.tracker_id is not None and detections.tracker_id[row] >= 0:
            parts.append(f"#{detections.tracker_id[row]}")
        if "class_name" in detections.data:
            parts.append(str(detections.data["class_name"][row]))
        if detections.confidence is not None:
            parts.append(f"{detections.confidence[row]:.2f}")
        texts.append(" ".join(parts) or str(row))
    return texts


def draw_counts(image: NDArray[np.uint8], request: Mapping[str, Any]) -> None:
    """Draw the lines and zones of a request on an image, with their counts, as CountLine and CountZone wrote them."""
    import cv2
    import numpy as np
    import supervision as sv

    white = sv.Color(*_COLOUR)
    for key in ("lines", "zones"):
        for name, corners in request.get(key, {}).items():
            points = np.rint(np.reshape(corners, (-1, 2))).astype(np.int32)
            cv2.polylines(image, [points], key == "zones", _COLOUR, 2, cv2.LINE_AA)
            counts = request.get("counts", {}).get(name, {})
            text = " ".join([name, *(f"{kind} {count}" for kind, count in counts.items())])
            x, y = points.mean(0).tolist()
            sv.draw_text(
                image, text, sv.Point(x, y), text_scale=0.4, text_padding=4, background_color=white
            )


class _Reads(ReadsSource, total=False):
    image: Any
    lines: Any
    zones: Any
    counts: Any


class DrawDetections(Alone):
    """Draw the detections on the image, and the lines and zones that are counted.

    Reads:
        data: ``supervision.Detections``. Keypoints are ``data["keypoints"]``.
        image: ``uint8 [H, W, 3]``, blue, green, red; it is not changed.
        context: As Track reads it, for ``trace`` and ``heatmap``.
        lines: As CountLine writes it, optional.
        zones: As CountZone writes it, optional.
        counts: As they write it, optional.

    Writes:
        result: A new ``uint8 [H, W, 3]``.
        detections: The detections.

    Batch:
        1 or more. Items are independent, a bad one fails alone. With ``trace`` or ``heatmap`` they go one after the other.

    Raises:
        InputError: ``data`` or ``image`` is missing or something else, or the detections have no tracks for ``trace``.

    Source:
        ``supervision.BoxAnnotator`` and the other annotators.
    """

    class Options(headrace.Options):
        """What is drawn.

        Attributes:
            annotators: What is drawn, in this order: box, label, mask, polygon, keypoints, blur, pixelate, and of
                earlier frames too: trace, heatmap.
        """

        annotators: list[Name] = Field(list(DRAWN))

        positional = ("annotators",)

    rerun = False
    reads = _Reads
    writes = ("result", "detections")

    @classmethod
    def most_instances(cls, options: Any) -> int | None:
        """Return 1 where it draws what was in earlier frames too."""
        return 1 if _KEEPING_STATE & set(options.annotators) else None

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Return what works on one request."""
        from headrace_vision.models.boxes import as_detections, as_picture

        def make() -> Annotators:
            return Annotators(options.annotators)

        always, states = make(), PerSource(make)
        keeps_state = self.most_instances(options) == 1

        def work(request: Request) -> None:
            detections = as_detections(need(request, "data", "supervision.Detections"))
            image = as_picture(request)
            annotators = states.next(request)[0] if keeps_state else always
            drawn = annotators.draw(image, detections)
            draw_counts(drawn, request)
            request["detections"] = detections
            request["result"] = drawn

        return work
