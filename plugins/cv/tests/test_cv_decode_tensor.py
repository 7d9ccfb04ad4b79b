"""`Decode2Tensor` beside the four backends of which it is one."""

import cv2
import numpy as np
import pytest
from pydantic import ValidationError

import headrace
from headrace.errors import InputError
from headrace_cv.decode_tensor import Decode2Tensor

IMAGENET = {"scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def jpeg(height, width, channels=3):
    picture = np.random.default_rng(height).integers(0, 256, (height, width, channels), np.uint8)
    return cv2.imencode(".jpg", picture)[1].tobytes()


FILES = [jpeg(48, 64), jpeg(300, 200), jpeg(17, 500), jpeg(40, 40, 1), jpeg(24, 32)]


@pytest.mark.parametrize("color", ["rgb", "bgr"])
@pytest.mark.parametrize(
    "numbers", [{}, IMAGENET, {"scale": 1 / 127.5, "mean": 1.0}, {"std": -3.0}]
)
def test_the_result_is_that_of_the_four_backends(kit, color, numbers):
    config = {"backend": "S[DecodeMat,ResizeMat(24,32),CvtColorMat,Mat2Tensor]", "color": color}
    one = kit.ready(Decode2Tensor, resize_h=24, resize_w=32, color=color, **numbers)
    with headrace.pipe({**config, **numbers}) as four:
        for file in FILES:
            expected = four({"data": file})["result"]
            request = {"data": file, "color": "of something else"}
            made = kit.run(one, **request)
            np.testing.assert_array_equal(made["result"], expected)
            assert (made["result"].dtype, made["result"].shape) == (np.float32, (3, 24, 32))
            assert made["result"].flags.c_contiguous
            assert made["color"] == "of something else"


def test_a_broken_file_fails_alone_with_the_error_of_decoding(kit):
    one = kit.ready(Decode2Tensor, resize_h=8, resize_w=8, max_pixels=10_000)
    batch = [{"data": FILES[0]}, {"data": FILES[0][:200]}, {"data": FILES[1]}, {}]
    outcomes = one(batch)
    assert [type(outcome) for outcome in outcomes] == [type(None), *[InputError] * 3]
    assert [outcome.key for outcome in outcomes[1:]] == ["data"] * 3
    assert batch[0]["result"].shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "resize_h"),
        ({"resize_h": 8, "resize_w": 8, "mean": [1.0, 2.0]}, "one number or three"),
        ({"resize_h": 8, "resize_w": 8, "std": [1.0, 0.0, 2.0]}, "must not be 0"),
        ({"resize_h": 8, "resize_w": 8, "scale": 0.0}, "must not be 0"),
        ({"resize_h": 8, "resize_w": 8, "max_pixels": 63}, "more than max_pixels"),
        ({"resize_h": 8, "resize_w": 8, "scale": 1e38, "std": 1e-9}, "too large for float32"),
    ],
)
def test_options_that_make_no_tensor_are_refused(options, text):
    with pytest.raises(ValidationError, match=text):
        Decode2Tensor.Options(**options)


def test_a_later_backend_learns_what_is_normalised(kit):
    seen = []

    @headrace.register("CvTestSeen", replace=True)
    class Seen(headrace.Backend):
        def init(self, options, context):
            seen.append(context.store.instance.get("normalized"))

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("CvTestDecode2Tensor", Decode2Tensor, replace=True)
    with headrace.pipe({"backend": "S[CvTestDecode2Tensor(8,8,mean=2),CvTestSeen]"}):
        assert seen == [[(2.0, None)]]
