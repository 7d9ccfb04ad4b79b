"""Headrace backends for TensorRT, and the plain functions and tools they are made of.

Nothing is imported until it is used: ``import headrace_trt`` loads neither TensorRT nor CUDA, numpy
or onnx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_tensors import DeviceArray
    from headrace_trt.backends.infer import TensorrtCat, TensorrtInferTensor, TensorrtSplit
    from headrace_trt.backends.load_engine import LoadTensorrtEngine
    from headrace_trt.backends.onnx2tensorrt import Onnx2Tensorrt
    from headrace_trt.building.builder import BuildCancelledError, BuiltPlan, build_plan
    from headrace_trt.building.cache import CachedPlan, trim_cache
    from headrace_trt.building.obtaining import build_engine
    from headrace_trt.building.profiles import Profile
    from headrace_trt.building.settings import BuildSettings
    from headrace_trt.engines.engine import Engine, load_plan
    from headrace_trt.engines.layers import Layer
    from headrace_trt.libraries.tensorrt import Library, find_library
    from headrace_trt.onnx_models.image_input import fold_image_input
    from headrace_trt.onnx_models.precision import convert_precision
    from headrace_trt.onnx_models.quantization import quantize

__version__ = "0.1.0"

_HOME = {
    "backends.infer": "TensorrtCat TensorrtInferTensor TensorrtSplit",
    "backends.load_engine": "LoadTensorrtEngine",
    "backends.onnx2tensorrt": "Onnx2Tensorrt",
    "building.builder": "BuildCancelledError BuiltPlan build_plan",
    "building.cache": "CachedPlan trim_cache",
    "building.obtaining": "build_engine",
    "building.profiles": "Profile",
    "building.settings": "BuildSettings",
    "engines.engine": "Engine load_plan",
    "engines.layers": "Layer",
    "libraries.tensorrt": "Library find_library",
    "onnx_models.image_input": "fold_image_input",
    "onnx_models.precision": "convert_precision",
    "onnx_models.quantization": "quantize",
    "running.items": "DeviceArray",
}

__all__ = [
    "BuildCancelledError",
    "BuildSettings",
    "BuiltPlan",
    "CachedPlan",
    "DeviceArray",
    "Engine",
    "Layer",
    "Library",
    "LoadTensorrtEngine",
    "Onnx2Tensorrt",
    "Profile",
    "TensorrtCat",
    "TensorrtInferTensor",
    "TensorrtSplit",
    "__version__",
    "build_engine",
    "build_plan",
    "convert_precision",
    "find_library",
    "fold_image_input",
    "load_plan",
    "quantize",
    "trim_cache",
]

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
