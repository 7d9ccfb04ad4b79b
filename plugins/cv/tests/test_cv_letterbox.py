"""`LetterBoxMat`, `TopLeftResizeMat` and `UnletterBox` against exact fractions and by hand."""

import pickle
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
from cv_helpers import noise
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.errors import InputError
from headrace_cv import LetterBoxTransform, boxes_to_image, letterbox_image, resize_image
from headrace_cv.letterbox import LetterBoxMat, TopLeftResizeMat, UnletterBox

CLASSES = [LetterBoxMat, TopLeftResizeMat]


def slow_place(height, width, canvas_h, canvas_w):
    """Size of the image inside the canvas, in exact fractions."""
    scale = min(Fraction(canvas_h, height), Fraction(canvas_w, width))
    sizes = [max(1, int(side * scale + Fraction(1, 2))) for side in (height, width)]
    return sizes[0], sizes[1]


SIZES = [(20, 30), (30, 20), (7, 100), (100, 7), (32, 32), (1, 900), (900, 1), (33, 31), (3, 4)]


@pytest.mark.parametrize("backend_class", CLASSES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("canvas", [(32, 32), (20, 47), (64, 9), (1, 1)])
@pytest.mark.parametrize("tail", [(), (1,), (3,), (4,)])
def test_the_image_is_fitted_and_the_rest_is_padding(kit, backend_class, size, canvas, tail):
    backend = kit.ready(backend_class, resize_h=canvas[0], resize_w=canvas[1], fill_value=7)
    height, width = slow_place(*size, *canvas)
    right, below = canvas[1] - width, canvas[0] - height
    left, top = (right // 2, below // 2) if backend_class is LetterBoxMat else (0, 0)
    for dtype in (np.uint8, np.float32):
        image = noise(*size, *tail, dtype=dtype)
        request = kit.run(backend, data=image)
        expected = np.full((*canvas, *tail), 7, dtype)
        inner = resize_image(image, height, width)
        expected[top : top + height, left : left + width] = inner
        assert request["result"].dtype == dtype
        assert request["result"].shape == expected.shape
        assert (request["result"] == expected).all()
        place = request["letterbox"]
        assert (place.image_h, place.image_w) == size
        assert (place.content_h, place.content_w) == (height, width)
        assert (place.canvas_h, place.canvas_w) == canvas
        assert (place.left, place.top) == (left, top)
        assert (image == noise(*size, *tail, dtype=dtype)).all()


def test_a_wide_picture_lies_in_the_middle_of_a_square(kit):
    # 1280 x 720 at 640 x 640: scale 0.5, 360 rows, 140 above and 140 below.
    request = kit.run(
        kit.ready(LetterBoxMat, resize_h=640, resize_w=640),
        data=np.full((720, 1280, 3), 9, np.uint8),
    )
    rows = request["result"][:, 0, 0]
    assert (rows[:140] == 114).all()
    assert (rows[140:500] == 9).all()
    assert (rows[500:] == 114).all()
    place = request["letterbox"]
    assert (place.scale_x, place.scale_y, place.left, place.top) == (0.5, 0.5, 0, 140)
    assert place.to_image([[10, 150, 20, 160]]).tolist() == [[20, 20, 40, 40]]
    assert place.to_canvas([[20, 20, 40, 40]]).tolist() == [[10, 150, 20, 160]]


def test_an_odd_pixel_of_padding_goes_right_and_below(kit):
    backend = kit.ready(LetterBoxMat, resize_h=4, resize_w=7)
    result = kit.run(backend, data=np.zeros((4, 4), np.uint8))["result"]
    assert result[0].tolist() == [114, 0, 0, 0, 0, 114, 114]
    turned = kit.ready(LetterBoxMat, resize_h=7, resize_w=4)
    result = kit.run(turned, data=np.zeros((4, 4), np.uint8))["result"]
    assert result[:, 0].tolist() == [114, 0, 0, 0, 0, 114, 114]


@pytest.mark.parametrize("backend_class", CLASSES)
def test_a_small_image_is_made_larger_only_when_allowed(kit, backend_class):
    options = {"resize_h": 40, "resize_w": 40}
    small, large = noise(10, 20, 3), noise(80, 20, 3)
    kept = kit.run(kit.ready(backend_class, **options, enlarge=False), data=small)
    place = kept["letterbox"]
    assert (place.content_h, place.content_w, place.scale_x, place.scale_y) == (10, 20, 1, 1)
    top, left = place.top, place.left
    assert (kept["result"][top : top + 10, left : left + 20] == small).all()
    grown = kit.run(kit.ready(backend_class, **options), data=small)["letterbox"]
    assert (grown.content_h, grown.content_w) == (20, 40)
    for enlarge in (True, False):
        backend = kit.ready(backend_class, **options, enlarge=enlarge)
        shrunk = kit.run(backend, data=large)["letterbox"]
        assert (shrunk.content_h, shrunk.content_w) == (40, 10)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_each_channel_has_its_own_padding(kit, dtype):
    backend = kit.ready(LetterBoxMat, resize_h=8, resize_w=4, fill_value=[1.5, 2.5, 300])
    result = kit.run(backend, data=noise(4, 4, 3, dtype=dtype))["result"]
    expected = [1.5, 2.5, 300] if dtype is np.float32 else [2, 2, 255]
    assert (result[0] == expected).all()
    assert (result[-1] == expected).all()


def test_the_padding_may_be_a_number_or_an_array_of_numpy():
    asked = letterbox_image(noise(4, 4, 3), 8, 4, fill_value=np.float32([1.5, 2.5, 255]))[0]
    assert asked[0, 0].tolist() == [2, 2, 255]
    assert letterbox_image(noise(4, 4), 8, 4, fill_value=np.uint8(7))[0][0].tolist() == [7] * 4


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_padding_is_limited_to_what_the_dtype_holds(kit, dtype):
    backend = kit.ready(LetterBoxMat, resize_h=8, resize_w=4, fill_value=[-1e300, 0, 1e300])
    result = kit.run(backend, data=noise(4, 4, 3, dtype=dtype))["result"]
    most = np.finfo(np.float32).max
    assert result[0, 0].tolist() == ([-most, 0, most] if dtype is np.float32 else [0, 0, 255])
    large = kit.run(
        kit.ready(LetterBoxMat, resize_h=8, resize_w=4, fill_value=3e9), data=noise(4, 4)
    )
    assert (large["result"][0] == 255).all()


@pytest.mark.parametrize("shape", [(4, 8, 3), (4, 8), (4, 4)])
def test_padding_that_does_not_fit_the_channels_is_refused(kit, shape):
    # Also where nothing is padded, so that it does not depend on the size of the picture.
    backend = kit.ready(LetterBoxMat, resize_h=4, resize_w=4, fill_value=[1, 2])
    with pytest.raises(InputError) as caught:
        kit.run(backend, data=noise(*shape))
    assert (caught.value.key, caught.value.got) == ("data", f"uint8 {list(shape)}")
    assert "2 channel(s)" in caught.value.expected


@pytest.mark.parametrize("backend_class", CLASSES)
def test_an_image_that_has_the_size_passes_untouched(kit, backend_class):
    image = noise(8, 9, 3)
    request = kit.run(kit.ready(backend_class, resize_h=8, resize_w=9), data=image)
    assert request["result"] is image
    assert request["letterbox"] == LetterBoxTransform(8, 9, 8, 9, 8, 9, 0, 0)


@pytest.mark.parametrize("interpolation", ["nearest", "linear", "cubic", "area", "lanczos"])
def test_the_interpolation_is_that_of_resizing(interpolation):
    image = noise(20, 30, 3)
    canvas, place = letterbox_image(image, 15, 15, interpolation=interpolation)
    inner = resize_image(image, 10, 15, interpolation=interpolation)
    assert (canvas[place.top : place.top + 10] == inner).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"resize_h": 5},
        {"resize_w": 5},
        {"resize_h": 0, "resize_w": 5},
        {"resize_h": 5, "resize_w": 32_768},
        {"resize_h": 5, "resize_w": 5, "fill_value": "gray"},
        {"resize_h": 5, "resize_w": 5, "fill_value": []},
        {"resize_h": 5, "resize_w": 5, "fill_value": float("inf")},
        {"resize_h": 5, "resize_w": 5, "fill_value": True},
        {"resize_h": 5, "resize_w": 5, "interpolation": "best"},
        {"resize_h": 5, "resize_w": 5, "pad": 5},
    ],
)
def test_wrong_options_are_refused(options):
    for backend_class in CLASSES:
        with pytest.raises(ValidationError):
            backend_class.Options(**options)


