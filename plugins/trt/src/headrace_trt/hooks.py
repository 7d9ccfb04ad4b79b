"""What this plugin brings besides backends: the definition TensorrtTensor and `headrace trt`."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["TENSORRT_TENSOR", "headrace_commands", "headrace_definitions"]

TENSORRT_TENSOR = (
    "IoC[ModelLoader[(.onnx)Onnx2Tensorrt,(.trt,.engine,.plan)LoadTensorrtEngine],"
    "TensorrtInferTensor;"
    "CatSplit[TensorrtCat,"
    "S[Reflect[pre_processor,Identity],TensorrtInferTensor,Reflect[post_processor,Identity]],"
    "TensorrtSplit]]"
)
"""A model file and requests with tensors: what ``TensorrtTensor`` stands for."""


@hookimpl
def headrace_definitions() -> dict[str, str]:
    """Give the definition of TensorrtTensor."""
    return {"TensorrtTensor": TENSORRT_TENSOR}


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Give the tools."""
    return {"trt": "headrace_trt.cli:app"}
