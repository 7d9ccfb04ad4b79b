"""`ResizeMat` against a slow computation, pixel by pixel."""

import math
import sys
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
from cv_helpers import noise, refused
from hypothesis import assume, given
from hypothesis import strategies as st

import headrace
from headrace.errors import MissingDependencyError
from headrace_cv import crop_quad, letterbox_image, resize_image
from headrace_cv.resize import ResizeMat


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
    error = refused(kit, kit.ready(ResizeMat, resize_h=33), data=image)
    assert error.key == "data"
    assert "33 x 33000" in error.got


def test_an_image_that_has_the_size_passes_untouched(kit):
    image = noise(8, 9, 3)
    assert kit.run(kit.ready(ResizeMat, resize_h=8, resize_w=9), data=image)["result"] is image


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


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_the_shorter_side_is_that_of_torchvision(height, width, size):
    short, long = (height, width) if height <= width else (width, height)
    new_long = int(size * long / short)  # as it is written there
    assume(new_long < 2**15)  # OpenCV refuses longer sides
    expected = (size, new_long) if height <= width else (new_long, size)
    result = resize_image(np.zeros((height, width), np.uint8), short=size, interpolation="nearest")
    assert result.shape == expected


def test_a_longer_side_beyond_the_limits_is_refused(kit):
    image = np.zeros((1, 1000, 3), np.uint8)
    error = refused(kit, kit.ready(ResizeMat, resize_short=33), data=image)
    assert "33 x 33000" in error.got
    error = refused(kit, kit.ready(ResizeMat, resize_short=8, max_pixels=8 * 7999), data=image)
    assert "max_pixels" in error.hint
    for sides in ({"short": 0}, {"height": 3, "short": 3}):
        with pytest.raises(ValueError, match="short"):
            resize_image(image, **sides)


@pytest.mark.parametrize("name", ["linear", "cubic", "lanczos"])
@pytest.mark.parametrize("size", [(7, 9), (40, 13), (80, 90)])
def test_antialias_is_that_of_pillow(kit, name, size):
    pillow = pytest.importorskip("PIL.Image")
    chosen = {"linear": "BILINEAR", "cubic": "BICUBIC", "lanczos": "LANCZOS"}[name]

    def expected(image):
        made = pillow.fromarray(image).resize(size[::-1], getattr(pillow.Resampling, chosen))
        return np.asarray(made)

    backend = kit.ready(
        ResizeMat, resize_h=size[0], resize_w=size[1], interpolation=name, antialias=True
    )
    color = noise(60, 70, 3)
    result = kit.run(backend, data=color)["result"]
    np.testing.assert_array_equal(result, expected(color))
    assert result.flags.owndata
    assert result.flags.writeable
    for image in (noise(60, 70), noise(60, 70, 1), noise(60, 70, 2), noise(60, 70, 4)):
        for one in (image, image.astype(np.float32) / 255):
            planes = one.reshape(60, 70, -1)
            result = kit.run(backend, data=one)["result"]
            assert (result.dtype, result.shape) == (one.dtype, (*size, *one.shape[2:]))
            for k in range(planes.shape[2]):
                plane = np.ascontiguousarray(planes[:, :, k])
                np.testing.assert_array_equal(result.reshape(*size, -1)[:, :, k], expected(plane))
    np.testing.assert_array_equal(  # a view of another order of channels
        kit.run(backend, data=color[:, ::-1, ::-1])["result"],
        expected(np.ascontiguousarray(color[:, ::-1, ::-1])),
    )


def test_antialias_without_pillow_says_what_to_install(monkeypatch, kit):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "headrace-cv\[formats\]"'):
        kit.ready(ResizeMat, resize_h=5, antialias=True)


TORCHVISION = (
    "S[DecodeMat,ResizeMat(resize_short=256,antialias=true),CenterCropMat(224),CvtColorMat(rgb),"
    "Mat2Tensor(scale={},mean=[0.485,0.456,0.406],std=[0.229,0.224,0.225])]"
)


@pytest.mark.parametrize("size", [(300, 451), (451, 300), (256, 700), (90, 77)])
def test_the_preparation_of_torchvision_is_one_expression(kit, size):
    """Resize(256), CenterCrop(224), ToTensor, Normalize: by Pillow, and by what torchvision's documentation says."""
    pillow = pytest.importorskip("PIL.Image")
    picture = np.ascontiguousarray(kit.smooth_image(*size) ^ (noise(*size, 3) & 15))
    short, long = min(size), max(size)
    new_long = int(256 * long / short)
    width, height = (new_long, 256) if size[1] >= size[0] else (256, new_long)
    image = pillow.fromarray(np.ascontiguousarray(picture[:, :, ::-1]))
    image = image.resize((width, height), pillow.Resampling.BILINEAR)
    top, left = int(round((height - 224) / 2.0)), int(round((width - 224) / 2.0))  # noqa: RUF046
    pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float64) / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = ((pixels - mean) / std).transpose(2, 0, 1)
    with headrace.pipe({"backend": TORCHVISION.format(1 / 255)}) as pipe:
        result = pipe({"data": kit.encode(picture)})["result"]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


README = Path(__file__).parent.parent / "README.md"
AREA, LINEAR = 2.3, 5.5


def test_area_is_near_to_the_antialias_of_pillow_and_linear_is_not(kit):
    """The figures that the README gives, of smoothed noise: details of a few pixels."""
    pytest.importorskip("PIL.Image")
    picture = cv2.GaussianBlur(noise(900, 1400, 3), (0, 0), 2)
    picture = cv2.normalize(picture, None, 0, 255, cv2.NORM_MINMAX)
    right = resize_image(picture, short=256, antialias=True).astype(float)
    away = {
        name: np.abs(resize_image(picture, short=256, interpolation=name) - right).mean()
        for name in ("area", "linear")
    }
    assert away == pytest.approx({"area": AREA, "linear": LINEAR}, abs=0.1)
    assert f"by {AREA} of 255 on average, and those of `linear` by {LINEAR}" in README.read_text(
        "utf-8"
    )
