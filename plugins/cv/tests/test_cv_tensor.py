"""`Mat2Tensor` and `Tensor2Mat` against their formulas, value by value in double precision."""

import numpy as np
import pytest
from cv_helpers import noise, refused
from pydantic import ValidationError

import headrace
from headrace_cv import Normalization, image_to_tensor, tensor_to_image
from headrace_cv.tensor import Mat2Tensor, Tensor2Mat


def slow_tensor(image, scale=1.0, mean=0.0, std=1.0):
    image = image.reshape(*image.shape[:2], -1)
    height, width, channels = image.shape
    result = np.zeros((channels, height, width))
    for c in range(channels):
        m = mean[c] if isinstance(mean, list) else mean
        s = std[c] if isinstance(std, list) else std
        for y in range(height):
            for x in range(width):
                result[c, y, x] = (float(image[y, x, c]) * scale - m) / s
    return result


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 2), (5, 7, 3), (5, 7, 4)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 1 / 255},
        {"mean": 127.5, "std": 127.5},
        {"scale": 1 / 255, "mean": 0.5},
        {"std": 58.0},
        {"scale": 2, "std": -3},
    ],
)
def test_the_result_is_the_formula_plane_by_plane(kit, dtype, shape, options):
    image = noise(*shape, dtype=dtype)
    result = kit.run(kit.ready(Mat2Tensor, **options), data=image)["result"]
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    assert result.flags.owndata
    np.testing.assert_allclose(result, slow_tensor(image, **options), rtol=1e-5, atol=1e-5)
    assert (image == noise(*shape, dtype=dtype)).all()
    side_by_side = kit.run(kit.ready(Mat2Tensor, axes="hwc", **options), data=image)["result"]
    np.testing.assert_array_equal(side_by_side, result.transpose(1, 2, 0))
    assert (side_by_side.dtype, side_by_side.flags.c_contiguous) == (np.float32, True)
    assert side_by_side.flags.owndata


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    "options",
    [
        {"mean": 127.5, "std": 127.5},
        {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]},
        {"scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
        {"scale": -2.0, "mean": 101.0, "std": 3.0},
        {"scale": 0.0, "mean": 2.0},
        {"scale": 1e-30, "mean": 2.0},
    ],
)
def test_values_near_the_mean_keep_their_digits(options, dtype):
    image = np.repeat(np.arange(256, dtype=dtype).reshape(16, 16, 1), 3, axis=2)
    result = image_to_tensor(image, Normalization(**options))
    np.testing.assert_allclose(result, slow_tensor(image, **options), rtol=1e-5, atol=0)


@pytest.mark.parametrize("options", [{"mean": [1, 2, 3]}, {"std": [1]}, {"std": [1, 2, 3, 4]}])
def test_a_list_that_does_not_fit_the_channels_is_refused(kit, options):
    error = refused(kit, kit.ready(Mat2Tensor, **options), data=noise(5, 7, 2))
    assert error.key == "data"
    assert error.got == "uint8 [5, 7, 2]"


@pytest.mark.parametrize("options", [{"mean": [0, 1e37, 2], "std": 0.1}, {"scale": 1e38}])
def test_factors_that_float32_just_holds_are_taken(options):
    numbers = Mat2Tensor.Options(**options).model_dump(include={"scale", "mean", "std"})
    assert np.isfinite(
        image_to_tensor(np.ones((1, 1, 3), np.uint8), Normalization(**numbers))
    ).all()


@pytest.mark.parametrize(
    "values",
    [
        {"std": 0},
        {"mean": (1, 2), "std": (1, 2, 3)},
        {"scale": 1e300},
        {"std": 1e-300},
        {"mean": [], "std": 2},
        {"std": [[1, 2]]},
    ],
)
def test_a_wrong_normalization_is_refused(values):
    with pytest.raises(ValueError, match=r"std|float32"):
        Normalization(**values)


