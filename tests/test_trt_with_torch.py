"""Words of torch around an engine of TensorRT: all work on one stream of the device, and give the engine's answers."""

import os
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import headrace

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
DEVICE = os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0")

WEIGHT = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
INSIDE = "S[ContiguousTensor,TensorrtInferTensor]"
FORMS = [
    f"IoC[Onnx2Tensorrt,TensorrtInferTensor;CatSplit[S[FixTensor,CatTensor],{INSIDE},SplitTensor]]",
    f"IoC[Onnx2Tensorrt,TensorrtInferTensor;S[FixTensor,CatSplit[CatTensor,{INSIDE},SplitTensor]]]",
    "SyncTensor[TensorrtTensor]",
    "S[GpuTensor,TensorrtTensor,SyncTensor]",
    "S[GpuTensor,TensorrtTensor,SoftmaxTensor]",
]


def answer(rows, form):
    """Return what a form makes of rows, computed on the CPU in double precision."""
    x = torch.from_numpy(np.asarray(rows, np.float64))
    made = torch.nn.functional.conv2d(x, torch.from_numpy(WEIGHT.astype(np.float64))).mean((2, 3))
    return made.softmax(1) if "SoftmaxTensor" in form else made


@pytest.fixture
def net(tmp_path):
    """A convolution and a mean, as a file."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("ReduceMean", ["c"], ["y"], axes=[2, 3], keepdims=0),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, 16, 16]), ("y", ["n", 8]))
    ]
    weights = [numpy_helper.from_array(WEIGHT, "w")]
    graph = helper.make_graph(nodes, "graph", ports[:1], ports[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms_with_words_of_torch_give_the_answers_of_the_engine(
    net, monkeypatch, tmp_path, form, cuda_graph
):
    pytest.importorskip("tensorrt")
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(1)
    samples = random.standard_normal((40, 3, 16, 16)).astype(np.float32)
    config = {
        "backend": form,
        "model": net,
        "max": 8,
        "batching_timeout": 20,
        "instance_num": 2,
        "device": DEVICE,
        "output_device": "device",
        "cuda_graph": cuda_graph,
        "tf32": False,
        "optimization_level": 0,
    }
    requests = [{"data": sample} for sample in samples]
    requests.append({"data": samples[:3], "request_size": 3})
    if form.startswith("SyncTensor"):
        requests.append({"data": torch.from_numpy(samples[3]).to(DEVICE)})
    with headrace.pipe(config) as pipe:
        pipe(requests)
        for request in requests:
            given = request["data"]
            rows = given.cpu().numpy() if torch.is_tensor(given) else given
            expected = answer(rows.reshape(-1, 3, 16, 16), form)
            found = torch.from_dlpack(request["result"])
            assert found.device == torch.device(DEVICE)
            found = found.cpu().double().reshape(-1, 8)
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("engine", ["TensorrtTensor", "OnnxTensor"])
def test_a_batch_goes_through_an_engine_between_words_of_torch_as_one_array(
    net, monkeypatch, tmp_path, engine
):
    if engine == "TensorrtTensor":
        pytest.importorskip("tensorrt")
        config = {"tf32": False, "optimization_level": 0}
    else:
        runtime = pytest.importorskip("onnxruntime")
        if "CUDAExecutionProvider" not in runtime.get_available_providers():
            pytest.skip("this build of ONNX Runtime has no CUDA provider")
        config = {"provider_options": {"cuda": {"use_tf32": False}}}
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path / "cache"))
    config |= {"backend": f"S[NormalizeTensor(2.0),{engine},SoftmaxTensor]", "model": net}
    config |= {"device": DEVICE, "output_device": "device"}
    config |= {"min": 8, "max": 8, "batching_timeout": 10_000}
    random = np.random.default_rng(1)
    samples = random.standard_normal((8, 3, 16, 16)).astype(np.float32)
    given = list(torch.from_numpy(samples).to(DEVICE).clone().unbind(0))
    batches, read, real = 20, [], torch.from_dlpack
    monkeypatch.setattr(torch, "from_dlpack", lambda one: read.append(one.shape) or real(one))
    with headrace.pipe(config) as pipe:
        pipe([{"data": one} for one in given])
        read.clear()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as trace:
            for _ in range(batches):
                found = pipe([{"data": one} for one in given])
    assert read == [(8, 8)] * batches
    names = Counter(event.name for event in trace.events())
    assert not [name for name in names if "Memcpy DtoD" in name or name.startswith("gather_")]
    events = sum(count for name, count in names.items() if "EventRecord" in name)
    assert events < 8 * batches  # none per row
    found = torch.stack([request["result"] for request in found]).cpu().double()
    expected = answer(2 * samples, "SoftmaxTensor")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
