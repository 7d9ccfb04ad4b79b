"""What ``headrace conformance headrace-trt`` judges: expressions and requests, on a CUDA device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.testing import BackendConformance

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

MODEL = Path(__file__).with_name("conformance.onnx")
"""``y = relu(x W + b)``: ``x`` is ``float32 [N, 3]``, ``y`` is ``float32 [N, 2]``."""

_ALONE = "IoC[Onnx2Tensorrt,TensorrtInferTensor;TensorrtInferTensor]"
_GATHERED = (
    "IoC[Onnx2Tensorrt,TensorrtInferTensor;CatSplit[TensorrtCat,TensorrtInferTensor,TensorrtSplit]]"
)


class _OnCuda(BackendConformance):
    """Samples for a model with one input, in batches of any size."""

    __test__ = False
    options: Mapping[str, Any] = {"model": str(MODEL), "optimization_level": 0, "max": 8}

    def unavailable(self) -> str | None:
        """Say why backends of TensorRT cannot be run here, or None."""
        from headrace.errors import HeadraceError
        from headrace_trt.cuda import load_cuda
        from headrace_trt.library import find_library

        try:
            find_library()
            cuda = load_cuda()
        except HeadraceError as error:
            return str(error).splitlines()[0]
        return None if cuda.device_count() else "no CUDA device"

    def make_item(self, k: int) -> Request:
        """Give one sample."""
        return {"data": np.array([k, 1.5, -k], np.float32)}


class TensorrtInferTensorConformance(_OnCuda):
    """The engine on requests as they come."""

    __test__ = True
    expression = _ALONE


class Onnx2TensorrtConformance(_OnCuda):
    """The builder, through the word that runs its engine."""

    __test__ = True
    expression = _ALONE


class LoadTensorrtEngineConformance(_OnCuda):
    """The loader, which is judged by its class where no plan is at hand."""

    __test__ = True
    expression = "IoC[LoadTensorrtEngine,TensorrtInferTensor;TensorrtInferTensor]"

    @property
    def options(self) -> dict[str, Any]:  # type: ignore[override]
        """Build a plan for the device of this machine, once."""
        return {"model": str(_plan()), "max": 8}


class TensorrtCatConformance(_OnCuda):
    """Gathering, running and splitting."""

    __test__ = True
    expression = _GATHERED


class TensorrtSplitConformance(_OnCuda):
    """Gathering, running and splitting."""

    __test__ = True
    expression = _GATHERED


class TensorrtTensorConformance(_OnCuda):
    """The definition that puts all words together."""

    __test__ = True
    expression = "TensorrtTensor"


def _plan() -> Path:
    """Give a plan of `MODEL` in the engine cache."""
    from headrace_trt.obtaining import build_engine
    from headrace_trt.settings import BuildSettings

    settings = BuildSettings(model=MODEL, min=1, max=8, optimization_level=0)
    return build_engine(settings).path
