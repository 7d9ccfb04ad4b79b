"""Models of ONNX that several distributions serve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def write_scaled(folder: Path) -> Path:
    """Write a model that gives ``x * scale + shift``; for ``scale`` and ``shift`` it has values of its own."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    scale = numpy_helper.from_array(np.float32(2), "scale")
    shift = numpy_helper.from_array(np.zeros((1, 2), np.float32), "shift")
    ports = [("x", ["n", 2]), ("scale", []), ("shift", ["n", 2])]
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "scale"], ["product"]),
            helper.make_node("Add", ["product", "shift"], ["y"]),
        ],
        "scaled",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [scale, shift],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "scaled.onnx"
    onnx.save(model, str(path))
    return path
