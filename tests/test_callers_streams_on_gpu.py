"""Inputs that the caller's stream has not written as a call begins, and overwrites as soon as it is over, on a GPU."""

import asyncio
import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import headrace
from headrace.errors import InputError
from headrace_tensors import entering
from headrace_tensors.entering import LEGACY, PER_THREAD, enter, mark_of

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
DEVICE = os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0")
HERE = f"{__name__}:"
WIDTH, CALLERS, ROUNDS, SOME = 64, 8, 80, 5
LONG, SHORT = 200_000_000, 300_000
"""Cycles of the device for which a stream sleeps: about 0.1 s, and 0.2 ms."""


class PlusOne(torch.nn.Module):
    def forward(self, x):
        return x + 1


@pytest.fixture(params=["torch", "trt", "trt on the device", "ort", "ort on the device"])
def pipe(request, tmp_path, monkeypatch):
    """``y = x + 1`` by each plugin."""
    if request.param == "torch":
        config = {"backend": "TorchModule", "module": f"{HERE}PlusOne", "shape": f"float32:{WIDTH}"}
    else:
        onnx = pytest.importorskip("onnx")
        pytest.importorskip({"trt": "tensorrt", "ort": "onnxruntime"}[request.param[:3]])
        kind = onnx.TensorProto.FLOAT
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("Add", ["x", "one"], ["y"])],
            "graph",
            [onnx.helper.make_tensor_value_info("x", kind, ["n", WIDTH])],
            [onnx.helper.make_tensor_value_info("y", kind, ["n", WIDTH])],
            [onnx.numpy_helper.from_array(np.ones(1, np.float32), "one")],
        )
        opset = [onnx.helper.make_opsetid("", 17)]
        path = tmp_path / "net.onnx"
        onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)
        monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path / "cache"))
        word = {"trt": "TensorrtTensor", "ort": "OnnxTensor"}[request.param[:3]]
        config = {"backend": word, "model": str(path)}
        if "device" in request.param:
            config["output_device"] = "device"
    config |= {"device": DEVICE, "max": 8, "instance_num": 2}
    with headrace.pipe(config) as made:
        yield made


def call(pipe, requests):
    for one in requests:
        pipe(one)


def call_with_a_list(pipe, requests):
    pipe(requests)


def submit(pipe, requests):
    for future in [pipe.submit(one) for one in requests]:
        future.result(60)


def call_async(pipe, requests):
    async def all_of_them():
        await asyncio.gather(*map(pipe.call_async, requests))

    asyncio.run(all_of_them())


def on_host(result):
    if not isinstance(result, np.ndarray):
        result = torch.from_dlpack(result).cpu().numpy()
    return result


@pytest.mark.parametrize(
    "way", [call, call_with_a_list, submit, call_async], ids=lambda way: way.__name__
)
def test_no_answer_is_wrong_while_the_callers_streams_sleep(pipe, way):
    """Who reads too early gets zeros, and who reads too late gets NaN."""

    def client(number):
        stream = torch.cuda.Stream(DEVICE) if number % 4 else torch.cuda.default_stream(DEVICE)
        wrong = []
        for turn in range(ROUNDS):
            values = [float(turn * SOME + k + 1) for k in range(SOME)]
            with torch.cuda.stream(stream):
                mine = [torch.zeros(WIDTH, device=DEVICE) for _ in values]
                torch.cuda._sleep(SHORT)
                for one, value in zip(mine, values, strict=True):
                    one.fill_(value)
                requests = [{"data": one} for one in mine]
                way(pipe, requests)
                for one in mine:
                    one.fill_(float("nan"))
                got = [on_host(one["result"]) for one in requests]
            for one, value in zip(got, values, strict=True):
                if one.shape != (WIDTH,) or not (one == value + 1).all():
                    wrong.append((value, one.ravel()[:3].tolist()))
        return wrong

    with torch.cuda.device(DEVICE):
        torch.cuda._sleep(1)  # the first launch of a kernel may wait for the device
    with ThreadPoolExecutor(CALLERS) as pool:
        wrong = [one for found in pool.map(client, range(CALLERS)) for one in found]
    assert wrong == []