def test_the_transform_is_frozen_and_can_be_pickled():
    place = letterbox_image(noise(20, 30), 64, 64)[1]
    assert pickle.loads(pickle.dumps(place)) == place
    assert hash(place) == hash(pickle.loads(pickle.dumps(place)))
    with pytest.raises(FrozenInstanceError):
        place.left = 3


sides = st.integers(1, 3000)
coordinates = st.floats(-100, 4000, width=32)


@settings(max_examples=200, deadline=None)
@given(
    size=st.tuples(sides, sides),
    canvas=st.tuples(st.integers(8, 1300), st.integers(8, 1300)),
    boxes=st.lists(st.tuples(*[coordinates] * 4), max_size=4),
    centered=st.booleans(),
)
def test_what_goes_to_the_canvas_comes_back(size, canvas, boxes, centered):
    place = letterbox_image(np.zeros(size, np.uint8), *canvas, centered=centered)[1]
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    there = place.to_canvas(boxes)
    back = place.to_image(there)
    assert there.dtype == back.dtype == np.float32
    assert there.shape == back.shape == boxes.shape
    # One rounding to float32 each way.
    spacing = np.spacing(np.abs(there).max(initial=1)) / min(place.scale_x, place.scale_y)
    assert np.abs(back - boxes).max(initial=0) <= spacing + np.spacing(np.float32(4000))
    whole = place.to_canvas([[0, 0, size[1], size[0]]])[0].tolist()
    expected = [place.left, place.top, place.left + place.content_w, place.top + place.content_h]
    assert whole == pytest.approx(expected)
    assert 0 <= place.left <= place.left + place.content_w <= canvas[1]
    assert 0 <= place.top <= place.top + place.content_h <= canvas[0]


