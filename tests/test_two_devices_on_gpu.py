"""Two devices in one process: linked nodes, arrays that come from elsewhere, and memory where nothing asked for it."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from processes import run_process

import headrace
from headrace.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device"),
]
HERE = f"{__name__}:"
FIRST, OTHER, WIDTH = "cuda:0", "cuda:1", 64


class PlusOne(torch.nn.Module):
    """Add one, by many kernels, so that a result that is read too early is wrong."""

    def forward(self, x):
        y = x
        for _ in range(50):
            y = y + 1
        return y - 49


class Placed(torch.nn.Module):
    """Makes tensors on the device on which it was exported."""

    def forward(self, x):
        return x + torch.arange(x.shape[1], device=x.device)


@pytest.fixture
def engine(request, tmp_path, monkeypatch):
    """Give a node that computes ``x + 1`` by an engine; its library is imported."""
    onnx = pytest.importorskip("onnx")
    if request.param == "TensorrtTensor":
        pytest.importorskip("tensorrt")
    else:
        runtime = pytest.importorskip("onnxruntime")
        if "CUDAExecutionProvider" not in runtime.get_available_providers():
            pytest.skip("this build of ONNX Runtime has no CUDA provider")
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path / "cache"))
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "c"], ["y"])],
        "graph",
        [onnx.helper.make_tensor_value_info("x", kind, ["n", WIDTH])],
        [onnx.helper.make_tensor_value_info("y", kind, ["n", WIDTH])],
        [onnx.numpy_helper.from_array(np.ones(1, np.float32), "c")],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "net.onnx"
    )
    return {"backend": request.param, "model": str(tmp_path / "net.onnx"), "max": 4}


ENGINES = pytest.mark.parametrize("engine", ["OnnxTensor", "TensorrtTensor"], indirect=True)


def net(backend, device, **keys):
    return {
        "backend": backend,
        "TorchModule::module": f"{HERE}PlusOne",
        "TorchModule::shape": f"float32:{WIDTH}",
        "device": device,
        "max": 4,
        **keys,
    }


def answers(nodes, count=200):
    """Send different numbers from eight threads, half of them as tensors on the first device; give wrong answers."""

    def send(number):
        value = np.full(WIDTH, number, np.float32)
        given = torch.from_numpy(value).to(FIRST) if number % 2 else value
        result = pipe({"data": given})["result"]
        if not isinstance(result, (torch.Tensor, np.ndarray)):
            result = torch.from_dlpack(result)
        found = torch.as_tensor(result).cpu().unique().tolist()
        return None if found == [number + 2] else (number, found)

    with headrace.pipe(nodes) as pipe, ThreadPoolExecutor(8) as pool:
        return [wrong for wrong in pool.map(send, range(count)) if wrong is not None]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("S[GpuTensor,TorchModule]", "S[GpuTensor,TorchModule]"),
        ("S[GpuTensor,TorchModule]", "S[FixTensor,TorchModule]"),
        ("S[GpuTensor,TorchModule,CpuTensor]", "TorchModule"),
    ],
)
@pytest.mark.parametrize("devices", [(FIRST, OTHER), (OTHER, FIRST), ([FIRST, OTHER],) * 2])
def test_links_that_are_accepted_give_right_answers(first, second, devices):
    a, b = (
        net(backend, device, instance_num=2)
        for backend, device in zip((first, second), devices, strict=True)
    )
    if second.startswith("S[FixTensor"):
        b["shape"] = f"float32:{WIDTH}"
        del b["TorchModule::shape"]
    assert answers({"a": {**a, "next": "b"}, "b": b}) == []


@ENGINES
@pytest.mark.parametrize("order", ["torch first", "engine first"])
def test_engines_behind_what_moves_arrays_give_right_answers(engine, order):
    if order == "torch first":
        a = net("S[GpuTensor,TorchModule]", FIRST)
        b = {**engine, "backend": f"S[GpuTensor,{engine['backend']}]", "device": OTHER}
    else:
        a = {**engine, "backend": f"S[GpuTensor,{engine['backend']}]", "device": FIRST}
        a |= {"output_device": "device"}
        b = net("S[GpuTensor,TorchModule]", OTHER)
    assert answers({"a": {**a, "next": "b"}, "b": b}) == []


@ENGINES
def test_results_on_the_host_go_from_engine_to_engine(engine):
    a = {**engine, "backend": f"S[GpuTensor,{engine['backend']}]", "device": FIRST, "next": "b"}
    assert answers({"a": a, "b": {**engine, "device": OTHER}}) == []


class View:
    """An array that says its address, and not its device, as numba's arrays do."""

    def __init__(self, tensor):
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self):
        return self.tensor.__cuda_array_interface__


