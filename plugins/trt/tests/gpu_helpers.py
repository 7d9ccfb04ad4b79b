"""What the tests on a device share: expressions, options, inputs, and answers of a CPU."""

import numpy as np
import pytest

ALONE = "IoC[Onnx2Tensorrt,TensorrtInferTensor;TensorrtInferTensor]"
GATHERED = (
    "IoC[Onnx2Tensorrt,TensorrtInferTensor;CatSplit[TensorrtCat,TensorrtInferTensor,TensorrtSplit]]"
)
LOADED = "IoC[LoadTensorrtEngine,TensorrtInferTensor;TensorrtInferTensor]"
BOTH = pytest.mark.parametrize("backend", [ALONE, GATHERED], ids=["alone", "gathered"])
PROFILE = {"min": "x:1x3x16x16", "opt": "x:4x3x16x16", "max": "x:8x3x32x32"}
QUICK = {"optimization_level": 0, "tf32": False}


def expected_of(model, **feeds):
    """Return the answer of a CPU to a file or a model, without anything of TensorRT."""
    given = model.SerializeToString() if hasattr(model, "graph") else str(model)
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(given if isinstance(given, str) else model).run(None, feeds)
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(given, providers=providers).run(None, feeds)


def relative(got, expected):
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def images(count, size=16, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((count, 3, size, size)).astype(np.float32)