@pytest.mark.parametrize("backend_class", CLASSES)
def test_boxes_land_on_the_pixels_that_they_held(kit, backend_class):
    image = np.zeros((60, 90), np.uint8)
    image[12:30, 18:48] = 255
    backend = kit.ready(backend_class, resize_h=50, resize_w=40, interpolation="area")
    request = kit.run(backend, data=image)
    ys, xs = np.nonzero(request["result"] == 255)
    seen = [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]
    back = kit.run(kit.ready(UnletterBox), data=seen, letterbox=request["letterbox"])["result"]
    assert np.abs(back - [18, 12, 48, 30]).max() < 90 / 40


def test_boxes_come_back_with_their_other_columns_and_clipped(kit):
    place = LetterBoxTransform(100, 200, 50, 100, 100, 100, 0, 25)
    rows = np.array([[10, 30, 20, 40, 0.5, 3], [-9, 0, 120, 99, 0.25, 1]], np.float32)
    before = rows.copy()
    clipped = kit.run(kit.ready(UnletterBox), data=rows, letterbox=place)["result"]
    assert clipped.dtype == np.float32
    assert clipped.tolist() == [[20, 10, 40, 30, 0.5, 3], [0, 0, 200, 100, 0.25, 1]]
    free = kit.run(kit.ready(UnletterBox, clip=False), data=rows, letterbox=place)["result"]
    assert free.tolist() == [[20, 10, 40, 30, 0.5, 3], [-18, -50, 240, 148, 0.25, 1]]
    assert (rows == before).all()
    assert not np.shares_memory(clipped, rows)


@pytest.mark.parametrize(
    ("data", "columns"), [([], 4), (np.zeros((0, 6)), 6), (np.zeros((0, 4), np.int64), 4)]
)
def test_no_boxes_come_back_as_no_boxes(kit, data, columns):
    place = LetterBoxTransform(10, 10, 10, 10, 10, 10, 0, 0)
    result = kit.run(kit.ready(UnletterBox), data=data, letterbox=place)["result"]
    assert (result.shape, result.dtype) == ((0, columns), np.float32)


@pytest.mark.parametrize(
    ("data", "got"),
    [
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
)
def test_what_is_no_table_of_boxes_is_refused(kit, data, got):
    place = LetterBoxTransform(10, 10, 10, 10, 10, 10, 0, 0)
    with pytest.raises(InputError) as caught:
        kit.run(kit.ready(UnletterBox), data=data, letterbox=place)
    assert (caught.value.key, caught.value.got) == ("data", got)
    assert caught.value.expected


@pytest.mark.parametrize(("request_", "got"), [({}, "nothing"), ({"letterbox": (1, 2)}, "tuple")])
def test_boxes_without_a_letterbox_are_refused(kit, request_, got):
    with pytest.raises(InputError) as caught:
        kit.run(kit.ready(UnletterBox), data=[[1, 2, 3, 4]], **request_)
    assert (caught.value.key, caught.value.got) == ("letterbox", got)
    assert "LetterBoxTransform" in caught.value.expected


def test_a_box_too_far_away_is_clipped_without_a_warning(kit):
    place = LetterBoxTransform(100, 200, 1, 2, 10, 10, 0, 0)
    rows = [[-3e38, -3e38, 3e38, 3e38]]
    result = kit.run(kit.ready(UnletterBox), data=rows, letterbox=place)["result"]
    assert result.tolist() == [[0, 0, 200, 100]]


def test_the_plain_function_gives_what_the_backend_gives(kit):
    place = letterbox_image(noise(20, 30), 64, 64)[1]
    rows = [[1, 2, 30, 40, 0.5]]
    result = kit.run(kit.ready(UnletterBox), data=rows, letterbox=place)["result"]
    assert (boxes_to_image(rows, place) == result).all()