class Counting:
    """The driver, with the number of calls by name."""

    def __init__(self, driver):
        self.driver, self.calls = driver, {}

    def __getattr__(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1
        return getattr(self.driver, name)


@pytest.fixture
def driver(monkeypatch):
    found = entering.load_driver()
    assert isinstance(found, ctypes.PyDLL)
    counting = Counting(found)
    monkeypatch.setattr(entering, "load_driver", lambda: counting)
    monkeypatch.setattr(entering, "_free", {})
    torch.zeros(1, device="cuda:0")
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    return counting


def in_thread(function):
    """Run a function in a thread that has used no device."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


def test_for_an_idle_stream_nothing_is_made(driver):
    stream = torch.cuda.Stream()
    for handle in (stream.cuda_stream, 0, LEGACY, PER_THREAD):
        assert mark_of(0, handle) is None
        assert in_thread(lambda handle=handle: mark_of(0, handle)) is None
    assert "cuEventRecord" not in driver.calls
    assert "cuEventCreate" not in driver.calls


def test_a_list_has_one_mark_and_events_are_used_again(driver):
    stream, call = torch.cuda.Stream(), {}
    with torch.cuda.stream(stream):
        requests = [{"data": torch.zeros(4, device="cuda:0")} for _ in range(40)]
        torch.cuda._sleep(LONG)
        marks = {enter(one, call=call) for one in requests}
        assert len(marks) == driver.calls["cuEventRecord"] == 1
        for _ in range(300):
            assert len(enter(requests[0])) == 1
    assert driver.calls["cuEventRecord"] == 301
    assert driver.calls["cuEventCreate"] == 2
    torch.cuda.synchronize()


@pytest.mark.parametrize("default", [False, True])
def test_a_stream_waits_for_a_mark_of_a_thread_without_a_context(driver, default):
    first = torch.cuda.default_stream() if default else torch.cuda.Stream()
    second = torch.cuda.Stream()
    x, y = torch.zeros(8, device="cuda:0"), torch.zeros(8, device="cuda:0")
    with torch.cuda.stream(second):
        y.copy_(x)  # the first launch of a kernel may wait for the device
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        torch.cuda._sleep(LONG)
        x.fill_(3)
    mark = in_thread(lambda: mark_of(0, first.cuda_stream))
    in_thread(lambda: mark.hold_back(second.cuda_stream))
    assert not first.query()
    with torch.cuda.stream(second):
        y.copy_(x)
        assert y.tolist() == [3] * 8


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_is_neither_joined_nor_broken_off(driver, mode):
    x, y = torch.ones(8, device="cuda:0"), torch.zeros(8, device="cuda:0")
    other = torch.cuda.Stream()
    torch.add(x, 1, out=y)
    with torch.cuda.stream(other):
        torch.cuda._sleep(LONG)
    graph, request = torch.cuda.CUDAGraph(), {"data": x}
    made = torch.cuda.Stream()
    with torch.cuda.stream(made):
        graph.capture_begin(capture_error_mode=mode)
        try:
            torch.add(x, 1, out=y)
            with pytest.raises(InputError, match="captures a CUDA graph"):
                enter(request)
            assert in_thread(lambda: mark_of(0, other.cuda_stream)) is not None
        finally:
            graph.capture_end()
    y.zero_()
    torch.cuda.synchronize()
    graph.replay()
    assert y.tolist() == [2] * 8


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_the_default_stream_of_a_device_that_is_not_current_is_asked(driver):
    torch.zeros(1, device="cuda:1")
    torch.cuda.synchronize(1)
    assert mark_of(1, 0) is None
    with torch.cuda.device(1):
        torch.cuda._sleep(LONG)
    assert mark_of(1, 0) is not None
    assert mark_of(0, 0) is None
    assert torch.cuda.current_device() == 0
