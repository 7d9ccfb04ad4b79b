"""Mean and std of a node are applied once, by whichever element they reach first."""

import numpy as np
import pytest

import headrace
from headrace_cv.tensor import Mat2Tensor
from headrace_trt.backends.onnx2tensorrt import _settings
from headrace_trt.backends.options import BuildOptions

NORMALIZE = {"mean": 127.5, "std": [64.0, 60.0, 50.0]}


@pytest.mark.parametrize("image_input", [False, True])
def test_what_mat2tensor_applies_is_not_folded_in_again(tmp_path, image_input):
    model = tmp_path / "any.onnx"
    model.touch()
    context = headrace.InitContext(batch=headrace.InitContext.Batch(max=4))
    options = BuildOptions(model=model, image_input=image_input, **NORMALIZE)
    folded = ((127.5,), (64.0, 60.0, 50.0))
    before = _settings(options, context)
    assert (before.mean, before.std) == folded
    mat = Mat2Tensor()
    mat._start(Mat2Tensor.Options(**NORMALIZE), context)
    after = _settings(options, context)
    assert (after.mean, after.std) == (folded if image_input else (None, None))
    other = _settings(BuildOptions(model=model, mean=5.0), context)
    assert other.mean == (5.0,), "numbers of its own are its own"
    request = {"data": np.full((2, 2, 3), 255, np.uint8)}
    mat([request])
    assert np.allclose(request["result"][0], 127.5 / 64)
    mat._stop()
