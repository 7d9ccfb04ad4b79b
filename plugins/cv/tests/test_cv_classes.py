"""`Softmax` and `TopK`: probabilities by hand, and names from lists and files."""

import json
import math

import numpy as np
import pytest

import headrace
from headrace.errors import ConfigError, InputError, SetupError
from headrace_cv import softmax, top_k


def by_hand(row):
    """The formula in double precision, without moving the scores: they must be small."""
    powers = [math.exp(one) for one in row]
    return [one / math.fsum(powers) for one in powers]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64])
def test_probabilities_are_the_formula_in_every_dtype(dtype):
    scores = np.array([[1, 3, 2], [0, 0, 0], [9, 7, 8]], dtype)
    found = softmax(scores)
    assert found.dtype == (np.float64 if dtype is np.float64 else np.float32)
    assert found == pytest.approx(np.array([by_hand(row) for row in scores.tolist()]), rel=1e-6)
    assert found[0].tolist() == softmax(scores[0]).tolist()
    assert softmax(scores.tolist()) == pytest.approx(found, rel=1e-6)
    assert scores.tolist() == [[1, 3, 2], [0, 0, 0], [9, 7, 8]]


def test_large_scores_overflow_nothing_and_minus_infinity_is_a_class_that_cannot_be():
    moved = np.array([1e30, 1e30 - 1e25, -1e30], np.float64)
    assert softmax(moved).tolist() == [1, 0, 0]
    masked = [0.0, -math.inf, math.log(3)]
    assert softmax(masked).tolist() == pytest.approx([0.25, 0, 0.75])


@pytest.mark.parametrize(
    ("scores", "got"),
    [
        ([1, math.nan], "[1.0, nan]"),
        ([[1, 2], [math.inf, 1]], "[inf, 1.0]"),
        ([-math.inf, -math.inf], "[-inf, -inf]"),
        (np.array([1e300, 0], np.longdouble), "e+300"),  # beyond float32
    ],
)
def test_scores_without_probabilities_are_refused(scores, got):
    with pytest.raises(InputError) as caught:
        softmax(scores)
    assert got in caught.value.got


def test_numbers_that_fill_no_memory_are_not_made_to():
    huge = np.broadcast_to(np.zeros((), np.float32), (1 << 20, 1 << 20))
    for function in (softmax, top_k):
        with pytest.raises(InputError, match="too many numbers"):
            function(huge)


def test_the_best_come_first_and_of_equal_ones_the_lower_number():
    scores = np.array([3, 200, 3, 0, 200], np.uint8)  # minus an unsigned number is a large one
    assert top_k(scores, 4) == [
        {"label": "1", "score": 200.0},
        {"label": "4", "score": 200.0},
        {"label": "0", "score": 3.0},
        {"label": "2", "score": 3.0},
    ]
    assert [one["label"] for one in top_k(scores, 99)] == ["1", "4", "0", "2", "3"]
    with pytest.raises(InputError, match="expected 0 classes"):
        top_k(scores, labels=[])
    with pytest.raises(ValueError, match="at least 1"):
        top_k(scores, 0)
    with pytest.raises(InputError, match="NaN"):
        top_k([0.5, math.nan])
    assert json.dumps(top_k(np.float32([0.5, 0.25]), 1)) == '[{"label": "0", "score": 0.5}]'


def test_rows_have_a_list_each():
    rows = [[0.1, 0.9], [0.8, 0.2]]
    assert [[one["label"] for one in row] for row in top_k(rows, labels=["cat", "dog"])] == [
        ["dog", "cat"],
        ["cat", "dog"],
    ]
    assert top_k(np.zeros((0, 2))) == []


@pytest.mark.parametrize("classes", [1, 2, 6])
def test_labels_of_another_number_of_classes_are_refused(classes):
    labels = ["cat", "", "cow", "", ""]  # with two blank lines at the end of the file
    with pytest.raises(InputError, match=f"5 classes, got {classes}") as caught:
        top_k(np.zeros(classes), labels=labels)
    assert "another model" in caught.value.hint


@pytest.mark.parametrize("classes", [3, 4, 5])
def test_a_class_without_a_label_is_called_by_its_number(classes):
    found = top_k(np.arange(classes), 9, ["cat", "", "cow", " ", ""])
    assert [one["label"] for one in found] == ["4", "3", "cow", "1", "cat"][5 - classes :]


FILES = {
    "lines.txt": "cat\r\nC\u3000D\r\n\r\n",
    "no end.names": "\ufeffcat\nC\u3000D",
    "list.json": json.dumps(["cat", "C\u3000D"]),
    "numbers.json": json.dumps({"1": "C\u3000D", "0": "cat"}),
    "wordnet.JSON": json.dumps({"0": ["n1", "cat"], "1": ["n2", "C\u3000D"]}),
    "names.json": json.dumps({"C\u3000D": 1, "cat": 0}),
    "config.json": json.dumps({"id2label": {"0": "cat", "1": "C\u3000D"}, "hidden_size": 8}),
}


@pytest.mark.parametrize("name", FILES)
def test_labels_are_read_from_each_kind_of_file(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name].encode())
    config = {"backend": "S[Softmax,TopK(1)]", "labels": name}
    config = headrace.PipelineConfig.load(config, base=tmp_path)
    with headrace.pipe(config) as pipe:
        result = pipe({"data": np.array([0.0, math.log(3)], np.float32)})["result"]
    assert result == [{"label": "C\u3000D", "score": pytest.approx(0.75)}]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.txt", b"cat\n\xff\n", "bad.txt:2: this is no text in UTF-8"),
        ("cut.json", b'["cat"', "no JSON"),
        ("one.json", b'"cat"', "a list of names, or an object"),
        ("lists.json", b'[["n1", "cat"]]', "a list of names, or an object"),
        ("more.json", b'{"a": "cat"}', "'a' is no number of a class"),
        ("far.json", b'{"cat": 100000000000}', "'100000000000' is no number of a class"),
        ("twice.json", b'{"cat": 0, "dog": 0}', "two labels for the class 0"),
    ],
)
def test_a_file_without_labels_is_an_error_when_the_pipeline_is_made(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SetupError) as caught:
        headrace.pipe({"backend": "TopK", "labels": str(tmp_path / name)})
    assert said in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    with pytest.raises(ConfigError, match="no such file"):
        headrace.pipe({"backend": "TopK", "labels": str(tmp_path / "none.txt")})
