"""`LetterBoxMat`, `TopLeftResizeMat` and `UnletterBox` against exact fractions and by hand."""

import pickle
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
from cv_helpers import noise, refused
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_the_padding_may_be_a_number_or_an_array_of_numpy():
    asked = letterbox_image(noise(4, 4, 3), 8, 4, fill_value=np.float32([1.5, 2.5, 255]))[0]
    assert asked[0, 0].tolist() == [2, 2, 255]
    assert letterbox_image(noise(4, 4), 8, 4, fill_value=np.uint8(7))[0][0].tolist() == [7] * 4


@pytest.mark.parametrize(
    ("fill", "whole"),
    [
        ([1.5, 2.5, 300], [2, 2, 255]),
        ([-1e300, 0, 1e300], [0, 0, 255]),
        (3e9, [255] * 3),
    ],
)
def test_each_channel_has_its_own_padding_limited_to_what_the_dtype_holds(kit, fill, whole):
    backend = kit.ready(LetterBoxMat, resize_h=8, resize_w=4, fill_value=fill)
    most = np.finfo(np.float32).max
    for dtype, expected in ((np.uint8, whole), (np.float32, np.clip(fill, -most, most))):
        result = kit.run(backend, data=noise(4, 4, 3, dtype=dtype))["result"]
        assert (result[[0, -1]] == expected).all()


@pytest.mark.parametrize("shape", [(4, 8, 3), (4, 8), (4, 4)])
def test_padding_that_does_not_fit_the_channels_is_refused(kit, shape):
    # Also where nothing is padded, so that it does not depend on the size of the picture.
    backend = kit.ready(LetterBoxMat, resize_h=4, resize_w=4, fill_value=[1, 2])
    error = refused(kit, backend, data=noise(*shape))
    assert (error.key, error.got) == ("data", f"uint8 {list(shape)}")
    assert "2 channel(s)" in error.expected


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


@pytest.mark.parametrize(("request_", "got"), [({}, "nothing"), ({"letterbox": (1, 2)}, "tuple")])
def test_boxes_without_a_letterbox_are_refused(kit, request_, got):
    error = refused(kit, kit.ready(UnletterBox), data=[[1, 2, 3, 4]], **request_)
    assert (error.key, error.got) == ("letterbox", got)
    assert "LetterBoxTransform" in error.expected


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
