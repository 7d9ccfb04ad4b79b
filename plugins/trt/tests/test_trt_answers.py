"""Outputs that belong to a whole run, inputs without batch axis, and what is cut: compared with bare ONNX Runtime."""

import numpy as np
import pytest
from trt_expressions import PLAIN, SHORT

from headrace.errors import SetupError

onnxruntime = pytest.importorskip("onnxruntime")


def test_an_output_is_cut_to_what_the_request_brought(device, plan, pipe, image):
    model, expected = image
    made = plan(model, {"x": ((1, 3, 4, 4), (4, 3, 6, 6), (8, 3, 9, 9))})
    config = {"model": str(made), "max": 8, "ragged": "pad"}
    p = pipe(backend=SHORT, **config)
    small, large = (np.ones((3, n, n), np.float32) for n in (4, 7))
    padded = np.zeros((3, 7, 7), np.float32)
    padded[:, :4, :4] = small
    first, second = p([{"data": small}, {"data": large}])
    np.testing.assert_allclose(first["result"], expected(padded)[:, :4, :4], rtol=1e-5)
    np.testing.assert_allclose(second["result"], expected(large), rtol=1e-5)
    with pytest.raises(SetupError, match="`crop`"):
        pipe(backend=PLAIN, **config)
    with pytest.raises(SetupError, match="on the device"):
        pipe(backend=SHORT, output_device="device", **config)
