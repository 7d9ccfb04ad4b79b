"""Pictures read with functions of other libraries, against the same done by hand."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
from pages import Page, copy_examples, run, shell
from PIL import Image

# Looked for, not imported: every process of a run collects this module, and one runs it.
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")

PAGE = Page("examples/functions/README.md")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A folder with a copy of the example and its pictures, at its place in the repository."""
    folder = copy_examples(tmp_path_factory.mktemp("functions"), "functions")
    run(PAGE.command("prepare.py"), folder)
    return folder


def by_hand(pictures):
    """Read digits as a script would that knows nothing of Headrace."""
    from sklearn.datasets import load_digits
    from sklearn.svm import SVC

    data = load_digits()
    rows = []
    for path in pictures:
        gray = np.asarray(Image.open(path).convert("L"))
        small = cv2.resize(gray, (8, 8), interpolation=cv2.INTER_AREA).astype(float).ravel()
        rows.append((small - small.min()) / (small.max() - small.min()))
    classifier = SVC(gamma=0.25).fit(data.data / 16, data.target)
    return [str(digit) for digit in classifier.predict(rows)]


def test_the_example_reads_what_a_script_reads_and_a_bad_file_fails_alone(example):
    done = shell(PAGE.command("headrace run"), example)
    assert done.returncode == 1
    assert "none.png: error: backend: Call raised UnidentifiedImageError" in done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    pictures = sorted(path for path in example.glob("examples/*/made/*") if path.stem != "none")
    assert [row[0] for row in rows] == [path.relative_to(example).as_posix() for path in pictures]
    assert [row[1] for row in rows] == by_hand(pictures)
    right = sum(Path(path).stem.endswith(f"-{digit}") for path, digit in rows)
    assert right >= 58, "of 60, in the data that it was trained on"


def test_the_example_is_refused_where_code_may_not_be_imported(example):
    refused = shell("headrace check examples/functions/digits.toml --no-import", example)
    assert refused.returncode == 2
    assert "Call imports 'PIL.Image:open'" in refused.stderr
