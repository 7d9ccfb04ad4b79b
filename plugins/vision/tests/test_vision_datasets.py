"""Data sets hold what trainers take: labels by the rules of Ultralytics' check, annotations that lie in their pictures."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pytest
import supervision as sv
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace_vision import Frame, SaveCOCO, SaveYOLO, VideoRunner

HEIGHT, WIDTH = 24, 32
NAN, INFINITY = float("nan"), float("inf")

INSIDE = {  # a box, and its part in a picture of 32 x 24
    (4, 4, 12, 12): (4, 4, 12, 12),
    (-6, -6, 10, 10): (0, 0, 10, 10),
    (20, 10, 44, 30): (20, 10, 32, 24),
    (-9, 3, 90, 5): (0, 3, 32, 5),
    (-INFINITY, 2, INFINITY, 4): (0, 2, 32, 4),
    (0, 0, 32, 24): (0, 0, 32, 24),
    (31.5, 23.5, 33, 25): (31.5, 23.5, 32, 24),
}
OUTSIDE = [
    (40, 4, 50, 12),  # beside
    (-20, 4, 0, 12),  # up to the border
    (5, 5, 5, 9),  # no width
    (12, 4, 4, 12),  # the wrong way round
    (4, NAN, 12, 12),
    (-5, 3, 1e-9, 9),  # less than the six digits of a label
]


def found_of(boxes, **more):
    count = len(boxes)
    score, numbers = np.full(count, 0.5, np.float32), np.arange(count) % 3
    found = sv.Detections(np.zeros((count, 4)), confidence=score, class_id=numbers, **more)
    found.xyxy = np.float64(boxes).reshape(-1, 4)  # without supervision's look at the numbers
    return found


def save(sink, found):
    """The status of a sink to which two frames were written."""
    headrace.register("VisionFindHere", lambda image: found, replace=True)
    with VideoRunner({"backend": "VisionFindHere"}, sinks=[sink]) as runner:
        for frame in runner.run({"cam": [np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * 2}):
            assert frame.error is None
    (status,) = runner.status()["sinks"].values()
    assert (status["written"], status["error"]) == (2, None)
    return status


def labels(path):
    """Class and edges in parts of the picture.

    Ultralytics' check of a label (`verify_image_label`) drops the picture unless each line has five columns, no value is negative and
    none above 1. A box without area is of no use to it.
    """
    rows = []
    for line in path.read_text().splitlines():
        number, *values = line.split()
        x, y, width, height = map(float, values)
        assert all(0 <= one <= 1 for one in (x, y, width, height))
        assert width > 0
        assert height > 0
        rows.append((int(number), x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    return rows


def test_labels_of_yolo_end_at_the_border_and_nothing_without_a_pixel_is_written(tmp_path, caplog):
    found = found_of([*OUTSIDE[:3], *INSIDE, *OUTSIDE[3:]])
    with caplog.at_level(logging.WARNING, "headrace.vision"):
        status = save(SaveYOLO(tmp_path), found)
    assert status["left_out"] == 2 * len(OUTSIDE)
    (said,) = (one.getMessage() for one in caplog.records)
    assert "leaves out what has no pixel in its picture: 6 of frame 0 of cam" in said
    for number in range(2):
        rows = labels(tmp_path / "labels" / f"cam_{number:06d}.txt")
        assert [one for one, *_ in rows] == [row % 3 for row in range(3, 3 + len(INSIDE))]
        size = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
        np.testing.assert_allclose(
            [edges * size for _, *edges in rows], list(INSIDE.values()), atol=1e-4
        )


def test_annotations_of_coco_end_at_the_border_and_nothing_without_a_pixel_is_written(tmp_path):
    points = np.zeros((len(INSIDE) + len(OUTSIDE), 4, 3), np.float32)
    points[:] = [[5, 6, 0.5], [-1, 6, 0.5], [5, 24.5, 0.5], [NAN, 1, 0.5]]
    found = found_of([*INSIDE, *OUTSIDE], data={"keypoints": points})
    assert save(SaveCOCO(tmp_path), found)["left_out"] == 2 * len(OUTSIDE)
    whole = json.loads((tmp_path / "annotations.json").read_text())
    notes = whole["annotations"]
    assert len({one["id"] for one in notes}) == len(notes) == 2 * len(INSIDE)
    for note, (x1, y1, x2, y2) in zip(notes, 2 * list(INSIDE.values()), strict=True):
        assert note["bbox"] == [x1, y1, x2 - x1, y2 - y1]
        assert note["area"] == (x2 - x1) * (y2 - y1)
        assert note["keypoints"] == [5, 6, 2] + 9 * [0]
        assert note["num_keypoints"] == 1


def test_an_object_whose_mask_is_empty_has_no_annotation_and_still_a_label(tmp_path):
    masks = np.zeros((2, HEIGHT, WIDTH), bool)
    masks[1, 4:8, 4:8] = True
    found = found_of([(0, 0, 4, 4), (2, 2, 9, 9)], mask=masks)
    assert save(SaveCOCO(tmp_path), found)["left_out"] == 2
    notes = json.loads((tmp_path / "annotations.json").read_text())["annotations"]
    assert [(one["category_id"], one["area"]) for one in notes] == [(1, 16), (1, 16)]
    assert save(SaveYOLO(tmp_path / "yolo"), found)["left_out"] == 0


NUMBERS = st.floats(-50, 50) | st.sampled_from([0.0, 24.0, 32.0, NAN, INFINITY, -INFINITY, 1e300])


@given(boxes=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=6))
def test_any_boxes_give_labels_that_pass_the_check(boxes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("yolo")
    sink = SaveYOLO(folder, images=False)
    sink.open()
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    sink.write(Frame("cam", 0, 0.0, image, result=found_of(boxes)))
    rows = labels(folder / "labels" / "cam_000000.txt")
    assert len(rows) + sink.status()["left_out"] == len(boxes)
    # What supervision cuts at the border.
    finite = [box for box in boxes if not any(map(math.isnan, box))]
    cut = sv.clip_boxes(np.float64(finite).reshape(-1, 4), (WIDTH, HEIGHT))
    big = [one for one in cut.tolist() if one[2] - one[0] > 1e-4 and one[3] - one[1] > 1e-4]
    assert len(rows) >= len(big)
    for box in big:
        edges = np.array(box) / [WIDTH, HEIGHT, WIDTH, HEIGHT]
        assert any(np.allclose(edges, one, atol=2e-6) for _, *one in rows)


@pytest.mark.parametrize("kind", [SaveYOLO, SaveCOCO])
def test_a_picture_in_which_nothing_is_left_is_kept(tmp_path, kind):
    assert save(kind(tmp_path), found_of([(40, 4, 50, 12)]))["left_out"] == 2
    assert len(list((tmp_path / "images").iterdir())) == 2
