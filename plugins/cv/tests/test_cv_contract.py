"""What holds for all backends of this plugin: wrong input, threads."""

import ctypes
import os
import platform
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from cv_helpers import refused
from processes import run_python
from pydantic import ValidationError

import headrace
import headrace_cv
from headrace.errors import InputError, MissingDependencyError
from headrace_cv.classes import Softmax, TopK
from headrace_cv.color import CvtColorMat
from headrace_cv.crop import CenterCropMat, CropMat, PerspectiveCropMat
from headrace_cv.decode import DecodeMat
from headrace_cv.decode_tensor import Decode2Tensor
from headrace_cv.detection import NMS
from headrace_cv.encode import EncodeMat
from headrace_cv.letterbox import LetterBoxMat, TopLeftResizeMat, UnletterBox
from headrace_cv.resize import ResizeMat
from headrace_cv.tensor import Mat2Tensor, Tensor2Mat

OPTIONS = {
    DecodeMat: {},
    Decode2Tensor: {"resize_h": 8, "resize_w": 6},
    ResizeMat: {"resize_h": 8, "resize_w": 6},
    LetterBoxMat: {"resize_h": 9, "resize_w": 12},
    TopLeftResizeMat: {"resize_h": 14, "resize_w": 13},
    CenterCropMat: {"crop_h": 5, "crop_w": 9},
    CropMat: {},
    PerspectiveCropMat: {},
    CvtColorMat: {"color": "rgb"},
    Mat2Tensor: {"scale": 0.5},
    Tensor2Mat: {"scale": 0.5},
    EncodeMat: {"format": "png"},
    NMS: {},
    UnletterBox: {},
    Softmax: {},
    TopK: {},
}
ON_NUMBERS = [NMS, UnletterBox, Softmax, TopK]
"""Those that read numbers, boxes or scores."""
ON_IMAGES = [c for c in OPTIONS if c not in (DecodeMat, Decode2Tensor, Tensor2Mat, *ON_NUMBERS)]
PLACES = {"color": "bgr", "box": [1, 2, 6, 7], "quad": [[1, 1], [6, 1], [6, 5], [1, 5]]}
PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def python(program, **environment):
    return run_python(program, timeout=240, env={**os.environ, **environment})


def test_every_backend_has_its_entry_point():
    listed = PYPROJECT.read_text("utf-8").split('headrace.backends"]\n')[1].split("\n\n")[0]
    expected = {f'{c.__name__} = "{c.__module__}:{c.__name__}"' for c in OPTIONS}
    assert set(listed.splitlines()) == expected


@pytest.mark.parametrize("backend_class", ON_IMAGES)
@pytest.mark.parametrize(
    ("data", "got"),
    [
        (None, "None"),
        ("text", "str"),
        (b"bytes", "bytes"),
        (7, "int"),
        ([[1, 2], [3, 4]], "list"),
        (np.zeros((0, 4, 3), np.uint8), "uint8 [0, 4, 3]"),
        (np.zeros((4, 0), np.uint8), "uint8 [4, 0]"),
        (np.zeros((4, 4, 0), np.uint8), "uint8 [4, 4, 0]"),
        (np.zeros((4, 4, 5), np.uint8), "uint8 [4, 4, 5]"),
        (np.zeros((1, 4, 4, 3), np.uint8), "uint8 [1, 4, 4, 3]"),
        (np.zeros(4, np.uint8), "uint8 [4]"),
        (np.zeros((4, 4, 3)), "float64 [4, 4, 3]"),
        (np.zeros((4, 4, 3), np.uint16), "uint16 [4, 4, 3]"),
        (np.zeros((4, 4, 3), bool), "bool [4, 4, 3]"),
        (np.zeros((4, 4, 3), ">f4"), ">f4 [4, 4, 3]"),
        (np.zeros((4, 4, 3), object), "object [4, 4, 3]"),
        (np.float32(3), "float32 []"),
    ],
)
def test_what_is_no_image_is_refused(kit, backend_class, data, got):
    backend = kit.ready(backend_class, **OPTIONS[backend_class])
    error = refused(kit, backend, data=data, **PLACES)
    assert (error.key, error.got) == ("data", got)
    assert "uint8 or float32 [H, W, C]" in error.expected
    assert error.backend == backend_class.__name__


