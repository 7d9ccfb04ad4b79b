"""Pipelines as people run them: on the CPU always, on a GPU where `scripts/check gpu` finds one."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import BackendError, ClosedError, InputError, InstanceLostError

HERE = f"{__name__}:"
DEVICE = os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0")
DEVICES = ["cpu", pytest.param(DEVICE, marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("device", DEVICES)


class Mixing(torch.nn.Module):
    """Several kernels of different lengths, with an answer that is easy to know: ``x + 3``."""

    def __init__(self, size=512):
        super().__init__()
        self.register_buffer("eye", torch.eye(size))

    def forward(self, x):
        for _ in range(3):
            x = (x @ self.eye) + 1
        return x


class OutOfMemory(torch.nn.Module):
    """Asks for more memory than there is, where the first number of a row is large."""

    def forward(self, x):
        if x.device.type == "cpu":
            if float(x[:, 0].max()) > 100 or len(x) > 2:
                raise torch.cuda.OutOfMemoryError("tried to allocate 9 TiB")
            return x + 1
        rows = int(x[:, 0].max().item())
        if rows > 100 or len(x) > 2:
            torch.empty((1 << 43,), dtype=torch.uint8, device=x.device)
        return x + 1


def values(number, size=512, device="cpu"):
    return torch.full((size,), float(number), device=device)


@on_both
def test_a_race_hunt(device):
    """Distinct answers over four instances, read at once from other threads and streams; the inputs
    are overwritten as soon as the call is over."""
    config = {
        "backend": "S[GpuTensor,TorchModule,SyncTensor,StreamPool(max=2)[IndexSelectTensor([0,511])]]",
        "module": f"{HERE}Mixing",
        "device": device,
        "instance_num": 4,
        "max": 8,
    }
    count = 60 if device == "cpu" else 4000
    wrong, errors = [], []

    def client(index, pipe):
        stream = torch.cuda.Stream(device) if device != "cpu" else None
        mine = torch.empty(512, device=device)
        try:
            for turn in range(count):
                number = index * count + turn
                if turn % 2:
                    given = np.full(512, number, np.float32)
                elif stream is not None:
                    with torch.cuda.stream(stream):
                        given = mine.fill_(number)
                    stream.synchronize()
                else:
                    given = mine.fill_(number)
                result = pipe({"data": given})["result"]
                if stream is not None:
                    with torch.cuda.stream(stream):
                        read = (result * 1).tolist()
                else:
                    read = result.tolist()
                given.fill_(-1) if isinstance(given, torch.Tensor) else given.fill(-1)
                if read != [number + 3.0, number + 3.0]:
                    wrong.append((number, read))
        except Exception as error:
            errors.append(error)

    with headrace.pipe(config) as pipe:
        threads = [threading.Thread(target=client, args=(i, pipe)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = pipe.stats()["nodes"]["main"]
    assert errors == []
    assert wrong == []
    assert stats["ok"] == 6 * count


@on_both
def test_a_pipeline_on_another_device_takes_over_under_load(device):
    config = {
        "backend": "S[GpuTensor,TorchModule,CpuTensor]",
        "module": f"{HERE}Mixing",
        "device": device,
        "instance_num": 2,
        "max": 4,
    }
    stop = threading.Event()
    errors, done = [], []

    def call(request):
        while True:
            pipe = in_service[-1]
            try:
                return pipe(request)
            except ClosedError as error:
                if error.begun or pipe is in_service[-1]:
                    raise

    def client(index):
        number = index * 1000
        while not stop.is_set():
            number += 1
            try:
                result = call({"data": values(number)})["result"]
            except Exception as error:
                errors.append(error)
                return
            if float(result[0]) != number + 3 or result.device.type != "cpu":
                errors.append(AssertionError((number, result[:2])))
            done.append(number)

    in_service = [headrace.pipe(config)]
    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(6):
        where = "cpu" if turn % 2 == 0 else device
        new = headrace.pipe({**config, "device": where})
        assert new.describe()["nodes"]["main"]["tree"]["children"][1]["built"]["device"] == where
        in_service.append(new)
        in_service[-2].close(drain=True)
    stop.set()
    for thread in threads:
        thread.join()
    in_service[-1].close()
    assert errors == []
    assert done


@on_both
def test_memory_that_runs_out_is_an_error_of_its_request(device):
    config = {
        "backend": "S[GpuTensor,TorchModule]",
        "module": f"{HERE}OutOfMemory",
        "device": device,
        "max": 8,
    }
    with headrace.pipe(config) as pipe:
        batch = [{"data": values(n, 4)} for n in range(7)]
        assert [float(r["result"][0]) for r in pipe(batch)] == [n + 1 for n in range(7)]
        for _ in range(3):
            with pytest.raises(BackendError, match="out of memory") as caught:
                pipe({"data": values(200, 4)})
            assert "allocate" in str(caught.value)
            assert not isinstance(caught.value, InstanceLostError)
        assert float(pipe({"data": values(5, 4)})["result"][0]) == 6
        assert pipe.stats()["state"] == "ready"


@on_both
def test_nothing_is_copied_on_the_way_through_three_plugins(device, tmp_path):
    pytest.importorskip("cv2")
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    if device != "cpu" and "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("this build of ONNX Runtime has no CUDA provider")
    port = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 3, 8, 8]) for n in "xy"
    ]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "relu", port[:1], port[1:])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "relu.onnx"
    )
    seen = []

    @headrace.register("PointerSpy" + device.replace(":", ""), replace=True)
    class Spy(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                given = request["data"]
                seen.append(_address(given))
                request["result"] = given

    spy = "PointerSpy" + device.replace(":", "")
    config = {
        "backend": f"S[ResizeMat(8,8),Mat2Tensor,{spy},GpuTensor,{spy},OnnxTensor,{spy},SoftmaxTensor]",
        "model": str(tmp_path / "relu.onnx"),
        "device": device,
    }
    if device != "cpu":
        config["output_device"] = "device"
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    with headrace.pipe(config) as pipe:
        pipe({"data": image})
    mat, tensor, answer = seen
    assert (mat == tensor) == (device == "cpu")
    assert answer != tensor


def _address(given):
    if isinstance(given, torch.Tensor):
        return given.data_ptr()
    if isinstance(given, np.ndarray):
        return given.ctypes.data
    return torch.from_dlpack(given).data_ptr()


@on_both
def test_closing_and_building_again_leave_nothing_behind(device):
    config = {
        "backend": "S[GpuTensor,TorchModule,SoftmaxTensor]",
        "module": f"{HERE}Mixing",
        "args": {"size": 1024},
        "TorchModule::shape": "1024",
        "device": device,
        "cuda_graph": True,
        "max": 4,
    }

    def used():
        gc.collect()
        if device == "cpu":
            return sum(type(one) is Mixing for one in gc.get_objects())
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    if device != "cpu":
        gc.collect()  # else tensors of tests before this one keep a block that closing gives back too
        torch.cuda.empty_cache()
    empty = used()
    pipe = headrace.pipe(config)
    pipe([{"data": values(n, 1024)} for n in range(4)])
    full = used()
    for _ in range(10 if device == "cpu" else 5):
        pipe.close()
        pipe = headrace.pipe(config)
        pipe([{"data": values(n, 1024)} for n in range(4)])
    assert used() == full
    pipe.close()
    assert used() == empty


@on_both
def test_an_input_on_the_wrong_device_names_both(device):
    config = {"backend": "SoftmaxTensor", "device": device}
    elsewhere = "meta" if device == "cpu" else "cpu"
    with headrace.pipe(config) as pipe, pytest.raises(InputError) as caught:
        pipe({"data": torch.zeros(3, device=elsewhere)})
    assert device in str(caught.value)
    assert elsewhere in str(caught.value)


@on_both
def test_rows_of_many_kinds_get_what_they_get_alone(device):
    config = {
        "backend": "S[GpuTensor,ResizeTensor(24,16),CvtColorTensor(gray),NormalizeTensor(0.01),TorchModule,"
        "CpuTensor(numpy=true)]",
        "module": "torch.nn:Flatten",
        "inputs": {"input": "data"},
        "device": device,
        "max": 16,
    }
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (3, 20 + n % 3, 30 - n % 2), np.uint8) for n in range(12)]
    with headrace.pipe(config) as pipe:
        alone = [pipe({"data": one, "color": "rgb"})["result"] for one in pictures]
        together = pipe([{"data": one, "color": "rgb"} for one in pictures])
    for one, other in zip(alone, together, strict=True):
        assert np.allclose(one, other["result"], atol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_why_and_the_parent_goes_on():
    program = """
import os, sys, threading, torch, headrace
pipe = headrace.pipe({"backend": "S[GpuTensor,SoftmaxTensor]", "device": "cpu", "max": 4})
busy = [pipe.submit({"data": torch.ones(3)}) for _ in range(50)]
child = os.fork()
if child == 0:
    try:
        pipe({"data": torch.ones(3)})
    except headrace.errors.ClosedError as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert all(f.result(60)["result"].sum() > 0.99 for f in busy)
pipe.close()
print("ok")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


def test_importing_the_plugin_changes_nothing_of_torch():
    program = """
import torch, sys
def state():
    return (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(),
            torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32,
            torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled())
before = state()
import headrace_torch
for name in headrace_torch.__all__:
    getattr(headrace_torch, name)
import headrace_torch.conformance
assert state() == before
assert not torch.cuda.is_initialized()
print("same")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("same\n", "")
