"""`CropMat` and `PerspectiveCropMat` against slow computations, pixel by pixel."""

import math

import numpy as np
import pytest
from cv_helpers import noise, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.errors import InputError
from headrace_cv import center_crop_image, crop_image, crop_quad, resize_image
from headrace_cv.crop import CenterCropMat, CropMat, PerspectiveCropMat


class Unreadable:
    """Refuses to become an array, as a tensor of torch that requires a gradient does."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach() first")


def slow_crop(image, box, fill=None):
    """Pixel by pixel; what is outside is left out, or filled."""
    x1, y1, x2, y2 = (math.floor(x + 0.5) for x in box)
    height, width = image.shape[:2]
    if fill is None:
        rows = [y for y in range(y1, y2) if 0 <= y < height]
        columns = [x for x in range(x1, x2) if 0 <= x < width]
    else:
        rows, columns = range(y1, y2), range(x1, x2)
    result = np.full((len(rows), len(columns), *image.shape[2:]), fill or 0, image.dtype)
    for i, y in enumerate(rows):
        for j, x in enumerate(columns):
            if 0 <= y < height and 0 <= x < width:
                result[i, j] = image[y, x]
    return result


BOXES = [
    (3, 2, 9, 8),
    (0, 0, 30, 20),
    (29, 19, 30, 20),
    (2.5, 2.49, 7.5, 7.51),
    (-4, -3, 6, 5),
    (25, 15, 40, 33),
    (-5, 5, 50, 6),
    (-0.5, -0.4, 30.4, 20.49),
]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("tail", [(), (1,), (3,), (4,)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_crop_is_that_of_a_slow_loop(kit, box, tail, dtype):
    image = noise(20, 30, *tail, dtype=dtype)
    clipped = kit.run(kit.ready(CropMat), data=image, box=box)["result"]
    filled = kit.run(kit.ready(CropMat, outside="fill", fill_value=9), data=image, box=box)
    zeros = crop_image(image, box, outside="fill")
    assert (zeros == slow_crop(image, box, 0)).all()
    for result, expected in (
        (clipped, slow_crop(image, box)),
        (filled["result"], slow_crop(image, box, 9)),
    ):
        assert result.dtype == dtype
        assert result.shape == expected.shape
        assert (result == expected).all()
        assert not np.shares_memory(result, image)
        assert result.base is None or result.base.nbytes == result.nbytes


@pytest.mark.parametrize(
    "wrap",
    [
        list,
        tuple,
        np.array,
        lambda b: np.array([*b, 0.9, 3], np.float32),
        lambda b: np.array(b, np.uint8),
        lambda b: [np.float32(x) for x in b],
        lambda b: memoryview(np.array(b, np.float64)),
    ],
)
def test_a_box_is_a_list_or_an_array_and_may_have_more_behind_it(kit, wrap):
    image = noise(20, 30, 3)
    result = kit.run(kit.ready(CropMat), data=image, box=wrap([2, 3, 9, 11]))["result"]
    assert (result == image[3:11, 2:9]).all()


def test_the_key_of_the_place_can_be_named(kit):
    image = noise(20, 30, 3)
    crop = kit.run(kit.ready(CropMat, key="face"), data=image, face=[0, 0, 2, 2], box="no")
    assert (crop["result"] == image[:2, :2]).all()
    assert refused(kit, kit.ready(CropMat, key="face"), data=image, box=[0] * 4).key == "face"
    quad = [[0, 0], [2, 0], [2, 2], [0, 2]]
    crop = kit.run(kit.ready(PerspectiveCropMat, key="line"), data=image, line=quad)
    assert crop["result"].shape == (2, 2, 3)
    wrong = kit.ready(PerspectiveCropMat, key="line")
    assert refused(kit, wrong, data=image, quad=quad).key == "line"
    assert refused(kit, wrong, data=image, line=quad[::-1]).key == "line"


@pytest.mark.parametrize(
    ("box", "got"),
    [
        (None, "None"),
        ("1,2,3,4", "str"),
        ([1, 2, 3], "int64 [3]"),
        ([[1, 2, 3, 4]], "int64 [1, 4]"),
        (["1", "2", "3", "4"], "list"),
        ([1, 2, 3, None], "list"),
        ([1, 2, 3, Unreadable()], "list"),
        ([True] * 4, "list"),
        ([0, 0, float("nan"), 4], "[0.0, 0.0, nan, 4.0]"),
        ([0, 0, float("inf"), 4], "[0.0, 0.0, inf, 4.0]"),
        ([5, 5, 5, 9], "5, 5, 5, 9"),
        ([5, 5, 5.4, 9], "5, 5, 5, 9"),
        ([9, 5, 5, 9], "9, 5, 5, 9"),
        ([30, 0, 40, 9], "30, 0, 40, 9"),
        ([-9, -9, 0, 0], "-9, -9, 0, 0"),
    ],
)
@pytest.mark.parametrize("outside", ["clip", "refuse", "fill"])
def test_what_is_no_box_or_holds_nothing_is_refused(kit, box, got, outside):
    backend = kit.ready(CropMat, outside=outside)
    error = refused(kit, backend, data=noise(20, 30, 3), box=box)
    assert (error.key, error.got) == ("box", got)


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 31, 5), (0, 0, 5, 21)])
def test_a_box_that_leaves_the_image_is_refused_when_asked_so(kit, box):
    error = refused(kit, kit.ready(CropMat, outside="refuse"), data=noise(20, 30), box=box)
    assert error.key == "box"
    assert "0, 0, 30, 20" in error.expected


@pytest.mark.parametrize("box", [(-20_000, 0, 20_000, 9), (-10_000, -10_000, 9_000, 9_000)])
def test_a_crop_beyond_all_limits_is_refused_before_memory_is_taken(kit, box):
    error = refused(kit, kit.ready(CropMat, outside="fill"), data=noise(20, 30), box=box)
    assert error.key == "box"
    assert "100000000" in error.expected
    kit.run(kit.ready(CropMat), data=noise(20, 30), box=[x * 1e250 for x in box])


def test_what_fills_must_fit_the_channels(kit):
    backend = kit.ready(CropMat, outside="fill", fill_value=[1, 2, 3])
    result = kit.run(backend, data=noise(4, 4, 3), box=[-1, 0, 4, 4])["result"]
    assert result[0, 0].tolist() == [1, 2, 3]
    for box in ([-1, 0, 4, 4], [0, 0, 2, 2]):
        error = refused(kit, backend, data=noise(4, 4), box=box)
        assert (error.key, error.got) == ("data", "uint8 [4, 4]")


@settings(max_examples=200, deadline=None)
@given(box=st.tuples(*[st.floats(-20, 40, width=32)] * 4))
def test_any_box_is_cut_or_refused(box):
    image = noise(15, 18)
    expected = slow_crop(image, box)
    try:
        result = crop_image(image, box)
    except InputError:
        assert expected.size == 0
    else:
        assert (result == expected).all()


def homography(source, target):
    """Solve the eight equations that take four points to four points."""
    rows, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    return np.append(np.linalg.solve(rows, values), 1).reshape(3, 3)


def slow_quad(image, quad, height=None, width=None):
    """Bilinear values at the points that the homography gives, borders repeated."""
    quad = np.asarray(quad, float)
    lengths = [math.dist(quad[i], quad[(i + 1) % 4]) for i in range(4)]
    w, h = int(max(lengths[0], lengths[2])), int(max(lengths[1], lengths[3]))
    matrix = homography([(0, 0), (w, 0), (w, h), (0, h)], quad)
    height, width = height or h, width or w
    result = np.zeros((height, width, *image.shape[2:]))
    for i in range(height):
        for j in range(width):
            # Pixel centres at half coordinates when the size is another one.
            at = ((j + 0.5) * w / width - 0.5, (i + 0.5) * h / height - 0.5, 1)
            x, y, z = matrix @ at
            x, y = x / z, y / z
            for yy, wy in ((math.floor(y), 1 - y % 1), (math.floor(y) + 1, y % 1)):
                for xx, wx in ((math.floor(x), 1 - x % 1), (math.floor(x) + 1, x % 1)):
                    row = min(max(yy, 0), image.shape[0] - 1)
                    column = min(max(xx, 0), image.shape[1] - 1)
                    result[i, j] += wy * wx * image[row, column]
    return result


QUADS = [
    [[10, 8], [40, 12], [38, 30], [9, 26]],
    [[10.3, 8.7], [50.2, 3.1], [55.9, 20.4], [13.2, 28.8]],
    [[30, 5], [45, 20], [25, 40], [10, 25]],
    [[40, 30], [10, 30], [10, 12], [40, 12]],  # upside down
    [[-6, -5], [20, -3], [22, 12], [-4, 14]],  # partly outside
    [[20, 5], [30, 5], [45, 40], [8, 38]],  # strong perspective
]


@pytest.mark.parametrize("quad", QUADS)
@pytest.mark.parametrize("channel", [slice(0, 3), slice(0, 1), 0])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_upright_crop_is_that_of_eight_equations(kit, quad, channel, dtype):
    image = kit.smooth_image(45, 60)[:, :, channel].astype(dtype)
    before = image.copy()
    backend = kit.ready(PerspectiveCropMat, interpolation="linear")
    result = kit.run(backend, data=image, quad=quad)["result"]
    expected = slow_quad(image, quad)
    assert (result.dtype, result.shape) == (dtype, expected.shape)
    assert np.abs(result - expected).max() <= (1.01 if dtype is np.uint8 else 0.3)
    assert (image == before).all()
    for interpolation in ("cubic", "lanczos"):
        inside = crop_quad(image, quad, interpolation=interpolation)
        assert np.abs(inside - expected).max() <= 4


@pytest.mark.parametrize("quad", QUADS)
@pytest.mark.parametrize(
    ("options", "size"), [({"crop_h": 12, "crop_w": 50}, (12, 50)), ({"crop_h": 24}, None)]
)
def test_another_size_is_that_of_resizing_the_natural_crop(kit, quad, options, size):
    image = kit.smooth_image(45, 60)
    natural = crop_quad(image, quad, interpolation="linear")
    h, w = natural.shape[:2]
    size = size or (24, max(1, math.floor(24 * w / h + 0.5)))
    backend = kit.ready(PerspectiveCropMat, interpolation="linear", **options)
    result = kit.run(backend, data=image, quad=quad)["result"]
    assert result.shape[:2] == size
    assert np.abs(result - slow_quad(image, quad, *size)).max() <= 1.01
    inner = (slice(2, -2), slice(2, -2))  # at the border the one repeats, the other looks further
    assert np.abs(result[inner] - resize_image(natural, *size).astype(float)[inner]).max() <= 8


def test_an_upright_box_of_whole_numbers_gives_exactly_its_pixels():
    image = noise(40, 50, 3)
    for interpolation in ("linear", "cubic", "lanczos"):
        result = crop_quad(image, [[7, 5], [31, 5], [31, 22], [7, 22]], interpolation=interpolation)
        assert (result == crop_image(image, [7, 5, 31, 22])).all()


def test_a_tall_crop_is_turned_when_asked_so(kit):
    image = noise(40, 50, 3)
    tall = [[10, 4], [20, 4], [20, 19], [10, 19]]  # 10 wide, 15 high
    upright = image[4:19, 10:20]
    for ratio, expected in ((1.5, np.rot90(upright)), (1.51, upright), (None, upright)):
        backend = kit.ready(PerspectiveCropMat, rotate_upright=ratio)
        result = kit.run(backend, data=image, quad=tall)["result"]
        assert (result == expected).all()
        assert result.flags.c_contiguous
        assert not np.shares_memory(result, image)


def test_the_size_that_is_asked_for_is_that_after_turning(kit):
    image = kit.smooth_image(60, 60)
    tall = [[10, 4], [20, 4], [20, 34], [10, 34]]  # 10 wide, 30 high
    for options, size in (
        ({"crop_h": 20}, (20, 60)),
        ({"crop_w": 15}, (5, 15)),
        ({"crop_h": 8, "crop_w": 48}, (8, 48)),
    ):
        backend = kit.ready(PerspectiveCropMat, rotate_upright=1.5, **options)
        result = kit.run(backend, data=image, quad=tall)["result"]
        assert result.shape == (*size, 3)
        turned = resize_image(np.ascontiguousarray(np.rot90(image[4:34, 10:20])), *size)
        assert np.abs(result[1:-1, 1:-1].astype(int) - turned[1:-1, 1:-1]).max() <= 6


@pytest.mark.parametrize(
    ("quad", "got"),
    [
        (None, "None"),
        ("quad", "str"),
        ([1, 2, 3, 4, 5, 6, 7, 8], "int64 [8]"),
        ([[1, 2], [3, 4], [5, 6]], "int64 [3, 2]"),
        ([[1, 2], [3, 4], [5, 6], [7]], "list"),
        (np.zeros((4, 2), bool), "bool [4, 2]"),
    ],
)
def test_what_is_no_quadrilateral_is_refused(kit, quad, got):
    error = refused(kit, kit.ready(PerspectiveCropMat), data=noise(20, 30), quad=quad)
    assert (error.key, error.got) == ("quad", got)


@pytest.mark.parametrize(
    "quad",
    [
        [[5, 5], [5, 9], [9, 9], [9, 5]],  # counter-clockwise
        [[5, 5], [9, 9], [9, 5], [5, 9]],  # crossed
        [[5, 5], [15, 5], [8, 7], [5, 15]],  # not convex
        [[5, 5], [9, 5], [13, 5], [5, 9]],  # three in a line
        [[5, 5], [5, 5], [9, 9], [5, 9]],
        [[5, 5]] * 4,
        [[5, 5], [float("nan"), 5], [9, 9], [5, 9]],
        [[5, 5], [float("inf"), 5], [9, 9], [5, 9]],
        [[5, 5], [1e300, 5], [1e300, 1e300], [5, 9]],
        [[5, 5], [2e6, 5], [2e6, 9], [5, 9]],
        [[30, 5], [40, 5], [40, 9], [30, 9]],  # outside
        [[5, -9], [9, -9], [9, 0], [5, 0]],
    ],
)
def test_corners_that_make_no_picture_are_refused(kit, quad):
    error = refused(kit, kit.ready(PerspectiveCropMat), data=noise(20, 30), quad=quad)
    assert error.key == "quad"
    assert str(float(quad[0][0])) in error.got


def test_a_quadrilateral_beyond_all_limits_is_refused(kit):
    for side in (20_000, 900_000):
        quad = [[0, 0], [side, 0], [side, side], [0, side]]
        error = refused(kit, kit.ready(PerspectiveCropMat), data=noise(20, 30), quad=quad)
        assert (error.key, error.got) == ("quad", f"{side} x {side} pixels")
    small = kit.ready(PerspectiveCropMat, crop_h=4, crop_w=4)
    assert kit.run(small, data=noise(20, 30), quad=quad)["result"].shape == (4, 4)


@pytest.mark.parametrize("interpolation", ["linear", "cubic", "lanczos"])
@pytest.mark.parametrize("size", [(2, 32_767), (32_767, 2)])
def test_the_longest_side_can_be_made(interpolation, size):
    quad = [[0, 0], [30, 0], [30, 3], [0, 3]]
    image = np.full((20, 40), 9, np.uint8)
    result = crop_quad(image, quad, *size, interpolation=interpolation)
    assert result.shape == size
    assert (result == 9).all()


@pytest.mark.parametrize("at", [5, 40_000, 69_900])
def test_sides_beyond_sixteen_bits_are_read(kit, at):
    image = np.zeros((30, 70_000), np.uint8)
    image[:, at : at + 60] = kit.smooth_image(30, 60)[:, :, 2]
    quad = np.array([[5, 4], [50, 6], [49, 25], [4, 22]])
    expected = crop_quad(image[:, at : at + 60], quad)
    assert np.abs(crop_quad(image, quad + np.array([at, 0])).astype(int) - expected).max() <= 1
    whole = [[0, 0], [70_000, 0], [70_000, 30], [0, 30]]
    with pytest.raises(InputError):
        crop_quad(image, whole, 4, 4)


def torchvision_center_crop(image, height, width, fill=0):
    """What the documentation of torchvision says: pad on all sides where it is smaller, then cut the middle."""
    old_height, old_width = image.shape[:2]
    more_h, more_w = max(height - old_height, 0), max(width - old_width, 0)
    margins = [(more_h // 2, (more_h + 1) // 2), (more_w // 2, (more_w + 1) // 2)]
    image = np.pad(image, [*margins, (0, 0)][: image.ndim], constant_values=fill)
    top = int(round((image.shape[0] - height) / 2.0))  # noqa: RUF046 - as it is written there
    left = int(round((image.shape[1] - width) / 2.0))  # noqa: RUF046
    return image[top : top + height, left : left + width]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,)])
def test_the_middle_is_that_of_torchvision(kit, dtype, shape):
    for old in range(1, 12):
        image = noise(old, 13 - old, *shape, dtype=dtype)
        for height, width in ((4, 4), (5, 4), (1, 7), (11, 2), (12, 13)):
            expected = torchvision_center_crop(image, height, width, 7)
            backend = kit.ready(CenterCropMat, crop_h=height, crop_w=width, fill_value=7)
            result = kit.run(backend, data=image)["result"]
            np.testing.assert_array_equal(result, expected)
            assert result.dtype == dtype
            assert result is image or result.flags.owndata
    square = kit.run(kit.ready(CenterCropMat, crop_h=3), data=noise(9, 8, 3))["result"]
    np.testing.assert_array_equal(square, torchvision_center_crop(noise(9, 8, 3), 3, 3))


def test_a_middle_has_its_limits(kit):
    image = noise(4, 6, 3)
    backend = kit.ready(CenterCropMat, crop_h=8, fill_value=[1, 2])
    assert "2 channel(s)" in refused(kit, backend, data=image).expected
    backend = kit.ready(CenterCropMat, crop_h=2, max_pixels=23)
    assert "max_pixels" in refused(kit, backend, data=image).hint
    for options in ({}, {"crop_h": 0}, {"crop_h": 5, "max_pixels": 24}, {"crop_w": 5}):
        with pytest.raises(ValidationError):
            CenterCropMat.Options(**options)
    for sides in ((0,), (3, 0), (True,), (2.5,)):
        with pytest.raises(ValueError, match="at least 1"):
            center_crop_image(image, *sides)
    with pytest.raises(InputError, match="too large"):
        center_crop_image(image, 40_000, 1)