NO_NUMBERS = {
    (UnletterBox,): [
        (None, "None"),
        ("1,2,3,4", "str"),
        ([1, 2, 3, 4], "int64 [4]"),
        ([[1, 2, 3]], "int64 [1, 3]"),
        ([["1", "2", "3", "4"]], "list"),
        ([[1, 2, 3, 4], [1]], "list"),
        (np.zeros((1, 2, 4)), "float64 [1, 2, 4]"),
        (np.zeros((2, 4), bool), "bool [2, 4]"),
        ([[0, 0, 1, 1], [0, 0, float("nan"), 1]], "row 1: [0.0, 0.0, nan, 1.0]"),
        ([[0, 0, 1e300, 1]], "row 0: [0.0, 0.0, 1e+300, 1.0]"),
    ],
    (NMS,): [
        (None, "None"),
        ({"boxes": 1}, "dict"),
        ([[1, 2, 3, 4, 5]], "int64 [1, 5]"),
        (np.zeros((2, 3, 6), np.float32), "float32 [2, 3, 6]"),
        (np.zeros((0, 5), np.float32), "float32 [0, 5]"),
        ([[0, 0, 1, 1, float("nan"), 0]], "row 0: [0.0, 0.0, 1.0, 1.0, nan, 0.0]"),
    ],
    (Softmax, TopK): [
        (None, "None"),
        ("text", "str"),
        (7, "int"),
        ([], "float64 [0]"),
        (["cat", "dog"], "list"),
        ([[1, 2], [3]], "list"),
        (np.float32(3), "float32 []"),
        (np.zeros((2, 0)), "float64 [2, 0]"),
        (np.zeros((1, 2, 3)), "float64 [1, 2, 3]"),
        (np.zeros(3, bool), "bool [3]"),
        (np.zeros(3, complex), "complex128 [3]"),
    ],
    (Tensor2Mat,): [
        (None, "None"),
        ([[[1.0]]], "list"),
        (np.zeros((5, 4, 4), np.float32), "float32 [5, 4, 4]"),
        (np.zeros((4, 4), np.float32), "float32 [4, 4]"),
        (np.zeros((2, 3, 4, 4), np.float32), "float32 [2, 3, 4, 4]"),
        (np.zeros((3, 0, 4), np.float32), "float32 [3, 0, 4]"),
        (np.zeros((0, 4, 4), np.float32), "float32 [0, 4, 4]"),
        (np.zeros((3, 4, 4)), "float64 [3, 4, 4]"),
        (np.zeros((3, 4, 4), np.uint8), "uint8 [3, 4, 4]"),
        (np.full((3, 4, 4), np.nan, np.float32), "float32 [3, 4, 4]"),
    ],
}


@pytest.mark.parametrize(
    ("backend_class", "data", "got"),
    [(cls, *case) for classes, cases in NO_NUMBERS.items() for cls in classes for case in cases],
)
def test_what_is_no_box_no_score_and_no_tensor_is_refused(kit, backend_class, data, got):
    place = headrace_cv.LetterBoxTransform(10, 10, 10, 10, 10, 10, 0, 0)
    error = refused(kit, kit.ready(backend_class), data=data, letterbox=place)
    assert (error.key, error.got) == ("data", got)


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 1), (9, 7, 3)])
def test_what_is_made_owns_its_memory(kit, shape):
    image = np.zeros(shape, np.uint8)
    image.flags.writeable = False
    places = {
        **PLACES,
        "color": "bgr" if shape[2:] == (3,) else "gray",
        "quad": [[1, 1], [2, 1], [2, 6], [1, 6]],
    }
    target = {"color": "gray" if shape[2:] == (3,) else "rgb"}
    for backend_class, options in OPTIONS.items():
        if backend_class not in ON_IMAGES or backend_class is EncodeMat:
            continue
        changed = {CvtColorMat: target, PerspectiveCropMat: {"rotate_upright": 1.5}}
        backend = kit.ready(backend_class, **{**options, **changed.get(backend_class, {})})
        result = kit.run(backend, data=image, **places)["result"]
        assert result.flags.owndata
        assert result.flags.writeable
        assert result.flags.c_contiguous
    planes = np.zeros((shape[2] if shape[2:] else 1, 9, 7), np.float32)
    assert kit.run(kit.ready(Tensor2Mat), data=planes)["result"].flags.owndata


