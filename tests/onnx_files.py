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


def save_network(path: Path, node: str, inputs: list[str], dtype: str, shape: list) -> None:
    """Save a network of one node, from `x` of the shape to `y` of a row for each row."""
    onnx = pytest.importorskip("onnx")
    tensor, kind = onnx.helper.make_tensor_value_info, getattr(onnx.TensorProto, dtype)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(node, inputs, ["y"])],
        "network",
        [tensor("x", kind, ["n", *shape])],
        [tensor("y", kind, ["n", 3, *(1 for _ in shape[1:])])],
    )
    opsets = [onnx.helper.make_opsetid("", 13)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def save_doubler(path: Path) -> None:
    """Save a network that doubles rows of three numbers."""
    save_network(path, "Add", ["x", "x"], "FLOAT", [3])
