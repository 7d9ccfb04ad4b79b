"""The classifier as a user runs it, against scikit-learn."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
from following import Needs, follow
from pages import Page, copy_examples, run

import headrace

# Looked for, not imported: every process of a run collects this module, and one runs it.
pytestmark = [
    pytest.mark.skipif(find_spec(name) is None, reason=f"needs {name}")
    for name in ("sklearn", "onnx", "onnxruntime")
]

PAGE = Page("examples/classify/README.md")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a copy of the example, prepared, at its place in the repository."""
    folder = copy_examples(tmp_path_factory.mktemp("root"), "classify")
    prepared = run(PAGE.command("classify/prepare.py"), folder, PYTHONWARNINGS="error")
    assert "of 450 others are right" in prepared
    return folder


@pytest.fixture(scope="module")
def made(root):
    return root / "examples" / "classify" / "made"


@pytest.fixture(scope="module")
def expected(made):
    """The class of each picture that was held out."""
    rows = (made / "expected.tsv").read_text("utf-8").splitlines()
    return dict(row.split("\t") for row in rows)


def test_the_pictures_are_those_of_scikit_learn_that_were_held_out(made, expected):
    from sklearn.datasets import load_digits

    data = load_digits()
    names = (made / "classes.txt").read_text("utf-8").splitlines()
    known = {image.tobytes(): names[n] for image, n in zip(data.images, data.target, strict=True)}
    assert len(expected) == 450
    for name, label in list(expected.items())[::9]:
        picture = cv2.imread(str(made / "digits" / name), cv2.IMREAD_GRAYSCALE)
        grey = np.rint(picture[::8, ::8] * (16 / 255))
        assert known[grey.astype(np.float64).tobytes()] == label


def test_the_network_gives_the_probabilities_of_scikit_learn(made):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    data = load_digits()
    rows = np.rint(data.data * (255 / 16)).astype(np.float32) / 255
    train, test, digits, _ = train_test_split(
        rows, data.target, test_size=0.25, stratify=data.target, random_state=0
    )
    network = MLPClassifier((64,), alpha=0.1, tol=1e-3, random_state=0).fit(train, digits)
    config = {"backend": "S[OnnxTensor,Softmax]", "model": str(made / "digits.onnx"), "max": 50}
    with headrace.pipe(config) as pipe:
        answers = pipe([{"data": row.reshape(1, 8, 8)} for row in test])
    found = np.stack([answer["result"] for answer in answers])
    np.testing.assert_allclose(found, network.predict_proba(test), atol=1e-5)


@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("curl"), reason="needs curl")
def test_the_readme_is_followed(root, expected):
    pytest.importorskip("headrace_serve")
    elsewhere = "prepare.py|torch"
    ran, answer, program = follow(PAGE, root, Needs(left_out=elsewhere, programs=True))
    rows = [line.split("\t") for line in ran.splitlines()]
    assert [Path(row[0]).name for row in rows] == list(expected)
    right = sum(row[1] == label for row, label in zip(rows, expected.values(), strict=True))
    assert abs(right - int(re.search(r"right for (\d+) of the 450", PAGE.text)[1])) <= 5
    best = json.loads(answer)["result"]
    assert [list(one) for one in best] == [["label", "score"]] * 3
    found = [line.split(" ")[:2] for line in program.splitlines()]
    assert found == [[name, row[1]] for name, row in zip(expected, rows, strict=True)]
    assert best[0]["label"] == rows[0][1]


def test_names_of_other_classes_are_an_error_that_says_so(root, made):
    (made / "nine.txt").write_text("\n".join("abcdefghi"), encoding="utf-8")
    config = {
        "extends": str(made.parent / "classify.toml"),
        "classify": {"labels": str(made / "nine.txt")},
    }
    wrong = pytest.raises(headrace.errors.InputError, match="expected 9 classes, got 10")
    with headrace.pipe(config) as pipe, wrong:
        pipe({"data": (made / "digits" / "000.png").read_bytes()})
