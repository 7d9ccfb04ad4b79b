"""Masks, keypoints and tiles beside Ultralytics, RF-DETR and SAHI: `make_peers` wrote what they answer into a file."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import supervision as sv

import headrace
from headrace.errors import InputError
from headrace_vision import from_records, to_records

letterbox_image = pytest.importorskip("headrace_cv").letterbox_image

with np.load(Path(__file__).with_name("peers.npz")) as file:
    PEERS = dict(file)
CANVAS, KEYPOINTS = 160, (5, 3)
IMAGES = [tuple(size) for size in PEERS["images"].tolist()]


def outputs(*names):
    """The outputs of a network, as OnnxTensor gives them."""
    return {name: PEERS[name].astype(np.float32) for name in names}


def run(expression, request, **options):
    with headrace.pipe({"backend": expression, **options}) as pipe:
        return pipe(request)["result"]


def letterbox(size):
    return letterbox_image(np.zeros((*size, 3), np.uint8), CANVAS, CANVAS)[1]


def wanted_masks(name, number):
    size = IMAGES[number]
    masks = np.unpackbits(PEERS[f"{name}_{number}_masks"], axis=1)[:, : size[0] * size[1]]
    return masks.reshape(-1, *size).astype(bool)


@pytest.mark.parametrize("number", range(len(IMAGES)))
@pytest.mark.parametrize("name", ["segment", "end2end"])
@pytest.mark.parametrize("said", [True, False], ids=["said", "auto"])
def test_boxes_and_masks_are_those_of_ultralytics(number, name, said):
    layout = {"segment": "v8", "end2end": "end2end"}[name] if said else "auto"
    request = {
        "data": outputs(name, "prototypes"),
        "letterbox": letterbox(IMAGES[number]),
    }
    found = run(f"YoloDetections({layout})", request)
    boxes, masks = PEERS[f"{name}_{number}_boxes"], wanted_masks(name, number)
    assert (np.diff(found.confidence) <= 0).all()
    # It leaves out boxes without a pixel of a mask. Each box has another score.
    scores = boxes[:, 4].tolist()
    is_there = np.array([score in scores for score in found.confidence.tolist()])
    assert found.mask.area[~is_there].sum() == 0
    found = found[is_there]
    np.testing.assert_allclose(found.xyxy, boxes[:, :4], atol=1e-4)
    assert found.class_id.tolist() == boxes[:, 5].tolist()
    # Where the padding ends within a pixel of the prototypes, it interpolates twice.
    differ = (np.asarray(found.mask) != masks).sum()
    assert differ <= (0 if number < 2 else 0.015 * masks.sum())
    assert masks.sum() > 500


@pytest.mark.parametrize("number", range(len(IMAGES)))
@pytest.mark.parametrize("layout", ["v8", "auto"])
def test_boxes_and_keypoints_are_those_of_ultralytics(number, layout):
    request = {"data": PEERS["pose"].astype(np.float32), "letterbox": letterbox(IMAGES[number])}
    found = run(f"YoloDetections({layout})", request, keypoints=list(KEYPOINTS), labels=["person"])
    boxes = PEERS[f"pose_{number}_boxes"]
    np.testing.assert_allclose(found.xyxy, boxes[:, :4], atol=1e-4)
    np.testing.assert_allclose(found.confidence, boxes[:, 4], rtol=1e-6)
    points = found.data["keypoints"]
    np.testing.assert_allclose(points, PEERS[f"pose_{number}_points"], atol=1e-4)
    assert (points.shape, points.dtype) == ((len(boxes), *KEYPOINTS), np.float32)


@pytest.mark.parametrize("number", range(len(IMAGES)))
def test_boxes_and_masks_are_those_of_rf_detr(number):
    data = outputs("dets", "labels", "masks")
    image = np.zeros((*IMAGES[number], 3), np.uint8)
    for form in (data, [one[None] for one in data.values()], list(data.values())[::-1]):
        found = run("DetrDetections", {"data": form, "image": image})
        boxes, masks = PEERS[f"detr_{number}_boxes"], wanted_masks("detr", number)
        np.testing.assert_allclose(found.xyxy, boxes[:, :4], atol=1e-4)
        np.testing.assert_allclose(found.confidence, boxes[:, 4], rtol=1e-6)
        assert found.class_id.tolist() == boxes[:, 5].tolist()
        np.testing.assert_array_equal(np.asarray(found.mask), masks)


def test_keypoints_without_a_score_and_masks_of_yolov5_are_read():
    """The numbers of a box in another order, and the cells in rows."""
    rows = PEERS["pose"].astype(np.float32).T
    flat = np.concatenate([rows[:, :5], np.delete(rows[:, 5:], np.s_[2::3], 1)], 1)
    request = {"data": flat.T, "letterbox": letterbox((160, 160))}
    found = run("YoloDetections", request, keypoints=[KEYPOINTS[0], 2], labels=["person"])
    np.testing.assert_allclose(found.data["keypoints"], PEERS["pose_1_points"][..., :2], atol=1e-4)
    data = outputs("segment", "prototypes")
    rows = np.concatenate(
        [data["segment"].T[:, :4], np.ones((525, 1)), data["segment"].T[:, 4:]], 1
    )
    request |= {"data": [np.tile(rows, (3, 1))[None], data["prototypes"][None]]}
    found = run("YoloDetections", request, labels=["a", "b"])
    np.testing.assert_array_equal(np.asarray(found.mask), wanted_masks("segment", 1))


def test_masks_of_a_large_picture_take_little_memory():
    """A hundred masks of 24 million pixels are 2.4 GB."""
    data = outputs("segment", "prototypes")
    small = np.tile(data["segment"], 6)
    small[2:4] /= 20
    small[0] += np.repeat(np.arange(6), 525)
    request = {"data": {**data, "segment": small}, "image": np.zeros((4000, 6000, 3), np.uint8)}
    options = {"input_size": [CANVAS, CANVAS], "iou_threshold": 1.0}
    with headrace.pipe({"backend": "YoloDetections(v8)", **options}) as pipe:
        pipe(dict(request))
        tracemalloc.start()
        try:
            found = pipe(dict(request))["result"]
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert found.mask.shape == (108, 4000, 6000)
    assert found.mask.area.min() >= 0 < found.mask.area.max()
    assert peak_bytes < 20e6


def test_masks_and_keypoints_go_through_filter_records_and_drawing():
    request = {
        "data": outputs("segment", "prototypes"),
        "letterbox": letterbox((120, 160)),
        "image": np.zeros((120, 160, 3), np.uint8),
    }
    found = run("S[YoloDetections(v8),FilterDetections([b])]", dict(request), labels=["a", "b"])
    masks = wanted_masks("segment", 0)[PEERS["segment_0_boxes"][:, 5] == 1]
    np.testing.assert_array_equal(np.asarray(found.mask), masks)
    dense = replace(found, mask=masks)
    assert to_records(found) == to_records(dense)
    back = from_records(json.loads(json.dumps(to_records(found))))
    np.testing.assert_array_equal(back.mask, masks)
    drawn = run("S[YoloDetections(v8),DrawDetections([mask,keypoints,box])]", dict(request))
    everything = wanted_masks("segment", 0).any(0)
    assert drawn[everything].any(-1).all()
    none = run("YoloDetections(v8)", dict(request), score_threshold=1.0)
    assert to_records(none) == []
    assert none.mask.shape == (0, 120, 160)
    assert len(sv.Detections.merge([none, found])) == len(found)


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"prototypes": np.zeros((9, 40, 40))}, {"labels": ["a", "b"]}, "no layout fits"),
        ({"prototypes": np.zeros((12, 40, 40))}, {"layout": "v8"}, "12 more numbers of each box"),
        ({"prototypes": np.full((8, 40, 40), np.nan)}, {}, "the prototypes are not finite"),
        ({"more": np.zeros(3)}, {}, "arrays with 2 and 3 and 1 axes"),
        ({"prototypes": np.zeros((8, 40))}, {}, "arrays with 2 and 2 axes"),
        ({}, {"keypoints": [5, 3]}, "prototypes, keypoints or an angle"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(change, options, said):
    data = outputs("segment", "prototypes") | change
    with pytest.raises(InputError, match=said):
        run("YoloDetections", {"data": data, "letterbox": letterbox((160, 160))}, **options)


def test_masks_that_are_not_those_of_the_boxes_are_refused():
    data = outputs("dets", "labels", "masks")
    image = np.zeros((9, 9, 3), np.uint8)
    with pytest.raises(InputError, match="15 masks for 16 boxes"):
        run("DetrDetections", {"data": data | {"masks": data["masks"][1:]}, "image": image})
    with pytest.raises(InputError, match="keypoints"):
        run("DetrDetections", {"data": {**data, "keypoints": data.pop("masks")}, "image": image})


def test_tiles_are_the_slices_of_sahi():
    for number, (height, width, tile_h, tile_w, overlap) in enumerate(PEERS["tiles"].tolist()):
        image = np.random.default_rng(number).integers(
            0, 256, (int(height), int(width), 3), np.uint8
        )
        options = {"tile_h": int(tile_h), "tile_w": int(tile_w), "overlap": overlap}
        with headrace.pipe({"backend": "Tiles", "whole": False, **options}) as pipe:
            answer = pipe({"data": image})
        assert answer["tiles"] == PEERS[f"tiles_{number}"].tolist()
        for tile, (x1, y1, x2, y2) in zip(answer["result"], answer["tiles"], strict=True):
            np.testing.assert_array_equal(tile, image[y1:y2, x1:x2])
            assert not np.shares_memory(tile, image)


@pytest.mark.parametrize("metric", ["iou", "ios"])
@pytest.mark.parametrize("agnostic", [False, True])
def test_what_overlaps_is_dropped_as_sahi_does(metric, agnostic):
    rows = PEERS["boxes"].astype(np.float32)
    wanted = PEERS[f"kept_{metric.upper()}_{'all' if agnostic else 'class'}"]
    tiles = [[0, 0, 70, 70], [50, 30, 120, 100]]
    parts = []
    for part, (x, y, *_) in zip((rows[:40], rows[40:]), tiles, strict=True):
        boxes = part[:, :4] - np.array([x, y, x, y], np.float32)
        parts.append(sv.Detections(boxes, confidence=part[:, 4], class_id=part[:, 5].astype(int)))
    options = {"overlap_threshold": 0.43, "class_agnostic": agnostic}
    found = run(f"MergeTiles({metric})", {"data": parts, "tiles": tiles}, **options)
    np.testing.assert_allclose(found.xyxy, rows[wanted, :4], atol=1e-4)
    np.testing.assert_array_equal(found.confidence, rows[wanted, 4])
    assert 10 < len(found) < len(rows)
