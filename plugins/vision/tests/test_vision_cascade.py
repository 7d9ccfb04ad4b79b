"""Crops of detections, and what is said of each crop, back in the detections."""

from __future__ import annotations

import numpy as np
import pytest
import supervision as sv

import headrace
from headrace.errors import ConfigError, InputError

IMAGE = np.random.default_rng(1).integers(0, 256, (60, 80, 3), np.uint8)
BOXES = np.array([[10, 20, 30, 50], [60, 40, 95, 70], [5, 5, 5, 5], [200, 9, 220, 19]], np.float32)


def found(count=2, **fields):
    return sv.Detections(BOXES[:count], class_id=np.arange(count), **fields)


def run(request, **config):
    with headrace.pipe(config) as pipe:
        return pipe(request)["result"]


@pytest.mark.parametrize(
    ("part", "box"),
    [
        ([0, 0, 1, 1], (10, 20, 30, 50)),
        ([0, 0, 1, 0.5], (10, 20, 30, 35)),
        ([-0.25, -1, 1.5, 1.2], (5, 0, 40, 56)),
    ],
)
def test_a_crop_holds_the_pixels_of_its_part_of_the_box(part, box):
    crop = run({"data": found(1), "image": IMAGE}, backend="Crops", part=part)[0]
    x1, y1, x2, y2 = box
    np.testing.assert_array_equal(crop, IMAGE[y1:y2, x1:x2])
    assert not np.shares_memory(crop, IMAGE)


def test_each_detection_has_a_crop_even_where_its_box_is_empty_or_outside():
    crops = run({"data": found(4), "image": IMAGE}, backend="Crops")
    assert [one.shape for one in crops] == [(30, 20, 3), (20, 20, 3), (1, 1, 3), (10, 1, 3)]
    empty = sv.Detections.empty()
    assert run({"data": empty, "image": IMAGE}, backend="Crops") == []


def test_a_part_without_pixels_and_an_image_that_is_none_are_refused():
    with pytest.raises(ConfigError, match="x1 is below x2"):
        headrace.pipe({"backend": "Crops", "part": [0, 0, 0, 1]})
    with pytest.raises(InputError, match=r"no image: expected uint8 \[H, W, 3\], got NoneType"):
        run({"data": found()}, backend="Crops")


def test_detect_crop_and_classify_is_one_configuration():
    """The classifier stands for a network: which of the three colours is strongest."""
    headrace.register("CascadeBoxes", lambda image: found(int(image[0, 0, 0])))
    headrace.register("Strongest", lambda crop: crop.mean((0, 1)).astype(np.float32))
    config = {
        "detect": {"backend": "CascadeBoxes", "next": "crop"},
        "crop": {"backend": "Crops", "map": "detect[result:data,image:image]", "next": "kind"},
        "kind": {
            "backend": "Strongest",
            "map": "crop[result:data]",
            "each": "data",
            "max": 8,
            "next": "join",
        },
        "join": {
            "backend": "Classes",
            "map": "detect[result:data],kind[result:kind]",
            "labels": ["blue", "green", "red"],
        },
    }
    images = [IMAGE.copy() for _ in range(6)]
    for image, count in zip(images, (2, 0, 2, 2, 0, 2), strict=True):
        image[0, 0, 0] = count
        image[20:50, 10:30] = (0, 250, 0)
        image[40:60, 60:80] = (0, 0, 250)
    with headrace.pipe(config) as pipe:
        answers = pipe([{"data": image, "image": image} for image in images])
    for answer, count in zip(answers, (2, 0, 2, 2, 0, 2), strict=True):
        kinds = answer["result"].data.get("kind", np.array([], str))
        assert kinds.tolist() == ["green", "red"][:count]
        assert len(answer["result"]) == count


def test_the_scores_of_classes_are_those_of_a_softmax():
    outputs = [np.array([1.0, 3.0, 2.0]), np.array([[0.0, 0.0, 5.0]])]
    result = run({"data": found(), "kind": outputs}, backend="Classes")
    expected = [np.exp(3) / np.exp([1, 2, 3]).sum(), np.exp(5) / (2 + np.exp(5))]
    np.testing.assert_allclose(result.data["kind_score"], expected, rtol=1e-6)
    assert result.data["kind"].tolist() == ["1", "2"]


def test_labels_are_read_from_json_too(tmp_path):
    (tmp_path / "labels.json").write_text('{"car": 0, "bus": 1}')
    config = {"backend": "ClassDetections(1)", "labels": str(tmp_path / "labels.json")}
    result = run({"data": np.array([0.25, 0.75]), "image": IMAGE}, **config, activation="identity")
    assert result.data["class_name"].tolist() == ["bus"]


def test_texts_mappings_and_arrays_come_into_data_beside_what_is_there():
    before = found(data={"class_name": np.array(["a", "b"])})
    plates = [{"text": "K4", "confidence": 0.5}, {"text": "", "confidence": 0.0}]
    vectors = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    request = {"data": before, "plate": plates, "vector": vectors, "value": ["x", "y"]}
    result = run(request, backend="S[Keys(plate),Keys(vector),Keys]")
    assert result.data["plate_text"].tolist() == ["K4", ""]
    assert result.data["plate_confidence"].tolist() == [0.5, 0.0]
    np.testing.assert_array_equal(result.data["vector"], vectors)
    assert result.data["value"].tolist() == ["x", "y"]
    assert result.data["class_name"].tolist() == ["a", "b"]
    assert list(before.data) == ["class_name"]


def test_the_best_class_of_detections_comes_into_data_with_its_score():
    config = {"backend": "ClassDetections(2)", "labels": ["car", "bus"], "score_threshold": 0.2}
    classified = [
        run({"data": np.array(logits), "image": IMAGE}, **config, activation="identity")
        for logits in ([0.25, 0.75], [0.1, 0.1])
    ]
    result = run({"data": found(), "kind": classified}, backend="Keys(kind)")
    assert result.data["kind"].tolist() == ["bus", ""]
    assert result.data["kind_score"].tolist() == [0.75, 0.0]
    with pytest.raises(InputError, match="the values differ"):
        run({"data": found(), "kind": [found(1), found(1)]}, backend="Keys(kind)")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["only one"], "one for each detection, got 1"),
        (np.zeros(2), "one for each detection, got ndarray"),
        (["a", 1], "texts, numbers or arrays, got int, str"),
        ([np.zeros(2), np.zeros(3)], "arrays of one shape"),
        ([{"a": 1}, {"b": 1}], "each with a"),
        ([None, None], "texts, numbers or arrays, got NoneType"),
    ],
)
def test_values_that_do_not_fit_the_detections_are_an_error_of_their_key(values, said):
    with pytest.raises(InputError, match=said) as caught:
        run({"data": found(), "value": values}, backend="Keys")
    assert caught.value.key == "value"
