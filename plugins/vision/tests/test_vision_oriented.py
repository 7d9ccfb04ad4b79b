"""Oriented boxes: what a network says of them, beside polygons of shapely, and their way through words and sinks."""

from __future__ import annotations

import json

import cv2
import numpy as np
import onnx
import pytest
import supervision as sv
from onnx import TensorProto, helper

import headrace
from headrace.errors import InputError
from headrace_vision import SaveJSONL, VideoRunner, detect, from_records
from headrace_vision.sinks.spool import SpoolFolder, read_frame

affinity = pytest.importorskip("shapely.affinity")
geometry = pytest.importorskip("shapely.geometry")

SIZE = 64
IMAGE = np.zeros((2 * SIZE, 2 * SIZE, 3), np.uint8)  # the input of the network is half as large


def polygon(x, y, width, height, angle):
    """A box that is turned, as y goes down clockwise, in pixels of the picture."""
    upright = geometry.box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    turned = affinity.rotate(upright, angle, "center", use_radians=True)
    return affinity.scale(turned, 2, 2, origin=(0, 0))


def overlap(one, other):
    return one.intersection(other).area / one.union(other).area


def crowd(seed, count=40, classes=3):
    """Boxes ``x, y, width, height, angle`` that overlap, and their scores by class."""
    random = np.random.default_rng(seed)
    boxes = np.stack(
        [
            *random.uniform(16, 48, (2, count)),
            *random.uniform(4, 24, (2, count)),
            random.uniform(-0.7, 2.3, count),
        ],
        1,
    )
    return boxes, random.permutation(count * classes).reshape(count, classes) / (count * classes)


def output_of(boxes, scores):
    """As YOLOv8's export for oriented boxes has it, with an empty cell for each other one of the grid."""
    found = np.zeros((5 + scores.shape[1], 84))
    found[:4, : len(boxes)], found[-1, : len(boxes)] = boxes[:, :4].T, boxes[:, 4]
    found[4:-1, : len(boxes)] = scores.T
    return found.astype(np.float32)


def expected(boxes, scores, threshold, *, agnostic=False):
    """The rows that the rule keeps, one after the other, by shapely alone."""
    shapes = [polygon(*box) for box in boxes]
    kept = []
    for row in sorted(range(len(boxes)), key=lambda one: -scores[one].max()):
        kind = scores[row].argmax()
        rivals = [k for k in kept if agnostic or scores[k].argmax() == kind]
        if scores[row].max() >= 0.25 and all(
            overlap(shapes[row], shapes[k]) <= threshold for k in rivals
        ):
            kept.append(row)
    return kept, shapes


def run(word, request, **options):
    with headrace.pipe({"backend": word, **options}) as pipe:
        pipe(request)
    return request["result"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("threshold", "agnostic"), [(0.3, False), (0.5, True)])
def test_boxes_and_their_suppression_are_those_of_polygons(seed, threshold, agnostic):
    boxes, scores = crowd(seed)
    kept, shapes = expected(boxes, scores, threshold, agnostic=agnostic)
    assert 3 < len(kept) < len(boxes)
    options = {"oriented": True, "input_size": [SIZE, SIZE], "iou_threshold": threshold}
    request = {"data": output_of(boxes, scores), "image": IMAGE}
    found = run("YoloDetections", request, class_agnostic=agnostic, **options)
    assert found.class_id.tolist() == [scores[row].argmax() for row in kept]
    assert found.confidence == pytest.approx([scores[row].max() for row in kept])
    assert found.data["xyxyxyxy"].dtype == np.float32
    for quad, box, row in zip(found.data["xyxyxyxy"], found.xyxy, kept, strict=True):
        assert overlap(geometry.Polygon(quad), shapes[row]) > 0.9999
        edge = np.array(shapes[row].bounds)
        assert box == pytest.approx(edge.clip(0, 2 * SIZE), abs=1e-3)


def test_an_export_that_has_suppressed_says_centre_size_and_the_angle_last():
    boxes, scores = crowd(9, 5)
    best = scores.max(1, keepdims=True)
    rows = np.hstack([boxes[:, :4], best, scores.argmax(1)[:, None], boxes[:, 4:]])
    request = {"data": rows.astype(np.float32), "image": IMAGE}
    found = run("YoloDetections(end2end,0)", request, oriented=True, input_size=[SIZE, SIZE])
    order = np.argsort(-best[:, 0])
    for quad, row in zip(found.data["xyxyxyxy"], order, strict=True):
        assert overlap(geometry.Polygon(quad), polygon(*boxes[row])) > 0.9999


def test_an_angle_is_beside_no_keypoints():
    request = {"data": output_of(*crowd(0)), "image": IMAGE}
    with pytest.raises(InputError, match="one of these"):
        run("YoloDetections(v8)", request, oriented=True, keypoints=[1, 2], input_size=[64, 64])


