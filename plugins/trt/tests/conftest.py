"""Small models made on the spot, the real builder, and a device of host memory."""

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_rules import write
from onnx import TensorProto

import headrace
from headrace.errors import HeadraceError
from headrace_trt.engines import engine as engine_module

HERE = Path(__file__).parent
DEVICE = os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0")


def _load(name):
    """Import a module that lies beside the tests."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


fakes = _load("fake_device")
_load("gpu_helpers")
_load("trt_expressions")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Keep the tests out of the user's engine cache."""
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def save(tmp_path):
    """Write a model of (op, inputs, outputs, attributes) nodes and give its path."""

    def saved(nodes, inputs, outputs, weights=(), name="model.onnx", **saving):
        path = tmp_path / name
        write(path, nodes, inputs, outputs, weights, **saving)
        return path

    return saved


@pytest.fixture
def small_net(save):
    """``float32 [n, 3, h, w]`` to ``float32 [n, 10]``: convolution, ReLU, mean, matrix."""
    return save(*_small_net())


def _small_net():
    random = np.random.default_rng(7)
    nodes = [
        ("Conv", ["x", "w"], ["c"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["c"], ["r"], {}),
        ("GlobalAveragePool", ["r"], ["p"], {}),
        ("Flatten", ["p"], ["f"], {}),
        ("MatMul", ["f", "m"], ["y"], {}),
    ]
    weights = [
        ("w", random.standard_normal((8, 3, 3, 3)).astype(np.float32)),
        ("m", random.standard_normal((8, 10)).astype(np.float32)),
    ]
    inputs = [("x", TensorProto.FLOAT, ["n", 3, "h", "w"])]
    return nodes, inputs, [("y", TensorProto.FLOAT, ["n", 10])], weights


@pytest.fixture
def device(monkeypatch):
    """A machine whose one device is host memory, and plans that `plan` makes."""
    cuda = fakes.FakeCuda()
    library = fakes.FakeLibrary()

    def load_plan(library, cuda, plan, *, label, ordinal=0, **_):
        sidecar = json.loads(plan)
        profiles = [
            {name: tuple(map(tuple, shapes)) for name, shapes in profile.items()}
            for profile in sidecar["profiles"]
        ]
        more = (sidecar["data_dependent"], sidecar["narrowed"], sidecar.get("on_host", ()))
        found = fakes.FakeEngine(cuda, sidecar["model"], profiles, *more)
        cuda.engines.append(found)
        return engine_module.Engine(library, None, found, label=label, ordinal=ordinal)

    cuda.engines = []
    monkeypatch.setattr("headrace_trt.engines.engine.load_plan", load_plan)
    monkeypatch.setattr("headrace_trt.engines.engine.Engine.layers", lambda self: [])
    monkeypatch.setattr("headrace_trt.libraries.tensorrt.find_library", lambda *_, **__: library)
    monkeypatch.setattr("headrace_trt.libraries.cuda.load_cuda", lambda: cuda)
    return cuda


@pytest.fixture
def plan(tmp_path):
    """Write a plan for the fake device: ``plan(model, {"x": (min, opt, max)}, ...)``."""

    def write(model, *profiles, data_dependent=(), narrowed=False, on_host=(), name="model.plan"):
        path = tmp_path / name
        sidecar = {"model": str(model), "profiles": profiles, "data_dependent": data_dependent}
        sidecar |= {"narrowed": narrowed, "on_host": on_host}
        path.write_text(json.dumps(sidecar))
        return path

    return write


@pytest.fixture
def pipe():
    """Make pipelines that are closed at the end."""
    made = []

    def make(**config):
        made.append(headrace.pipe({"device": DEVICE, **config}))
        return made[-1]

    yield make
    for found in made:
        found.close()


@pytest.fixture
def rtx():
    """The real builder of TensorRT for RTX, which needs no device."""
    pytest.importorskip("tensorrt_rtx")
    from headrace_trt.libraries.tensorrt import load_library

    return load_library(("tensorrt_rtx",), importlib.import_module)


@pytest.fixture(scope="module")
def cuda():
    """The CUDA runtime and TensorRT; the tests are skipped with the reason where they are not."""
    from headrace_trt.libraries.cuda import load_cuda
    from headrace_trt.libraries.tensorrt import find_library

    try:
        library = find_library()
        found = load_cuda()
    except HeadraceError as error:
        pytest.skip(str(error).splitlines()[0])
    if not found.device_count():
        pytest.skip("no CUDA device")
    if library.is_rtx and found.describe(0)["compute_capability"] == "9.0":
        pytest.skip("TensorRT for RTX does not run on compute capability 9.0")
    found.set_device(0)
    return found


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory):
    """One engine cache for the module: what is built twice is built once."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture
def gpu_cache(own_cache, one_cache, monkeypatch, cuda):
    """Tests on a device share the engines of their module."""
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(one_cache))


@pytest.fixture
def rtx_or_full():
    """Skip where the library measures no kernels while it builds."""
    from headrace_trt.libraries.tensorrt import find_library

    library = find_library()
    if library.is_rtx:
        pytest.skip("TensorRT for RTX has no timing cache")
    return library


@pytest.fixture
def linear(save):
    """``y = relu(x W)`` with ``x float32 [n, 3]``; gives the path and the function."""
    weights = np.float32([[1, -1], [0.5, 2], [0.25, 0.75]])
    path = save(
        [("MatMul", ["x", "w"], ["h"], {}), ("Relu", ["h"], ["y"], {})],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", 2])],
        [("w", weights)],
    )
    return path, lambda x: np.maximum(np.asarray(x, np.float32) @ weights, 0)


@pytest.fixture
def image(save):
    """A convolution with dynamic height and width; gives the path and the function."""
    kernel = np.random.default_rng(0).standard_normal((2, 3, 3, 3)).astype(np.float32)
    path = save(
        [("Conv", ["x", "w"], ["y"], {"pads": [1, 1, 1, 1]})],
        [("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [("y", TensorProto.FLOAT, ["n", 2, "h", "w"])],
        [("w", kernel)],
    )
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    return path, lambda x: session.run(None, {"x": x[None]})[0][0]
