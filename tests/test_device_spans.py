"""What the plugins report of a CUDA device, beside what the profiler of torch has seen there."""

import json
import statistics
from operator import itemgetter

import numpy as np
import pytest

import headrace
import headrace_observe

pytestmark = [pytest.mark.gpu, pytest.mark.whole_device]
torch = pytest.importorskip("torch")
BATCHES = 6
SIDES = (256, 256)
"""Large enough that the gaps between kernels and copies, microseconds each, are little beside them."""
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""What the profiler calls the work of a device."""


class Heavy(torch.nn.Module):
    """Products of matrices that take far longer than their launches, and small results."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weights = torch.nn.Parameter(torch.randn(4096, 4096) / 64)

    def forward(self, x):
        for _ in range(8):
            x = x @ self.weights
        return x.mean(1)


def convolutions(folder):
    """Write a network for TensorRT whose kernels take far longer than their launches."""
    from onnx import TensorProto, helper, numpy_helper, save

    drawn = np.random.default_rng(0).standard_normal((128, 128, 3, 3)).astype(np.float32) / 34
    nodes = [
        helper.make_node("Conv", [f"x{k}" if k else "x", "w"], [f"x{k + 1}"], pads=[1, 1, 1, 1])
        for k in range(12)
    ]
    nodes.append(helper.make_node("ReduceMean", ["x12"], ["y"], axes=[2, 3], keepdims=0))
    shape = ["n", 128, *SIDES]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", shape), ("y", ["n", 128]))
    ]
    weights = [numpy_helper.from_array(drawn, "w")]
    graph = helper.make_graph(nodes, "graph", ports[:1], ports[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(folder / "net.onnx"))
    return str(folder / "net.onnx")


def by_torch(_folder):
    config = {"backend": "S[GpuTensor,TorchModule,CpuTensor]", "module": f"{__name__}:Heavy"}
    rows = torch.randn(8192, 4096).pin_memory()
    return config, {"data": rows, "request_size": len(rows)}


def by_tensorrt(folder):
    pytest.importorskip("tensorrt")
    profile = dict.fromkeys(("min", "opt", "max"), f"x:1x128x{SIDES[0]}x{SIDES[1]}")
    config = {
        "backend": "TensorrtTensor",
        "model": convolutions(folder),
        "profiles": [profile],
        "optimization_level": 0,
    }
    return config, {"data": np.ones((128, *SIDES), np.float32)}


def per_batch(events):
    """Add up the durations of each batch; every batch has as many events, one batch after the other."""
    durations = [event["dur"] for event in sorted(events, key=itemgetter("ts"))]
    count, rest = divmod(len(durations), BATCHES)
    assert count > 0
    assert rest == 0
    return [sum(durations[k * count : (k + 1) * count]) for k in range(BATCHES)]


@pytest.mark.parametrize("made", [by_torch, by_tensorrt])
def test_spans_lie_inside_their_batch_and_add_up_to_what_the_profiler_of_torch_says(
    made, tmp_path, monkeypatch
):
    """The median of the batches counts: where other processes use the device, it may leave a batch for them."""
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path / "cache"))
    config, request = made(tmp_path)
    path, profile = tmp_path / "trace.json", tmp_path / "profile.json"
    config = {**config, "max": request.get("request_size", 1), "device": "cuda:0"}
    turns = torch.profiler.schedule(wait=0, warmup=1, active=1)
    with (
        headrace.pipe({**config, "global": {"probes": ["Trace"]}}) as pipe,
        torch.profiler.profile(
            activities=list(torch.profiler.supported_activities()),
            schedule=turns,
            on_trace_ready=lambda made: made.export_chrome_trace(str(profile)),
        ) as profiler,
    ):
        for _ in range(2):  # libraries are loaded, and the profiler listens
            pipe(dict(request))
        profiler.step()
        with headrace_observe.trace(pipe, path):
            for _ in range(BATCHES):
                pipe(dict(request))
        torch.cuda.synchronize()
        profiler.step()
    seen = [e for e in json.loads(profile.read_text())["traceEvents"] if e.get("cat") in WORK]
    slices = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    batches = {e["args"]["batch"]: e for e in slices if e["cat"] == "batch"}
    spans = [e for e in slices if e["cat"] == "device"]
    assert len(batches) == BATCHES
    assert {span["name"] for span in spans} == {"copy in", "computation", "copy out"}
    for span in spans:
        batch = batches[span["args"]["batch"]]
        assert batch["ts"] <= span["ts"] + 1e-3
        assert span["ts"] + span["dur"] <= batch["ts"] + batch["dur"] + 1e-3
    computed = [span for span in spans if span["name"] == "computation"]
    kernels = [event for event in seen if event["cat"] == "kernel"]
    for ours, theirs in ((computed, kernels), (spans, seen)):
        times = [a / b for a, b in zip(per_batch(ours), per_batch(theirs), strict=True)]
        assert statistics.median(times) == pytest.approx(1, rel=0.05)