def test_the_file_of_a_network_says_that_its_boxes_are_oriented(tmp_path):
    boxes, scores = crowd(1, 6)
    output = output_of(boxes, scores)
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["none"]),
        helper.make_node("Add", ["none", "fixed"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "fixed",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, *output.shape])],
        [
            helper.make_tensor("zero", TensorProto.FLOAT, [1, 1, 1], [0.0]),
            helper.make_tensor("fixed", TensorProto.FLOAT, [1, *output.shape], output.ravel()),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
    made.ir_version = 8
    names = {0: "ship", 1: "plane", 2: "car"}
    helper.set_model_props(made, {"names": str(names), "task": "obb"})
    onnx.save(made, tmp_path / "boats.onnx")
    frames = detect(tmp_path / "boats.onnx", IMAGE)
    assert "oriented boxes" in frames.took
    (frame,) = frames
    assert frame.error is None
    kept, shapes = expected(boxes, scores, 0.5)
    assert frame.result.data["class_name"].tolist() == [names[scores[k].argmax()] for k in kept]
    for quad, row in zip(frame.result.data["xyxyxyxy"], kept, strict=True):
        assert overlap(geometry.Polygon(quad), shapes[row]) > 0.999


# Through words and sinks.


def ship(step=0):
    """A box that is turned by 30 degrees, and moves to the right."""
    quad = np.array(polygon(20 + step, 32, 20, 6, np.pi / 6).exterior.coords)[:4]
    return sv.Detections(
        sv.xyxyxyxy_to_xyxy(quad[None]).astype(np.float32),
        confidence=np.array([0.9], np.float32),
        class_id=np.array([0]),
        data={"class_name": np.array(["ship"]), "xyxyxyxy": quad[None].astype(np.float32)},
    )


class Ships(headrace.Backend):
    """Finds the ship of each frame."""

    def forward(self, batch):
        for request in batch:
            request["result"] = ship(request["context"]["frame"])


def test_a_box_is_tracked_counted_and_written_by_every_sink(tmp_path):
    headrace.register("VisionShips", Ships, replace=True)
    sinks = [SaveJSONL(tmp_path / "all.jsonl")]
    ordered = "S[Track,CountLine([64,0,64,128],name=quay)]"
    with VideoRunner({"backend": "VisionShips"}, ordered=ordered, sinks=sinks) as runner:
        frames = list(runner.run({"cam": [IMAGE] * 24}))
    assert [one["error"] for one in runner.status()["sinks"].values()] == [None]
    last = frames[-1]
    assert last.result.tracker_id.tolist() == [0]
    assert sum(last.request["counts"]["quay"].values()) == 1
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    again = from_records(json.loads(lines[-1])["detections"])
    assert again.data["xyxyxyxy"].tolist() == last.result.data["xyxyxyxy"].tolist()
    folder = SpoolFolder(tmp_path / "kept")
    path, is_exact = folder.save(last, 0)
    assert is_exact
    assert read_frame(path).result == last.result


def test_its_sides_are_drawn_and_not_the_box_around_it():
    found = ship()
    drawn = run("DrawDetections([box])", {"data": found, "image": IMAGE})
    sides = np.argwhere(drawn.any(2))[:, ::-1]
    contour = found.data["xyxyxyxy"].reshape(-1, 1, 2)
    away = [abs(cv2.pointPolygonTest(contour, (float(x), float(y)), True)) for x, y in sides]
    assert len(away) > 60
    assert max(away) < 3


def test_tiles_move_it_and_its_overlap_is_that_of_its_sides():
    upright = ship()
    # Two that are turned against each other: the boxes around them are nearly equal, and they overlap by little.
    quad = upright.data["xyxyxyxy"]
    mirrored = quad.copy()
    mirrored[..., 1] = quad[..., 1].min() + quad[..., 1].max() - quad[..., 1]
    other = ship()
    other.data["xyxyxyxy"] = mirrored
    tiles = [[0, 0, 128, 128], [40, 30, 168, 158]]
    moved = ship()
    moved.xyxy = moved.xyxy - [40, 30, 40, 30]
    moved.data["xyxyxyxy"] = quad - [40, 30]
    both = sv.Detections.merge([upright, other])
    found = run("MergeTiles(iou,0.5)", {"data": [both, moved], "tiles": tiles})
    assert found.data["xyxyxyxy"] == pytest.approx(np.concatenate([quad, mirrored]))


# A crop that is turned as a classifier says.


@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
def test_a_crop_is_turned_back_by_what_a_classifier_says(degrees):
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    box = np.array([[10, 5, 40, 20]], np.float32)
    way = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, -90: cv2.ROTATE_90_COUNTERCLOCKWISE}
    upright = image[5:20, 10:40]
    turned = upright if degrees == 0 else cv2.rotate(upright, way[degrees])
    height, width = turned.shape[:2]
    scene = image.copy()
    scene[5 : 5 + height, 10 : 10 + width] = turned
    box = np.array([[10, 5, 10 + width, 5 + height]], np.float32)
    found = sv.Detections(box, data={"angle": np.array([str(degrees)])})
    (crop,) = run("Crops", {"data": found, "image": scene}, turned="angle")
    assert np.array_equal(crop, upright)


@pytest.mark.parametrize(
    ("data", "error"),
    [({}, "unknown how"), ({"angle": ["up"]}, "no degrees"), ({"angle": ["45"]}, "by quarters")],
)
def test_what_is_no_angle_is_refused(data, error):
    found = sv.Detections(
        np.array([[0, 0, 9, 9]], np.float32), data={k: np.array(v) for k, v in data.items()}
    )
    with pytest.raises(InputError, match=error):
        run("Crops", {"data": found, "image": IMAGE}, turned="angle")