WRONG_OPTIONS = {
    (CropMat,): [
        {"key": ""},
        {"outside": "keep"},
        {"fill_value": "red"},
    ],
    (PerspectiveCropMat,): [
        {"crop_h": 0},
        {"crop_w": 40_000},
        {"rotate_upright": 0},
        {"rotate_upright": True},
        {"interpolation": "area"},
    ],
    (ResizeMat,): [
        {},
        {"resize_h": 0},
        {"resize_w": -1},
        {"resize_h": 32_768},
        {"resize_h": True},
        {"resize_h": 2.5},
        {"resize_h": 5, "interpolation": "best"},
        {"resize_short": 0},
        {"resize_short": 5, "resize_h": 5},
        {"resize_short": 5, "resize_w": 5},
        {"resize_short": 5, "max_pixels": 24},
        {"resize_h": 5, "interpolation": "area", "antialias": True},
        {"resize_h": 5, "interpolation": "nearest", "antialias": True},
    ],
    (LetterBoxMat, TopLeftResizeMat): [
        {"resize_h": 5},
        {"resize_w": 5},
        {"resize_h": 0, "resize_w": 5},
        {"resize_h": 5, "resize_w": 32_768},
        {"resize_h": 5, "resize_w": 5, "fill_value": "gray"},
        {"resize_h": 5, "resize_w": 5, "fill_value": []},
        {"resize_h": 5, "resize_w": 5, "fill_value": float("inf")},
        {"resize_h": 5, "resize_w": 5, "fill_value": True},
        {"resize_h": 5, "resize_w": 5, "interpolation": "best"},
    ],
    (CvtColorMat,): [
        {},
        {"color": "hsv"},
        {"color": None},
    ],
    (EncodeMat,): [
        {"format": "gif"},
        {"format": "JPEG"},
        {"quality": 0},
        {"quality": 101},
        {"quality": True},
    ],
    (NMS,): [
        {"iou_threshold": -0.1},
        {"iou_threshold": 1.1},
        {"iou_threshold": True},
        {"score_threshold": float("inf")},
        {"score_threshold": float("nan")},
        {"max_boxes": 0},
        {"max_boxes": 2.5},
    ],
    (Mat2Tensor, Tensor2Mat): [
        {"std": 0},
        {"std": [1, 0, 1]},
        {"mean": []},
        {"mean": [1, 2], "std": [1, 2, 3]},
        {"mean": [1, 2, 3, 4, 5]},
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"mean": [1, float("inf")]},
        {"scale": True},
        {"mean": "red"},
        {"scale": 1e300},
        {"std": [1, 1e-300, 1]},
        {"mean": [1, 1, 1e38], "std": 0.1},
    ],
    (Tensor2Mat,): [
        {"scale": 0},
        {"scale": 1e-39},  # its inverse is too large
        {"scale": 1e-20, "mean": 1e20},
    ],
}


@pytest.mark.parametrize(
    ("backend_class", "options"),
    [
        (cls, options)
        for classes, wrong in WRONG_OPTIONS.items()
        for cls in classes
        for options in wrong
    ],
)
def test_wrong_options_are_refused(backend_class, options):
    with pytest.raises(ValidationError):
        backend_class.Options(**options)


@pytest.mark.parametrize("backend_class", OPTIONS)
def test_missing_data_is_named(kit, backend_class):
    backend = kit.ready(backend_class, **OPTIONS[backend_class])
    error = refused(kit, backend, **PLACES)
    assert (error.key, error.got) == ("data", "nothing")


@pytest.mark.parametrize("backend_class", OPTIONS)
@pytest.mark.parametrize(
    "wrong", [str.upper, "{}s".format, lambda key: key[0] + key[2] + key[1] + key[3:]]
)
def test_a_key_that_is_nearly_right_is_told_the_right_one(kit, backend_class, wrong):
    transform = headrace_cv.LetterBoxTransform(1, 1, 1, 1, 1, 1, 0, 0)
    known = {"data": np.zeros((4, 4, 3), np.uint8), **PLACES, "letterbox": transform}
    if backend_class in ON_NUMBERS:
        known["data"] = np.zeros((1, 6), np.float32)
    options = backend_class.Options(**OPTIONS[backend_class]).model_dump()
    backend = kit.ready(backend_class, **OPTIONS[backend_class])
    for key in [one.format(**options) for one in backend_class.reads]:
        with pytest.raises(InputError, match=f"has no '{key}'") as caught:
            kit.run(backend, **{wrong(one) if one == key else one: known[one] for one in known})
        assert caught.value.hint == f"It has {wrong(key)!r}. Did you mean {key!r}?"


