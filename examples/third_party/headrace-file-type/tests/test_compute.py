"""The detector: on files of known types, and on what is no file."""

import io
import zipfile

import pytest
from headrace.errors import InputError, SetupError

from headrace_file_type.compute import Detector


@pytest.fixture(scope="module")
def detector():
    return Detector()


def zip_file():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "text " * 100)
    return file.getvalue()


def test_files_are_told_apart(detector):
    assert detector.detect(zip_file()) == "zip"
    assert detector.detect(b"import os\n\ndef f(x):\n    return os.sep + x\n" * 20) == "python"
    assert detector.detect(b"") == "empty"
    assert detector.detect(bytearray(zip_file())) == "zip"
    assert detector.detect(memoryview(zip_file()), ["zip"]) == "zip"


def test_a_type_that_is_not_allowed_is_an_error_that_names_it(detector):
    with pytest.raises(InputError, match="expected jpeg or png, got zip") as caught:
        detector.detect(zip_file(), ("jpeg", "png"))
    assert caught.value.key == "data"


@pytest.mark.parametrize("wrong", [None, "text", 7, [1, 2], memoryview(b"abcd").cast("i")])
def test_what_is_no_file_is_an_error_that_names_the_key(detector, wrong):
    with pytest.raises(InputError, match="bytes of a file") as caught:
        detector.detect(wrong)
    assert caught.value.key == "data"


def test_a_type_that_magika_does_not_know_is_refused_with_the_nearest(detector):
    detector.check_names(["jpeg", "png"])
    with pytest.raises(SetupError, match="'jpeg'"):
        detector.check_names(["jpgg"])
