"""Small models made on the spot, and ready backends that are closed at the end."""

import importlib.util

import pytest
from engine_rules import write
from onnx import TensorProto

import headrace
from headrace_ort import OnnxTensor

# A machine with a GPU need not have all that the other tests use.
_NEEDS = {
    "test_ort_forward.py": ("hypothesis", "rapidocr"),
    "test_ort_setup.py": ("rapidocr",),
    "test_ort_conformance.py": ("hypothesis",),
    "test_ort_gpu_conformance.py": ("hypothesis",),
}
collect_ignore = [
    file
    for file, libraries in _NEEDS.items()
    if not all(importlib.util.find_spec(library) for library in libraries)
]


@pytest.fixture
def save(tmp_path):
    """Write a model of (op, inputs, outputs, attributes) nodes and give its path."""

    def saved(nodes, inputs, outputs, weights=(), name="model.onnx", **saving):
        path = tmp_path / name
        write(path, nodes, inputs, outputs, weights, **saving)
        return path

    return saved


@pytest.fixture
def one_to_one(save):
    """A model of one node with one input and one output of the same type and shape."""

    def write(shape, op="Identity", dtype=TensorProto.FLOAT, out_shape=None, **attrs):
        out = shape if out_shape is None else out_shape
        return save([(op, ["x"], ["y"], attrs)], [("x", dtype, shape)], [("y", dtype, out)])

    return write


@pytest.fixture
def start():
    """Return ready backends: ``start(model, context={...}, **options)``."""
    started = []

    def make(model, context=None, **options):
        backend = OnnxTensor()
        given = {"threads": 1, "batch": {}, **(context or {})}
        given["batch"] = headrace.InitContext.Batch(**given["batch"])
        context = headrace.InitContext(**given)
        backend._start(OnnxTensor.Options(model=model, **options), context)
        backend.warm_up()
        started.append(backend)
        return backend

    yield make
    for backend in started:
        backend._stop()
