"""Headrace backends for TensorRT, and the plain functions and tools they are made of.

Nothing is imported until it is used: ``import headrace_trt`` loads neither TensorRT nor CUDA, numpy
or onnx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_tensors import DeviceArray
    from headrace_trt.building.builder import BuildCancelledError, BuiltPlan, build_plan
    from headrace_trt.building.cache import CachedPlan, trim_cache
    from headrace_trt.building.obtaining import build_engine
    from headrace_trt.building.profiles import Profile
    from headrace_trt.building.settings import BuildSettings
    from headrace_trt.engines.engine import Engine, load_plan
    from headrace_trt.engines.layers import Layer
    from headrace_trt.infer import TensorrtCat, TensorrtInferTensor, TensorrtSplit
    from headrace_trt.libraries.tensorrt import Library, find_library
    from headrace_trt.load_engine import LoadTensorrtEngine
    from headrace_trt.onnx2tensorrt import Onnx2Tensorrt
    from headrace_trt.onnx_models.image_input import fold_image_input
    from headrace_trt.onnx_models.precision import convert_precision
    from headrace_trt.onnx_models.quantization import quantize

__version__ = "0.1.0"

_HOME = {
    "building.builder": "BuildCancelledError BuiltPlan build_plan",
    "building.cache": "CachedPlan trim_cache",
    "engines.engine": "Engine load_plan",
    "onnx_models.image_input": "fold_image_input",
    "infer": "TensorrtCat TensorrtInferTensor TensorrtSplit",
    "running.items": "DeviceArray",
    "engines.layers": "Layer",
    "libraries.tensorrt": "Library find_library",
    "load_engine": "LoadTensorrtEngine",
    "building.obtaining": "build_engine",
    "onnx2tensorrt": "Onnx2Tensorrt",
    "onnx_models.precision": "convert_precision",
    "building.profiles": "Profile",
    "onnx_models.quantization": "quantize",
    "building.settings": "BuildSettings",
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

__getattr__, __dir__ = lazy_names(__name__, _HOME)
