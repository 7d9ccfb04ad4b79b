"""The plugin's hooks: the word TensorrtTensor, the command `headrace trt`, and engines as configurations."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["TENSORRT_TENSOR", "headrace_commands", "headrace_readers", "headrace_rewriters"]

TENSORRT_TENSOR = (
    "IoC[Onnx2Tensorrt,TensorrtInferTensor;"
    "CatSplit[TensorrtCat,"
    "S[Reflect[pre_processor,Identity],TensorrtInferTensor,Reflect[post_processor,Identity]],"
    "TensorrtSplit]]"
)
"""The expression that ``TensorrtTensor`` is short for: it builds a model file, or loads an engine, and runs tensors."""


@hookimpl
def headrace_rewriters() -> dict[str, str]:
    """Return what writes the expression in place of TensorrtTensor."""
    return {"TensorrtTensor": "headrace_trt.writing:written_out"}


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the tools."""
    return {"trt": "headrace_trt.tools.cli:app"}


@hookimpl
def headrace_readers() -> dict[str, str]:
    """Return the suffixes of engines."""
    return dict.fromkeys((".plan", ".engine"), "headrace_trt.reading:tables_of")
