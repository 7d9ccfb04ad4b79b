"""`CvtColorMat`: every pair of colours, and requests that do not say what they hold."""

import numpy as np
import pytest
from cv_helpers import refused

from headrace.errors import InputError
from headrace_cv.color import CvtColorMat


def noise(channels, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 256, (5, 6, channels)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("source", "target"), [("rgb", "bgr"), ("bgr", "rgb")])
def test_rgb_and_bgr_are_each_other_reversed(kit, dtype, source, target):
    image = noise(3, dtype)
    request = kit.run(kit.ready(CvtColorMat, color=target), data=image, color=source)
    assert (request["result"] == image[:, :, ::-1]).all()
    assert request["result"].dtype == dtype
    assert request["color"] == target
    assert (image == noise(3, dtype)).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("source", ["rgb", "bgr"])
def test_gray_is_the_weighted_sum_with_a_channel_axis(kit, dtype, source):
    image = noise(3, dtype)
    red, green, blue = np.moveaxis(image if source == "rgb" else image[:, :, ::-1], 2, 0)
    expected = 0.299 * red + 0.587 * green + 0.114 * blue
    request = kit.run(kit.ready(CvtColorMat, color="gray"), data=image, color=source)
    assert request["result"].shape == (5, 6, 1)
    assert request["result"].dtype == dtype
    assert np.abs(request["result"][:, :, 0] - expected).max() < 0.6


@pytest.mark.parametrize("target", ["rgb", "bgr"])
@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 1)])
def test_from_gray_come_three_equal_channels(kit, target, shape):
    image = noise(1).reshape(shape)
    request = kit.run(kit.ready(CvtColorMat, color=target), data=image, color="gray")
    assert (request["result"] == np.repeat(noise(1), 3, axis=2)).all()


@pytest.mark.parametrize(("color", "channels"), [("rgb", 3), ("bgr", 3), ("gray", 1)])
def test_an_image_that_has_the_color_passes_untouched(kit, color, channels):
    image = noise(channels)
    request = kit.run(kit.ready(CvtColorMat, color=color), data=image, color=color)
    assert request["result"] is image
    assert request["color"] == color


def test_a_gray_image_without_channel_axis_gets_one(kit):
    image = noise(1)[:, :, 0]
    result = kit.run(kit.ready(CvtColorMat, color="gray"), data=image, color="gray")["result"]
    assert result.shape == (5, 6, 1)
    assert np.shares_memory(result, image)


@pytest.mark.parametrize("color", ["hsv", "", None, 3, ["rgb"], "RGB"])
def test_an_unknown_color_is_refused(kit, color):
    error = refused(kit, kit.ready(CvtColorMat, color="rgb"), data=noise(3), color=color)
    assert error.key == "color"
    assert error.got is not None


@pytest.mark.parametrize(("color", "channels"), [("rgb", 1), ("bgr", 4), ("gray", 3), ("rgb", 2)])
def test_an_image_that_does_not_fit_its_color_is_refused(kit, color, channels):
    request = {"data": noise(channels), "color": color}
    for target in ("rgb", "bgr", "gray"):
        (error,) = kit.ready(CvtColorMat, color=target)([request])
        assert isinstance(error, InputError)
        assert error.key == "data"
        assert request["color"] == color
        assert "result" not in request


def test_a_batch_that_mixes_colors_converts_each_from_its_own(kit):
    batch = [{"data": noise(3), "color": color} for color in ("rgb", "bgr", "hsv")]
    outcomes = kit.ready(CvtColorMat, color="rgb")(batch)
    assert [type(o) for o in outcomes] == [type(None), type(None), InputError]
    assert (batch[0]["result"] == noise(3)).all()
    assert (batch[1]["result"] == noise(3)[:, :, ::-1]).all()
