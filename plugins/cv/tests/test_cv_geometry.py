"""`ResizeMat` against a slow computation, pixel by pixel."""

import math
from fractions import Fraction

import numpy as np
import pytest
from pydantic import ValidationError

from headrace.errors import InputError
from headrace_cv import crop_quad, letterbox_image, resize_image
from headrace_cv.geometry import ResizeMat


def slow_linear(image, height, width):
    """Bilinear interpolation with half-pixel centres, edges repeated."""
    result = np.zeros((height, width, *image.shape[2:]))
    for y in range(height):
        for x in range(width):
            at_y = (y + 0.5) * image.shape[0] / height - 0.5
            at_x = (x + 0.5) * image.shape[1] / width - 0.5
            top, left = math.floor(at_y), math.floor(at_x)
            for row, weight_y in ((top, 1 - (at_y - top)), (top + 1, at_y - top)):
                for column, weight_x in ((left, 1 - (at_x - left)), (left + 1, at_x - left)):
                    row_in = min(max(row, 0), image.shape[0] - 1)
                    column_in = min(max(column, 0), image.shape[1] - 1)
                    result[y, x] += weight_y * weight_x * image[row_in, column_in]
    return result


def slow_nearest(image, height, width):
    """The pixel that holds the centre, in exact fractions."""
    result = np.zeros((height, width, *image.shape[2:]), image.dtype)
    for y in range(height):
        for x in range(width):
            row = math.floor((y + Fraction(1, 2)) * image.shape[0] / height)
            column = math.floor((x + Fraction(1, 2)) * image.shape[1] / width)
            result[y, x] = image[row, column]
    return result