def test_a_key_like_no_other_gets_no_guess(kit):
    image, backend = np.zeros((4, 4), np.uint8), kit.ready(CropMat, key="roi")
    for other in ("rectangle", "b" * 100_000, 7):
        assert backend([{"data": image, other: 1}])[0].hint is None
    (error,) = backend([{"data": image, 7: 1, "rio": [0, 0, 1, 1]}])
    assert error.hint == "It has 'rio'. Did you mean 'roi'?"


class OfAnotherLibrary:
    """An array that is no numpy array."""

    def __init__(self, image):
        self.image = image


class ThroughDLPack(OfAnotherLibrary):
    def __dlpack__(self, **how):
        return self.image.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.image.__dlpack_device__()


class ThroughArray(OfAnotherLibrary):
    def __array__(self, dtype=None, copy=None):
        return self.image


class ThroughInterface(OfAnotherLibrary):
    @property
    def __array_interface__(self):  # as pictures of Pillow have it
        return self.image.__array_interface__


class OnAnotherDevice(OfAnotherLibrary):
    def __dlpack__(self, **how):
        raise BufferError("on a device")

    def __dlpack_device__(self):
        return (2, 0)


@pytest.mark.parametrize("backend_class", ON_IMAGES)
def test_arrays_of_other_libraries_are_read(kit, backend_class):
    image = kit.smooth_image(10, 12)
    backend = kit.ready(backend_class, **OPTIONS[backend_class])
    expected = kit.run(backend, data=image, **PLACES)["result"]
    buffer = lambda a: (ctypes.c_uint8 * 3 * 12 * 10).from_buffer(a.copy())  # noqa: E731
    for wrap in (ThroughDLPack, ThroughArray, ThroughInterface, memoryview, buffer):
        result = kit.run(backend, data=wrap(image), **PLACES)["result"]
        assert type(result) is type(expected)
        assert np.array_equal(result, expected)
    error = refused(kit, backend, data=OnAnotherDevice(image), **PLACES)
    assert error.got == "OnAnotherDevice on cuda:0"
    error = refused(kit, backend, data=np.ma.masked_array(image, mask=image > 9), **PLACES)
    assert error.got == "numpy.ma.MaskedArray"
    assert "filled" in error.hint


def test_an_unexpected_error_fails_its_item_alone(kit):
    class Picky(ResizeMat):
        def build(self, options):
            def work(request):
                if request["data"] == "boom":
                    raise RuntimeError("boom")
                request["result"] = 1

            return work

    batch = [{"data": 1}, {"data": "boom"}, {"data": 2}]
    outcomes = kit.ready(Picky, resize_h=1)(batch)
    assert [getattr(o, "code", None) for o in outcomes] == [None, "backend", None]
    assert isinstance(outcomes[1].__cause__, RuntimeError)


def test_many_threads_get_what_one_gets(kit):
    files = [kit.encode(kit.smooth_image(20 + i, 30), "baseline jpeg") for i in range(8)]
    chain = [kit.ready(c, **OPTIONS[c]) for c in OPTIONS if c not in (Decode2Tensor, *ON_NUMBERS)]

    def through(data):
        request = {"data": data, **PLACES}
        for backend in chain:
            assert backend([request]) is None
            request["data"] = request.pop("result")
        return request["data"]

    alone = [through(data) for data in files]
    together = [None] * 8
    start = threading.Barrier(8)

    def work(index):
        start.wait()
        for _ in range(10):
            together[index] = through(files[index])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert alone == together
    assert len(set(alone)) == 8


START = """
import headrace
from headrace_cv.tensor import Mat2Tensor
def start():
    backend = Mat2Tensor()
    backend._start(Mat2Tensor.Options(), headrace.InitContext())
start()
import cv2
print(cv2.getNumThreads())
"""


@pytest.mark.parametrize(
    ("environment", "threads"), [({}, "1"), ({"HEADRACE_CV_THREADS": "2"}, "2")]
)
def test_the_threads_of_opencv_are_limited(environment, threads):
    done = python("import os\nos.environ.setdefault('X', '')\n" + START, **environment)
    assert (done.stdout.strip(), done.stderr) == (threads, "")


