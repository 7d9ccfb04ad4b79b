"""The cases of ``headrace conformance headrace-vision``: an expression and requests per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_testing import BackendConformance
from headrace_vision.models.boxes import make_detections

if TYPE_CHECKING:
    from collections.abc import Callable

    import supervision as sv

    from headrace.keys import Request

__all__ = [
    "BoxDetectionsConformance",
    "ClassDetectionsConformance",
    "ClassesConformance",
    "CountLineConformance",
    "CountZoneConformance",
    "CropsConformance",
    "DetrDetectionsConformance",
    "DrawDetectionsConformance",
    "FilterDetectionsConformance",
    "KeysConformance",
    "MergeTilesConformance",
    "TilesConformance",
    "TrackConformance",
    "YoloDetectionsConformance",
]


def _image(k: int) -> Any:
    return np.random.default_rng(k).integers(0, 256, (40 + k, 60, 3), np.uint8)


def _detections(k: int, score: float = 0.9, track: int | None = None) -> sv.Detections:
    boxes = np.array([[1 + k, 2, 20 + k, 12], [5, 6 + k, 25, 30 + k]], np.float32)
    detections = make_detections(boxes, np.array([score, score / 2]), np.array([0, 1]), ["a", "b"])
    if track is not None:
        detections.tracker_id = np.full(2, track)
    return detections


def _cases(
    expression: str, item: Callable[[int], Request], **more: Any
) -> type[BackendConformance]:
    """Return the conformance class of a backend, whose name begins its expression.

    Args:
        expression: It.
        item: Makes the request of a number.
        more: Other attributes of the class. ``expected`` is a function of the number.
    """
    members: dict[str, Any] = {"expression": expression, "make_item": lambda _, k: item(k), **more}
    if (expected := more.get("expected")) is not None:
        members["expected"] = lambda _, k: expected(k)
    name = f"{expression.partition('(')[0]}Conformance"
    return type(name, (BackendConformance,), members | {"__module__": __name__})


_ALONE = {
    "instances-agree": (
        "it refuses instance_num above 1, since each instance would see only some frames of a source"
    )
}


def _yolo(k: int) -> Request:
    """Return an output of two classes, of an image that was resized."""
    output = np.random.default_rng(k).uniform(0, 1, (6, 84)).astype(np.float32)
    output[:4] *= 60
    return {"data": output, "image": _image(k)}


def _detr(k: int) -> Request:
    random = np.random.default_rng(k)
    boxes = random.uniform(0.2, 0.6, (10, 4)).astype(np.float32)
    logits = random.normal(0, 3, (10, 3)).astype(np.float32)
    return {"data": {"boxes": boxes, "logits": logits}, "image": _image(k)}


def _named_boxes(k: int) -> Request:
    random = np.random.default_rng(k)
    corner = random.uniform(0, 20, (6, 2))
    outputs = {
        "boxes": np.hstack([corner, corner + 10]).astype(np.float32),
        "scores": random.uniform(0, 1, 6).astype(np.float32),
        "labels": random.integers(0, 3, 6),
    }
    return {"data": outputs, "image": _image(k)}


def _logits(k: int) -> Request:
    logits = np.random.default_rng(k).normal(0, 1, 5).astype(np.float32)
    return {"data": logits, "image": _image(k)}


def _best_two(k: int) -> Any:
    """Return the two most probable classes, by the softmax, each on the whole image."""
    powers = np.exp(_logits(k)["data"])
    best = np.argsort(-powers)[:2]
    boxes = np.array([[0, 0, 60, 40 + k]] * 2, np.float32)
    return make_detections(boxes, (powers / powers.sum())[best], best, [*map(str, range(5))])


def _classified(k: int) -> Request:
    outputs = np.random.default_rng(k).normal(0, 1, (2, 3)).astype(np.float32)
    return {"data": _detections(k), "kind": list(outputs)}


def _plates(k: int) -> Request:
    plates = [{"text": f"A{k}", "confidence": 0.5}, {"text": "B", "confidence": 1 / (1 + k)}]
    return {"data": _detections(k), "value": plates}


def _of_source(k: int, **more: Any) -> Request:
    return {"data": _detections(k, **more), "context": {"source": f"s{k}"}}


def _counted(k: int) -> Request:
    marks = {"lines": {"door": [0, 0, 20, 20]}, "zones": {"yard": [[0, 0], [20, 0], [20, 20]]}}
    counts = {"door": {"in": k, "out": 0}}
    return {**_of_source(k, track=1), "image": _image(k), **marks, "counts": counts}


YoloDetectionsConformance = _cases("YoloDetections(v8)", _yolo, options={"input_size": [64, 64]})
DetrDetectionsConformance = _cases("DetrDetections", _detr)
BoxDetectionsConformance = _cases("BoxDetections", _named_boxes)
ClassDetectionsConformance = _cases("ClassDetections(2)", _logits, expected=_best_two)
CropsConformance = _cases(
    "Crops",
    lambda k: {"data": _detections(k), "image": _image(k)},
    expected=lambda k: [_image(k)[2:12, 1 + k : 20 + k], _image(k)[6 + k : 30 + k, 5:25]],
)
ClassesConformance = _cases("Classes", _classified)
KeysConformance = _cases("Keys", _plates)
TilesConformance = _cases("Tiles(32,32)", lambda k: {"data": _image(k)})
MergeTilesConformance = _cases(
    "MergeTiles",
    lambda k: {"data": [_detections(k)] * 2, "tiles": [[0, 0, 60, 40], [0, 30, 60, 70 + k]]},
)
FilterDetectionsConformance = _cases(
    "FilterDetections([a])",
    lambda k: {"data": _detections(k)},
    expected=lambda k: _detections(k)[:1],
)
# Scores too low to begin a track, tracks that are not confirmed, and boxes outside of the zone.
TrackConformance = _cases("Track", lambda k: _of_source(k, score=0.3), expected_failures=_ALONE)
CountLineConformance = _cases(
    "CountLine([0,39,60,39])", lambda k: _of_source(k, track=-1), expected_failures=_ALONE
)
CountZoneConformance = _cases(
    "CountZone",
    lambda k: _of_source(k, track=1),
    expected_failures=_ALONE,
    options={"zone": [[50, 0], [59, 0], [59, 5]]},
)
DrawDetectionsConformance = _cases(
    "DrawDetections([box,label,trace])", _counted, expected_failures=_ALONE
)
