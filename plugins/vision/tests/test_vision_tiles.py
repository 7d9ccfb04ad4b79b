"""Tiles of a picture, and what a detector finds in each, back in the picture."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import supervision as sv
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import ConfigError, InputError

BATCHES = []


def squares(images):
    """Stands for a network: the boxes of what is bright, for each image of a batch."""
    import cv2

    BATCHES.append(len(images))
    found = []
    for image in images:
        count, _, stats, _ = cv2.connectedComponentsWithStats(np.uint8(image[..., 0] > 128))
        x, y, width, height, area = stats[1:].T.astype(np.float32)
        boxes = np.stack([x, y, x + width, y + height], 1)
        mask = [image[..., 0] == value for value in image[y.astype(int), x.astype(int), 0]]
        found.append(
            sv.Detections(
                boxes,
                mask=np.array(mask) if count > 1 else None,
                confidence=area / 1000,
                class_id=np.zeros(count - 1, int),
                data={"keypoints": np.stack([x, y, area], 1)[:, None]},
            )
        )
    return found


class Squares(headrace.Backend):
    """Gives what it sees in each image."""

    def forward(self, batch):
        for request, found in zip(batch, squares([one["data"] for one in batch]), strict=True):
            request["result"] = found


CONFIG = {
    "tiles": {"backend": "Tiles(64,64)", "next": "detect"},
    "detect": {
        "map": "tiles[result:data]",
        "each": "data",
        "backend": "VisionSquares",
        "max": 8,
        "next": "merge",
    },
    "merge": {"map": "detect[result:data],tiles[tiles:tiles]", "backend": "MergeTiles"},
}


@pytest.fixture(scope="module", autouse=True)
def _word():
    headrace.register("VisionSquares", Squares, replace=True)


def picture(corners, size=(150, 210), side=10):
    image = np.zeros((*size, 3), np.uint8)
    for number, (x, y) in enumerate(corners):
        image[y : y + side, x : x + side] = 150 + number
    return image


PLACES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=8, unique=True).map(
    lambda cells: [(21 * x, 21 * y) for x, y in cells]
)


@settings(max_examples=40, deadline=None)
@given(PLACES, st.integers(0, 11), st.sampled_from([False, True]), st.sampled_from(["ios", "iou"]))
def test_objects_that_fit_into_the_overlap_are_found_once_each(corners, moved, whole, metric):
    """As in the whole picture at once, however the tiles cut them."""
    corners = [(x + moved, y + moved) for x, y in corners]
    image = picture(corners)
    config = {**CONFIG, "tiles": {**CONFIG["tiles"], "whole": whole}}
    # A part of an object lies in it, but is perhaps a hundredth of it.
    threshold = {"ios": 0.5, "iou": 0.005}[metric]
    config["merge"] = {**CONFIG["merge"], "metric": metric, "overlap_threshold": threshold}
    with headrace.pipe(config) as pipe:
        found = pipe({"data": image})["result"]
    assert sorted(map(tuple, found.xyxy.tolist())) == sorted(
        (x, y, x + 10, y + 10) for x, y in corners
    )
    for row, (x1, y1, _, _) in enumerate(found.xyxy.astype(int)):
        np.testing.assert_array_equal(found.data["keypoints"][row], [[x1, y1, 100]])
        np.testing.assert_array_equal(found.mask[row], image[..., 0] == image[y1, x1, 0])


def test_an_object_larger_than_a_tile_is_that_of_the_whole_picture():
    image = picture([(20, 30)], side=90)
    with headrace.pipe(CONFIG) as pipe:
        found = pipe({"data": image})["result"]
    assert found.xyxy.tolist() == [[20, 30, 110, 120]]
    with headrace.pipe({**CONFIG, "tiles": {**CONFIG["tiles"], "whole": False}}) as pipe:
        assert len(pipe({"data": image})["result"]) > 1


def test_the_tiles_of_several_pictures_share_batches():
    BATCHES.clear()
    with headrace.pipe(CONFIG) as pipe:
        pipe([{"data": picture([(5, 5)])} for _ in range(4)])
    tiles = 4 * (3 * 4 + 1)
    assert sum(BATCHES) == tiles
    assert len(BATCHES) < tiles / 4


def test_a_picture_that_is_no_larger_than_a_tile_is_one_tile():
    with headrace.pipe({"backend": "Tiles(64,64)"}) as pipe:
        answer = pipe({"data": picture([], size=(64, 30))})
    assert answer["tiles"] == [[0, 0, 30, 64]]


def test_masks_cropped_to_their_boxes_move_with_them():
    boxes = np.array([[2, 3, 6, 9]], np.float32)
    mask = np.zeros((1, 20, 20), bool)
    mask[0, 3:9, 2:6] = True
    compact = sv.CompactMask.from_dense(mask, boxes, (20, 20))
    part = sv.Detections(boxes, mask=compact, confidence=np.ones(1), class_id=np.zeros(1, int))
    tiles = [[0, 0, 20, 20], [30, 40, 50, 60]]
    request = {"data": [sv.Detections.empty(), part], "tiles": tiles}
    with headrace.pipe({"backend": "MergeTiles"}) as pipe:
        found = pipe(request)["result"]
    assert found.mask.shape == (1, 60, 50)
    np.testing.assert_array_equal(found.mask[0][40:, 30:], mask[0])
    assert part.xyxy.tolist() == boxes.tolist()


def test_thousands_of_objects_take_little_memory():
    """A matrix of all pairs of 4,000 boxes is 128 MB."""
    corner = np.random.default_rng(1).uniform(0, 3000, (4000, 2)).astype(np.float32)
    crowd = sv.Detections(
        np.hstack([corner, corner + 20]),
        confidence=np.linspace(1, 0.1, 4000),
        class_id=np.zeros(4000, int),
    )
    with headrace.pipe({"backend": "MergeTiles"}) as pipe:
        tracemalloc.start()
        try:
            found = pipe({"data": [crowd], "tiles": [[0, 0, 3020, 3020]]})["result"]
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert 2000 < len(found) < 4000
    assert peak_bytes < 10e6


def test_detections_of_no_tile_are_no_detections():
    tiles = [[0, 0, 20, 20]] * 2
    with headrace.pipe({"backend": "MergeTiles"}) as pipe:
        found = pipe({"data": [sv.Detections.empty()] * 2, "tiles": tiles})["result"]
    assert len(found) == 0


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"data": [], "tiles": [[0, 0, 9, 9]]}, "one for each of 1 tiles, got 0"),
        ({"data": sv.Detections.empty(), "tiles": [[0, 0, 9, 9]]}, "got Detections"),
        ({"data": [None], "tiles": [[0, 0, 9, 9]]}, "expected supervision.Detections"),
        ({"data": [], "tiles": 3}, r"a list of \[x1, y1, x2, y2\]"),
        ({"data": []}, "no 'tiles'"),
        (
            {"data": [sv.Detections(np.ones((1, 4)))], "tiles": [[0, 0, 9, 9]]},
            "with scores and classes",
        ),
    ],
)
def test_what_is_not_of_the_tiles_is_refused(request_, said):
    with headrace.pipe({"backend": "MergeTiles"}) as pipe, pytest.raises(InputError, match=said):
        pipe(request_)


def test_tiles_need_a_size_and_a_picture():
    with pytest.raises(ConfigError, match="overlap"):
        headrace.pipe({"backend": "Tiles(64,64,1.0)"})
    said = r"uint8 \[H, W, 3\], got float64 \[2, 2\]"
    with headrace.pipe({"backend": "Tiles(64,64)"}) as pipe, pytest.raises(InputError, match=said):
        pipe({"data": np.zeros((2, 2))})