def test_the_threads_of_opencv_are_set_only_once():
    done = python(START + "cv2.setNumThreads(3)\nstart()\nprint(cv2.getNumThreads())")
    assert (done.stdout.split(), done.stderr) == (["1", "3"], "")


@pytest.mark.parametrize("value", ["", "many", "0", "-1", "1.5", "²", "9" * 30])
def test_a_wrong_number_of_threads_is_a_clear_error(value):
    done = python(START, HEADRACE_CV_THREADS=value)
    last = done.stderr.strip().splitlines()[-2:]
    assert done.returncode == 1
    assert "SetupError" in last[0]
    assert f"HEADRACE_CV_THREADS={value!r}" in last[0]
    assert "at least 1" in last[1]


def test_the_plain_functions_leave_the_threads_alone():
    program = """
import cv2
cv2.setNumThreads(3)
import numpy, headrace_cv
headrace_cv.resize_image(numpy.zeros((4, 4), "uint8"), 2)
print(cv2.getNumThreads())
"""
    assert python(program, HEADRACE_CV_THREADS="1").stdout == "3\n"


HEAPS = """
import resource, threading
import numpy as np
from headrace_cv._allocator import keep_freed_memory
print(turned and keep_freed_memory(), turned and keep_freed_memory())
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    for k in range(8):
        blocks = [np.ones(20_000_000, np.uint8) for _ in range(2)]
        del blocks
        if k == 1:
            before = faults()
    print(faults() - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_kept_for_the_next_picture():
    alone, kept = (python(f"turned = {turned}" + HEAPS).stdout.split() for turned in (False, True))
    assert alone[:2] == ["False", "False"]
    assert kept[:2] == ["True", "False"]  # the second call does nothing
    assert int(kept[2]) < int(alone[2]) / 10


@pytest.mark.parametrize(
    "environment",
    [{"HEADRACE_CV_KEEP_MEMORY": "0"}, {"MALLOC_TRIM_THRESHOLD_": "131072"}],
)
def test_the_allocator_is_left_as_the_environment_has_it(environment):
    program = "from headrace_cv._allocator import keep_freed_memory\nprint(keep_freed_memory())"
    assert python(program, **environment).stdout == "False\n"


def test_a_wrong_word_about_the_allocator_is_a_clear_error():
    done = python(START, HEADRACE_CV_KEEP_MEMORY="yes")
    assert done.returncode == 1
    assert "SetupError: HEADRACE_CV_KEEP_MEMORY='yes' is neither 0 nor 1" in done.stderr


class Detector(headrace.Backend):
    """A detector that knows the answer, and says it several times."""

    reads = ("data", "letterbox")

    def forward(self, batch):
        for request in batch:
            top = request["letterbox"].top
            row = [8, top + 4, 40, top + 28]
            rows = [[*row, 0.9, 0], [*row, 0.8, 0], [*row, 0.2, 1], [*row, 0.7, 1]]
            request["result"] = np.array(rows, np.float32)


@pytest.mark.first("decode, resize and crop pictures: as the README shows it")
def test_pipelines_find_cut_and_encode(kit):
    headrace.register("DetectorOfTests", Detector)
    picture = kit.smooth_image(32, 64)
    find = "S[DecodeMat,LetterBoxMat(64,64),DetectorOfTests,NMS(0.5,0.3),UnletterBox]"
    with headrace.pipe({"backend": find, "max": 4}) as pipe:
        rows = pipe({"data": kit.encode(picture)})["result"]
    assert rows[:, :4].tolist() == [[8, 4, 40, 28]] * 2
    cut = {"backend": "S[CropMat(found),EncodeMat(png)]", "max": 4}
    with headrace.pipe(cut) as pipe:
        requests = pipe([{"data": picture, "found": row, "color": "bgr"} for row in rows])
    for request in requests:
        assert (headrace_cv.decode_image(request["result"]) == picture[4:28, 8:40]).all()


def test_without_opencv_the_error_has_the_line_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setattr("headrace_cv._opencv._is_limited", False)
    with pytest.raises(
        MissingDependencyError, match="pip install opencv-python-headless"
    ) as caught:
        headrace.pipe({"backend": "DecodeMat"})
    error = caught.value
    place = (error.distribution, error.node, error.backend)
    assert place == ("headrace-cv", "main", "DecodeMat")
