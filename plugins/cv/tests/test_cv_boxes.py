"""`NMS` and the overlap of boxes against slow loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace_cv import filter_detections, nms
from headrace_cv.detection import NMS


def slow_iou(a, b):
    a, b = [float(x) for x in a], [float(x) for x in b]
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    return w * h / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h)


def slow_nms(rows, iou, score=None, agnostic=False, limit=None):
    """Compare each row with all that were kept; Python's sort is stable."""
    kept = []
    for row in sorted(rows, key=lambda row: -row[4]):
        if score is not None and row[4] < np.float32(score):
            continue
        rivals = [k for k in kept if agnostic or k[5] == row[5]]
        if all(slow_iou(row, k) <= iou for k in rivals):
            kept.append(row)
    return kept[:limit]


def random_rows(count, classes=3, seed=0, side=40):
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 100, (count, 2))
    size = rng.uniform(1, side, (count, 2))
    score = rng.integers(0, 20, (count, 1)) / 20  # many equal ones
    kind = rng.integers(0, classes, (count, 1))
    return np.hstack([corner, corner + size, score, kind]).astype(np.float32)


@pytest.mark.parametrize("count", [0, 1, 2, 17, 150])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"iou_threshold": 0},
        {"iou_threshold": 0.3, "class_agnostic": True},
        {"iou_threshold": 1},
        {"score_threshold": 0.35},
        {"score_threshold": 0.5, "class_agnostic": True, "max_boxes": 5},
        {"max_boxes": 1},
        {"score_threshold": 2},
    ],
)
def test_the_rows_kept_are_those_of_a_slow_loop(kit, count, options):
    backend = kit.ready(NMS, **options)
    for seed in range(3):
        rows = random_rows(count, seed=seed)
        result = kit.run(backend, data=rows)["result"]
        expected = slow_nms(
            list(rows),
            options.get("iou_threshold", 0.5),
            options.get("score_threshold"),
            options.get("class_agnostic", False),
            options.get("max_boxes"),
        )
        assert result.dtype == np.float32
        assert result.tolist() == [row.tolist() for row in expected]
        assert not np.shares_memory(result, rows)
        assert (rows == random_rows(count, seed=seed)).all()


def test_of_equal_scores_the_first_row_comes_first():
    boxes = [[0, 0, 10, 10], [1, 0, 11, 10], [50, 0, 60, 10], [0, 0, 10, 10]]
    assert nms(boxes, [0.5] * 4).tolist() == [0, 2]
    assert nms(boxes[::-1], [0.5] * 4).tolist() == [0, 1]


def test_further_columns_are_kept():
    rows = np.hstack([random_rows(30), np.arange(30, dtype=np.float32)[:, None]])
    result = filter_detections(rows)
    assert result.shape[1] == 7
    assert (rows[result[:, 6].astype(int)] == result).all()


def test_boxes_without_area_overlap_nothing():
    flat = [[5, 5, 5, 9], [9, 9, 5, 5], [0, 0, 10, 10]]
    assert nms(flat, [3, 2, 1], iou_threshold=0).tolist() == [0, 1, 2]


def test_far_boxes_and_large_class_numbers_do_not_confuse_it():
    # Where classes are told apart by shifting their boxes, these get mixed up.
    rows = [[-500, 0, -490, 10, 0.9, 10_000], [1e6, 0, 1e6 + 10, 10, 0.8, 9_999]]
    twice = [*rows, *[[*row[:4], row[4] / 2, row[5]] for row in rows]]
    assert filter_detections(twice)[:, 4].tolist() == [np.float32(0.9), np.float32(0.8)]


grid = st.integers(0, 12)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.tuples(grid, grid, grid, grid, st.sampled_from([0, 0.25, 0.5]), st.integers(0, 1)),
        max_size=12,
    ),
    iou=st.sampled_from([0, 0.25, 0.5, 1]),
    agnostic=st.booleans(),
    unit=st.sampled_from([1, 1 / 256, 512]),
)
def test_small_boxes_in_any_unit_agree_with_the_slow_loop(rows, iou, agnostic, unit):
    table = np.array(rows, np.float32).reshape(-1, 6)
    table[:, 2:4] += table[:, :2]  # never inside out
    table[:, :4] *= unit  # a power of two: nothing is rounded
    result = filter_detections(table, iou_threshold=iou, class_agnostic=agnostic)
    expected = slow_nms(list(table), iou, agnostic=agnostic)
    assert result.tolist() == [row.tolist() for row in expected]
    again = filter_detections(result, iou_threshold=iou, class_agnostic=agnostic)
    assert (again == result).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, ">f4"])
def test_other_numbers_are_read(dtype):
    rows = np.array([[0, 0, 10, 10, 1, 0], [0, 0, 10, 10, 2, 0]], dtype)
    assert filter_detections(rows).tolist() == [[0, 0, 10, 10, 2, 0]]
    assert filter_detections(rows).dtype == np.float32


def test_scores_and_classes_must_fit_the_boxes():
    boxes = [[0, 0, 1, 1], [0, 0, 1, 1]]
    wrong = {"int64 [1]": [1], "int64 [3]": [1, 2, 3], "int64 [1, 2]": [[1, 2]], "str": "12"}
    for got, scores in {**wrong, "float64 [2]": [1, float("nan")], "None": None}.items():
        with pytest.raises(InputError) as caught:
            nms(boxes, scores)
        assert ("scores" in caught.value.what, caught.value.got) == (True, got)
    with pytest.raises(InputError) as caught:
        nms(boxes, [1, 2], classes=[1])
    assert "classes" in caught.value.what
    assert nms([], []).tolist() == []
