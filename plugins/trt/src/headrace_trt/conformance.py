"""For ``headrace conformance headrace-trt``: an expression and requests for each backend, on a CUDA device.

They are judged on ``cuda:0``. ``HEADRACE_TORCH_DEVICE=cuda:1`` judges them on another device.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.keys import Request

__all__ = [
    "LoadTensorrtEngineConformance",
    "Onnx2TensorrtConformance",
    "TensorrtCatConformance",
    "TensorrtInferTensorConformance",
    "TensorrtSplitConformance",
    "TensorrtTensorConformance",
]

_NODE = {"device": os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0"), "max": 8}
"""The keys of every node."""

MODEL = Path(__file__).with_name("conformance.onnx")
"""``y = relu(x W + b)``: ``x`` is ``float32 [N, 3]``, ``y`` is ``float32 [N, 2]``."""


class _OnCuda(BackendConformance):
    """Samples for a model with one input, in batches of any size."""

    __test__ = False
    options: Mapping[str, Any] = {**_NODE, "model": str(MODEL), "optimization_level": 0}

    def unavailable(self) -> str | None:
        """Say why backends of TensorRT cannot be run here, or None."""
        from headrace.errors import HeadraceError
        from headrace_trt.libraries.cuda import load_cuda
        from headrace_trt.libraries.tensorrt import find_library

        try:
            find_library()
            cuda = load_cuda()
        except HeadraceError as error:
            return str(error).splitlines()[0]
        return None if cuda.device_count() else "no CUDA device"

    def make_item(self, k: int) -> Request:
        """Return one sample."""
        return {"data": np.array([k, 1.5, -k], np.float32)}

    def expected(self, k: int) -> Any:
        """Return the sum of products by hand."""
        y = [k + 0.5 * 1.5 - 0.25 * k + 0.5, -k + 2 * 1.5 - 0.75 * k + 1]
        return np.maximum(np.array(y, np.float32), 0)


class TensorrtInferTensorConformance(_OnCuda):
    """The engine on requests as they come."""

    __test__ = True
    expression = "TensorrtInferTensor[Onnx2Tensorrt]"


class TensorrtTensorConformance(_OnCuda):
    """The definition that puts all backends together."""

    __test__ = True
    expression = "TensorrtTensor"


class Onnx2TensorrtConformance(_OnCuda):
    """The backend that builds. It is never called."""

    __test__ = True
    expression = "Onnx2Tensorrt"
    inside = TensorrtTensorConformance


class LoadTensorrtEngineConformance(_OnCuda):
    """The backend that loads a plan. It is never called."""

    __test__ = True
    expression = "LoadTensorrtEngine"
    options: Mapping[str, Any] = {**_NODE, "model": str(MODEL)}
    inside = TensorrtTensorConformance


class TensorrtCatConformance(_OnCuda):
    """The part that concatenates a batch."""

    __test__ = True
    expression = "TensorrtCat"
    options: Mapping[str, Any] = _NODE
    inside = TensorrtTensorConformance


class TensorrtSplitConformance(_OnCuda):
    """The part that hands the rows out."""

    __test__ = True
    expression = "TensorrtSplit"
    options: Mapping[str, Any] = _NODE
    inside = TensorrtTensorConformance