def refused(node, kinds):
    """Check that a node on the second device refuses arrays of the first one, and goes on."""
    there = torch.ones(WIDTH, device=FIRST)
    torch.cuda.synchronize(FIRST)
    with headrace.pipe({**node, "device": OTHER}) as pipe:
        for kind in kinds:
            with pytest.raises(InputError, match="cuda:1") as caught:
                pipe({"data": kind(there)})
            assert "cuda:0" in str(caught.value)
        result = pipe({"data": there.to(OTHER)})["result"]
        if isinstance(result, torch.Tensor):  # which gives itself to the current device alone
            result = result.cpu().numpy()
        elif not isinstance(result, np.ndarray):
            result = torch.from_dlpack(result).cpu().numpy()
        assert result.shape == (WIDTH,)


@pytest.mark.parametrize(
    "backend", ["TorchModule", "SoftmaxTensor", "CatSplit[CatTensor,TorchModule,SplitTensor]"]
)
def test_what_the_check_refuses_of_torch_fails_as_a_request(backend):
    node = net(backend, OTHER)
    if "TorchModule" not in backend:
        node = {"backend": backend, "max": 4}
    refused(node, [torch.Tensor.clone])


@ENGINES
def test_what_the_check_refuses_of_an_engine_fails_as_a_request(engine):
    refused(engine, [torch.Tensor.clone, View])


def test_a_program_runs_on_another_device_than_it_was_exported_on(tmp_path):
    rows = torch.export.Dim("rows")
    example = (torch.zeros(2, WIDTH, device=FIRST),)
    program = torch.export.export(Placed(), example, dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "net.pt2")
    config = {"backend": "TorchModule", "model": str(tmp_path / "net.pt2"), "max": 4}
    for device in (OTHER, FIRST, "cpu"):
        with headrace.pipe({**config, "device": device}) as pipe:
            result = pipe({"data": torch.ones(WIDTH, device=device)})["result"]
        assert str(result.device) == device
        assert result.tolist() == [1.0 + k for k in range(WIDTH)]


UNUSED = """
import ctypes, sys
import numpy as np, torch, headrace

def is_used(ordinal):
    flags, active = ctypes.c_uint(), ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuDevicePrimaryCtxGetState(ordinal, ctypes.byref(flags), ctypes.byref(active)) == 0
    return bool(active.value)

there = torch.ones(8, device="cuda:1")
print(there.cpu().sum().item(), is_used(0))
on_device = {"backend": "S[GpuTensor,SoftmaxTensor]", "device": "cuda:1", "max": 4}
for config in (on_device, {"backend": "CpuTensor", "device": "cpu"}):
    with headrace.pipe(config) as pipe:
        for _ in range(3):
            pipe([{"data": there}, {"data": there}])
    print(is_used(0), is_used(1))
"""


def test_an_instance_on_the_second_device_takes_no_memory_of_the_first():
    done = run_process([sys.executable, "-c", UNUSED], timeout=300)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    if lines[0] == "8.0 True":
        pytest.skip("torch alone uses the first device")
    assert lines == ["8.0 False", "False True", "False True"]