def test_a_normalization_takes_numbers_and_arrays_of_numpy():
    image = noise(3, 4, 3)
    mean, std = [1.5, 2.5, 3.5], 0.5
    expected = image_to_tensor(image, Normalization(0.25, mean, std))
    given = Normalization(np.float32(0.25), np.float32(mean), np.float32(std))
    assert given.channels == 3
    assert np.array_equal(image_to_tensor(image, given), expected)


def test_what_is_too_large_becomes_infinite_without_a_warning():
    image = np.full((2, 2, 3), 3e38, np.float32)
    assert np.isinf(image_to_tensor(image, Normalization(scale=10))).all()


@pytest.mark.parametrize("axes", ["chw", "hwc"])
@pytest.mark.parametrize("options", [{}, {"mean": 3.5, "std": 0.3}, {"mean": [1, 2, 3], "std": 7}])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_an_image_has_the_same_values_in_every_size(dtype, options, axes):
    small, normalization = noise(20, 30, 3, dtype=dtype), Normalization(**options)
    expected = image_to_tensor(small, normalization, axes=axes)
    times = (1, 15, 20) if axes == "chw" else (15, 20, 1)
    result = image_to_tensor(np.tile(small, (15, 20, 1)), normalization, axes=axes)
    assert result.flags.c_contiguous
    assert np.array_equal(result, np.tile(expected, times))


def slow_image(tensor, scale=1.0, mean=0.0, std=1.0):
    channels, height, width = tensor.shape
    result = np.zeros((height, width, channels), np.uint8)
    for c in range(channels):
        m = mean[c] if isinstance(mean, list) else mean
        s = std[c] if isinstance(std, list) else std
        for y in range(height):
            for x in range(width):
                value = round((float(tensor[c, y, x]) * s + m) / scale)  # halves to even
                result[y, x, c] = min(max(value, 0), 255)
    return result


NORMALIZED = [
    {},
    {"scale": 1 / 255},
    {"mean": 127.5, "std": 127.5},
    {"scale": 1 / 255, "mean": 0.5},
    {"std": 58.0},
    {"scale": 2, "std": -3},
    {"scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    {"mean": [1, 2, 3], "std": 7},
    {"mean": 3, "std": [1, 2, 3]},
]


@pytest.mark.parametrize("options", NORMALIZED)
def test_the_image_is_the_formula_backwards(kit, options):
    tensor = np.random.default_rng(1).normal(0, 1, (3, 5, 7)).astype(np.float32)
    spread = options or {"mean": 127.5, "std": 127.5}
    before = tensor.copy()
    result = kit.run(kit.ready(Tensor2Mat, **spread), data=tensor)["result"]
    assert (result.dtype, result.shape) == (np.uint8, (5, 7, 3))
    assert result.flags.c_contiguous
    # In float32 a value may fall to the other side of a half.
    difference = np.abs(result.astype(int) - slow_image(tensor, **spread))
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.99
    assert (tensor == before).all()


@pytest.mark.parametrize("options", NORMALIZED)
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[None]])
def test_every_value_of_an_image_survives_the_round_trip(kit, options, view):
    image = np.arange(256 * 3).astype(np.uint8).reshape(16, 16, 3)
    tensor = kit.run(kit.ready(Mat2Tensor, **options), data=image)["result"]
    back = kit.run(kit.ready(Tensor2Mat, **options), data=view(tensor))["result"]
    assert (back == image).all()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_all_numbers_of_channels_come_back(channels):
    image = noise(5, 7, channels)
    result = tensor_to_image(image_to_tensor(image))
    assert result.shape == (5, 7, channels)
    assert (result == image).all()
    one = Normalization(2.0, (3,) * channels, 4.0)
    assert (tensor_to_image(image_to_tensor(image, one), one.inverse()) == image).all()
    for view in (lambda t: t, lambda t: t[None]):
        tensor = image_to_tensor(image, one, axes="hwc")
        assert tensor.shape == image.shape
        assert (tensor_to_image(view(tensor), one.inverse(), axes="hwc") == image).all()


