"""OnnxTensor keeps every rule of the contract; pytest collects a test per rule and class."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from headrace_ort.conformance import MODEL, OnnxTensorConformance
from headrace_testing import BackendConformance

pytestmark = pytest.mark.first("run ONNX models: the backend keeps every rule")

__all__ = ["OnnxTensorConformance"]

WEIGHTS = np.array([[1, -1], [0.5, 2], [0.25, 0.75]], np.float32)
BIAS = np.array([0.5, 1], np.float32)


def test_the_model_of_the_kit_is_what_its_comment_says(start):
    model = onnx.load(MODEL)
    onnx.checker.check_model(model)
    assert MODEL.stat().st_size < 1000
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    request = {"data": x, "request_size": 5}
    assert start(MODEL)([request]) is None
    assert np.allclose(request["result"], np.maximum(x @ WEIGHTS + BIAS, 0), atol=1e-6)


def saved(node, inputs, batch):
    """Write a model of one node over several inputs ``float32 [batch, 2]``; give its path."""
    ports = [helper.make_tensor_value_info(i, TensorProto.FLOAT, [batch, 2]) for i in inputs]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 2])
    graph = helper.make_graph([helper.make_node(node, inputs, ["y"])], "graph", ports, [out])
    opset = [helper.make_opsetid("", 13)]
    path = Path(tempfile.mkdtemp()) / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=7), path)
    return str(path)


class SeveralInputs(BackendConformance):
    """A model with two inputs, one of them under another key; `data` is not read."""

    options = {"model": saved("Add", ["a", "b"], "N"), "inputs": {"b": "shift"}}  # noqa: RUF012
    expression = "OnnxTensor"

    def make_item(self, k):
        a = np.array([k, 2 * k + 1], np.float32)
        return {"data": "not read", "a": a, "shift": np.array([0.5, k], np.float32)}


class FixedBatch(BackendConformance):
    """A model that is fixed to two rows."""

    expression = "OnnxTensor"
    options = {"model": saved("Relu", ["x"], 2)}  # noqa: RUF012

    def make_item(self, k):
        return {"data": np.array([k - 2, k], np.float32)}


def test_what_it_reads_is_known_once_the_model_is(start):
    assert start(MODEL).reads == ("data",)
    keys = start(SeveralInputs.options["model"], inputs={"b": "shift"}).reads
    assert keys == ("a", "shift")
