"""The plugin's hooks: the definition TensorrtTensor, the command `headrace trt`, and engines as configurations."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["TENSORRT_TENSOR", "headrace_commands", "headrace_definitions", "headrace_readers"]

TENSORRT_TENSOR = (
    "IoC[ModelLoader[(.onnx)Onnx2Tensorrt,(.trt,.engine,.plan)LoadTensorrtEngine],"
    "TensorrtInferTensor;"
    "CatSplit[TensorrtCat,"
    "S[Reflect[pre_processor,Identity],TensorrtInferTensor,Reflect[post_processor,Identity]],"
    "TensorrtSplit]]"
)
"""The expression that ``TensorrtTensor`` is short for: it loads or builds a model file, and runs tensors."""


@hookimpl
def headrace_definitions() -> dict[str, str]:
    """Return the definition of TensorrtTensor."""
    return {"TensorrtTensor": TENSORRT_TENSOR}


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the tools."""
    return {"trt": "headrace_trt.tools.cli:app"}


@hookimpl
def headrace_readers() -> dict[str, str]:
    """Return the suffixes of engines."""
    return dict.fromkeys((".plan", ".engine"), "headrace_trt.reading:tables_of")
