"""The rules that all engines keep."""

from pathlib import Path

import onnx
from engine_rules import EngineRules


class TestRules(EngineRules):
    row_sizes = False

    def config(self, path, inputs):
        shapes = {}
        for name, kind, shape in inputs:
            sample = shape[1:] if shape[0] == "n" else shape
            axes = "x".join("-1" if isinstance(n, str) else str(n) for n in sample)
            shapes[name] = f"{onnx.helper.tensor_dtype_to_np_dtype(kind)}:{axes}"
        factory = f"{Path(__file__).with_name('onnx_in_torch.py')}:OnnxModule"
        return {
            "backend": "TorchModule",
            "module": factory,
            "args": {"path": str(path)},
            "shape": shapes,
        }