def noise(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


SIZES = [(7, 11), (40, 64), (20, 45), (1, 1), (21, 29), (10, 15)]
SHAPES = [(20, 30), (20, 30, 1), (20, 30, 2), (20, 30, 3), (20, 30, 4)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_agrees_with_a_slow_computation(kit, size, shape):
    resize = kit.ready(ResizeMat, resize_h=size[0], resize_w=size[1])
    for dtype, tolerance in ((np.uint8, 1.0), (np.float32, 1e-2)):
        image = noise(*shape, dtype=dtype)
        result = kit.run(resize, data=image)["result"]
        assert result.dtype == dtype
        assert result.shape == (*size, *shape[2:])
        assert np.abs(result - slow_linear(image, *size)).max() <= tolerance


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_nearest_agrees_with_a_slow_computation(kit, size, shape):
    resize = kit.ready(ResizeMat, resize_h=size[0], resize_w=size[1], interpolation="nearest")
    for dtype in (np.uint8, np.float32):
        image = noise(*shape, dtype=dtype)
        result = kit.run(resize, data=image)["result"]
        assert result.dtype == dtype
        assert (result == slow_nearest(image, *size)).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_area_averages_whole_blocks(dtype):
    image = noise(12, 20, 3, dtype=dtype)
    expected = image.reshape(3, 4, 5, 4, 3).mean((1, 3))
    result = resize_image(image, 3, 5, interpolation="area")
    assert np.abs(result - expected).max() <= 0.51


@pytest.mark.parametrize("interpolation", ["nearest", "linear", "cubic", "area", "lanczos"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_flat_image_stays_flat(interpolation, shape):
    for dtype in (np.uint8, np.float32):
        image = np.full(shape, 77, dtype)
        for size in SIZES:
            result = resize_image(image, *size, interpolation=interpolation)
            assert result.shape == (*size, *shape[2:])
            assert np.abs(result - 77.0).max() < 1e-3


@pytest.mark.parametrize("interpolation", ["nearest", "linear", "cubic", "area", "lanczos"])
def test_sides_beyond_sixteen_bits_can_be_made_smaller(interpolation):
    image = np.full((2, 70_000, 3), 9, np.uint8)
    image[:, 35_000:] = 200
    result = resize_image(image, 2, 70, interpolation=interpolation)
    assert (result[:, 3:32] == 9).all()
    assert (result[:, 38:67] == 200).all()


@pytest.mark.parametrize(
    ("old", "given", "new"),
    [
        ((20, 30), {"resize_h": 48}, (48, 72)),
        ((32, 100), {"resize_h": 48}, (48, 150)),
        ((30, 7), {"resize_w": 14}, (60, 14)),
        ((2, 1), {"resize_h": 1}, (1, 1)),  # 0.5 goes up
        ((4, 3), {"resize_h": 2}, (2, 2)),  # 1.5 goes up
        ((4, 5), {"resize_h": 2}, (2, 3)),  # 2.5 goes up
        ((100, 1), {"resize_h": 3}, (3, 1)),  # at least 1
        ((1, 100), {"resize_w": 3}, (1, 3)),
    ],
)
def test_a_free_side_keeps_the_aspect_ratio(kit, old, given, new):
    assert kit.run(kit.ready(ResizeMat, **given), data=noise(*old, 3))["result"].shape == (*new, 3)


def test_a_free_side_beyond_the_limit_is_refused(kit):
    image = np.zeros((1, 1000, 3), np.uint8)
    kit.run(kit.ready(ResizeMat, resize_h=32), data=image)
    with pytest.raises(InputError) as caught:
        kit.run(kit.ready(ResizeMat, resize_h=33), data=image)
    assert caught.value.key == "data"
    assert "33 x 33000" in caught.value.got


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"resize_h": 0},
        {"resize_w": -1},
        {"resize_h": 32_768},
        {"resize_h": True},
        {"resize_h": 2.5},
        {"resize_h": 5, "interpolation": "best"},
        {"resize_h": 5, "height": 5},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ValidationError):
        ResizeMat.Options(**options)


def test_the_plain_function_wants_a_size_too():
    with pytest.raises(ValueError, match="both None"):
        resize_image(noise(3, 3))


def test_an_image_that_has_the_size_passes_untouched(kit):
    image = noise(8, 9, 3)
    assert kit.run(kit.ready(ResizeMat, resize_h=8, resize_w=9), data=image)["result"] is image


@pytest.mark.parametrize(
    "view", [lambda a: a[:, ::-1], lambda a: a[::2], lambda a: a.transpose(1, 0, 2), np.flipud]
)
def test_views_are_read_as_they_look(view):
    image = view(noise(20, 30, 3))
    assert (resize_image(image, 7, 9) == resize_image(image.copy(), 7, 9)).all()


def test_read_only_input_is_left_as_it_was(kit):
    image = noise(20, 30, 3)
    before = image.copy()
    image.setflags(write=False)
    kit.run(kit.ready(ResizeMat, resize_h=4), data=image)
    assert (image == before).all()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64, np.array])
def test_sides_of_numpy_give_what_sides_of_python_give(kind):
    picture = np.zeros((90, 700, 3), np.uint8)
    quad = [[0, 0], [300, 0], [300, 40], [0, 40]]
    with np.errstate(over="raise"):
        assert resize_image(picture, kind(100)).shape == resize_image(picture, 100).shape
        assert (
            resize_image(picture, None, kind(100)).shape == resize_image(picture, None, 100).shape
        )
        assert resize_image(picture, kind(100), kind(90)).shape == (100, 90, 3)
        assert crop_quad(picture, quad, kind(100)).shape == crop_quad(picture, quad, 100).shape
        canvas, fitted = letterbox_image(picture, kind(100), kind(90))
    assert (canvas.shape, fitted) == ((100, 90, 3), letterbox_image(picture, 100, 90)[1])


@pytest.mark.parametrize("side", [0, True, 2.5, "8", np.float32(8), np.array(["8"])])
def test_a_side_that_is_no_number_of_pixels_is_refused(side):
    picture = np.zeros((4, 4, 3), np.uint8)
    quad = [[0, 0], [3, 0], [3, 3], [0, 3]]
    for cut in (resize_image, letterbox_image, lambda *args: crop_quad(picture, quad, *args[1:])):
        with pytest.raises(ValueError, match="width is a number of pixels of at least 1"):
            cut(picture, 8, side)
