"""The cases of ``headrace conformance headrace-vision``: an expression and requests per backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_testing import BackendConformance
from headrace_vision.boxes import make_detections

if TYPE_CHECKING:
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
    found = make_detections(boxes, np.array([score, score / 2]), np.array([0, 1]), ["a", "b"])
    if track is not None:
        found.tracker_id = np.full(2, track)
    return found


class YoloDetectionsConformance(BackendConformance):
    """Outputs of two classes on an image that was resized."""

    expression = "YoloDetections(v8)"
    options: Mapping[str, Any] = {"input_size": [64, 64]}

    def make_item(self, k: int) -> Request:
        """Return an output and its image."""
        random = np.random.default_rng(k)
        output = random.uniform(0, 1, (6, 84)).astype(np.float32)
        output[:4] *= 60
        return {"data": output, "image": _image(k)}


class DetrDetectionsConformance(BackendConformance):
    """Boxes and logits of ten queries."""

    expression = "DetrDetections"

    def make_item(self, k: int) -> Request:
        """Return boxes and logits by name, and the image."""
        random = np.random.default_rng(k)
        outputs = {
            "boxes": random.uniform(0.2, 0.6, (10, 4)).astype(np.float32),
            "logits": random.normal(0, 3, (10, 3)).astype(np.float32),
        }
        return {"data": outputs, "image": _image(k)}


class BoxDetectionsConformance(BackendConformance):
    """Boxes, scores and classes by name."""

    expression = "BoxDetections"

    def make_item(self, k: int) -> Request:
        """Return three arrays, and the image."""
        random = np.random.default_rng(k)
        corner = random.uniform(0, 20, (6, 2))
        outputs = {
            "boxes": np.hstack([corner, corner + 10]).astype(np.float32),
            "scores": random.uniform(0, 1, 6).astype(np.float32),
            "labels": random.integers(0, 3, 6),
        }
        return {"data": outputs, "image": _image(k)}


class ClassDetectionsConformance(BackendConformance):
    """Logits of five classes."""

    expression = "ClassDetections(2)"

    def make_item(self, k: int) -> Request:
        """Return logits, and the image."""
        logits = np.random.default_rng(k).normal(0, 1, 5).astype(np.float32)
        return {"data": logits, "image": _image(k)}

    def expected(self, k: int) -> Any:
        """Return the two most probable classes, by the softmax, each on the whole image."""
        powers = np.exp(self.make_item(k)["data"])
        best = np.argsort(-powers)[:2]
        boxes = np.array([[0, 0, 60, 40 + k]] * 2, np.float32)
        return make_detections(boxes, (powers / powers.sum())[best], best, [*map(str, range(5))])


class CropsConformance(BackendConformance):
    """Detections and their image."""

    expression = "Crops"

    def make_item(self, k: int) -> Request:
        """Return detections, and the image."""
        return {"data": _detections(k), "image": _image(k)}

    def expected(self, k: int) -> Any:
        """Return rows and columns by their numbers."""
        return [_image(k)[2:12, 1 + k : 20 + k], _image(k)[6 + k : 30 + k, 5:25]]


class ClassesConformance(BackendConformance):
    """Detections, and the outputs of a classifier of three classes."""

    expression = "Classes"

    def make_item(self, k: int) -> Request:
        """Return detections, and an output for each."""
        outputs = np.random.default_rng(k).normal(0, 1, (2, 3)).astype(np.float32)
        return {"data": _detections(k), "kind": list(outputs)}


class KeysConformance(BackendConformance):
    """Detections, and a text with its confidence for each."""

    expression = "Keys"

    def make_item(self, k: int) -> Request:
        """Return detections, and a mapping for each."""
        plates = [{"text": f"A{k}", "confidence": 0.5}, {"text": "B", "confidence": 1 / (1 + k)}]
        return {"data": _detections(k), "value": plates}


class TilesConformance(BackendConformance):
    """Images of several tiles."""

    expression = "Tiles(32,32)"

    def make_item(self, k: int) -> Request:
        """Return an image."""
        return {"data": _image(k)}


class MergeTilesConformance(BackendConformance):
    """Detections of two tiles."""

    expression = "MergeTiles"

    def make_item(self, k: int) -> Request:
        """Return the same detections for both."""
        tiles = [[0, 0, 60, 40], [0, 30, 60, 70 + k]]
        return {"data": [_detections(k), _detections(k)], "tiles": tiles}


class FilterDetectionsConformance(BackendConformance):
    """Detections of two classes."""

    expression = "FilterDetections([a])"

    def make_item(self, k: int) -> Request:
        """Return detections."""
        return {"data": _detections(k)}

    def expected(self, k: int) -> Any:
        """Return the first one alone."""
        return _detections(k)[:1]


_ALONE = {
    "instances-agree": (
        "it refuses instance_num above 1, since each instance would see only some frames of a source"
    )
}


class TrackConformance(BackendConformance):
    """Detections whose scores are too low to begin a track: every answer is *not confirmed*."""

    expression = "Track"
    expected_failures: Mapping[str, str] = _ALONE

    def make_item(self, k: int) -> Request:
        """Return detections of a source without numbers of frames."""
        return {"data": _detections(k, score=0.3), "context": {"source": f"s{k}"}}


class CountLineConformance(BackendConformance):
    """Detections that cross nothing."""

    expression = "CountLine([0,39,60,39])"
    expected_failures: Mapping[str, str] = _ALONE

    def make_item(self, k: int) -> Request:
        """Return detections whose tracks are not confirmed."""
        return {"data": _detections(k, track=-1), "context": {"source": f"s{k}"}}


class CountZoneConformance(BackendConformance):
    """Detections outside of the zone."""

    expression = "CountZone"
    expected_failures: Mapping[str, str] = _ALONE
    options: Mapping[str, Any] = {"zone": [[50, 0], [59, 0], [59, 5]]}

    def make_item(self, k: int) -> Request:
        """Return detections with tracks."""
        return {"data": _detections(k, track=1), "context": {"source": f"s{k}"}}


class DrawDetectionsConformance(BackendConformance):
    """Detections and their image."""

    expression = "DrawDetections([box,label,trace])"
    expected_failures: Mapping[str, str] = _ALONE

    def make_item(self, k: int) -> Request:
        """Return detections with tracks, their image, and a line and a zone."""
        return {
            "data": _detections(k, track=1),
            "image": _image(k),
            "context": {"source": f"s{k}"},
            "lines": {"door": [0, 0, 20, 20]},
            "zones": {"yard": [[0, 0], [20, 0], [20, 20]]},
            "counts": {"door": {"in": k, "out": 0}},
        }