# As Keras' own `preprocess_input` of images [H, W, 3], red, green, blue, computes them: mode, formula, expression.
KERAS = {
    "tf": (
        lambda rgb: rgb / 127.5 - 1.0,
        f"S[CvtColorMat(rgb),Mat2Tensor(scale={1 / 127.5!r},mean=1,axes=hwc)]",
    ),
    "torch": (
        lambda rgb: (rgb / 255.0 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225],
        (
            f"S[CvtColorMat(rgb),Mat2Tensor(scale={1 / 255!r},mean=[0.485,0.456,0.406],"
            "std=[0.229,0.224,0.225],axes=hwc)]"
        ),
    ),
    "caffe": (
        lambda rgb: rgb[..., ::-1] - [103.939, 116.779, 123.68],
        "Mat2Tensor(mean=[103.939,116.779,123.68],axes=hwc)",
    ),
}


@pytest.mark.parametrize("mode", KERAS)
def test_the_preparations_of_keras_are_expressions(mode):
    formula, expression = KERAS[mode]
    rgb = noise(6, 5, 3)
    with headrace.pipe({"backend": expression}) as pipe:
        request = pipe({"data": np.ascontiguousarray(rgb[..., ::-1]), "color": "bgr"})
    expected = formula(rgb.astype(np.float64))
    assert request["result"].dtype == np.float32
    np.testing.assert_allclose(request["result"], expected, rtol=1e-5, atol=1e-5)


def test_a_wrong_layout_is_refused(kit):
    for backend in (Mat2Tensor, Tensor2Mat):
        with pytest.raises(ValidationError, match="'chw' or 'hwc'"):
            backend.Options(axes="nchw")
    with pytest.raises(ValueError, match="axes is one of chw, hwc"):
        image_to_tensor(noise(2, 2, 3), axes="HWC")
    planar = np.zeros((3, 7, 8), np.float32)
    error = refused(kit, kit.ready(Tensor2Mat, axes="hwc"), data=planar)
    assert "[H, W, C]" in error.expected


def test_halves_go_to_the_even_number_and_the_rest_is_limited():
    values = [0.5, 1.5, 2.5, 254.5, 254.51, 255.5, 300, -0.5, -7, 1e30, -1e30, np.inf, -np.inf]
    tensor = np.array(values, np.float32).reshape(1, 1, -1)
    expected = [0, 2, 2, 254, 255, 255, 255, 0, 0, 255, 0, 255, 0]
    assert tensor_to_image(tensor).ravel().tolist() == expected


def test_a_list_that_does_not_fit_the_planes_is_refused(kit):
    error = refused(
        kit, kit.ready(Tensor2Mat, mean=[1, 2, 3]), data=np.zeros((1, 2, 2), np.float32)
    )
    assert (error.key, error.got) == ("data", "float32 [1, 2, 2]")


def test_a_scale_of_zero_has_no_inverse():
    with pytest.raises(ValueError, match="scale"):
        Normalization(0.0).inverse()


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}, True),
        ({"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}, False),
        ({"scale": 255}, True),
        ({"scale": 0.0039, "mean": 123.7, "std": 58.4}, True),
        ({"mean": 127.5, "std": 127.5}, False),
        ({"mean": 123.7}, False),
        ({"scale": 1 / 255}, False),
        ({}, False),
    ],
)
def test_a_normalisation_that_contradicts_the_range_of_a_picture_is_told(options, wrong):
    for name in ("Mat2Tensor", "Decode2Tensor"):
        sides = {"resize_h": 8, "resize_w": 8} if name == "Decode2Tensor" else {}
        (element,) = headrace.plugins.resolve({"backend": name, **options, **sides}).walk()
        found = [one.code for one in element.cls.lint(element.options, 1)]
        assert found == ["normalization"] * wrong
