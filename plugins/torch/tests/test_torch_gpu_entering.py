"""Inputs on which the caller's own stream is still at work when it calls: a long kernel is queued before they are written."""

import os

import pytest
import torch

import headrace

pytestmark = pytest.mark.gpu
HERE = f"{__name__}:"
DEVICE = os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0")
OTHER = "cuda:0" if DEVICE == "cuda:1" else "cuda:1"
CYCLES = 400_000_000
"""How long a stream is kept busy, in cycles of the device: 0.2 s at 2 GHz."""

TWO_DEVICES = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")


class PlusOne(torch.nn.Module):
    """Adds one, so that a result shows which input was read."""

    def forward(self, x):
        return x + 1


class Masked(torch.nn.Module):
    """Of two inputs."""

    def forward(self, x, mask):
        return x * mask


NET = {"backend": "TorchModule", "module": f"{HERE}PlusOne", "shape": "float32:8", "device": DEVICE}


class Late:
    """A stream that is busy for a while, behind which it writes ``value`` into tensors of zeros.

    Who reads them too early gets zeros.
    """

    def __init__(self, device=DEVICE):
        self.device = device
        self.stream = torch.cuda.Stream(device)
        with torch.cuda.device(device):  # the first launch of a kernel may wait for the device
            torch.cuda._sleep(1)
            torch.zeros(8, device=device).fill_(1.0)

    def tensors(self, *values):
        made = [torch.zeros(8, device=self.device) for _ in values]
        torch.cuda.synchronize(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            torch.cuda._sleep(CYCLES)
            for one, value in zip(made, values, strict=True):
                one.fill_(value)
        return made


def test_a_model_waits_for_the_stream_of_its_caller():
    late = Late()
    with headrace.pipe({**NET, "max": 4, "instance_num": 2}) as pipe:
        for value in (3.0, 4.0):
            (mine,) = late.tensors(value)
            with torch.cuda.stream(late.stream):
                result = pipe({"data": mine})["result"]
                mine.fill_(float("nan"))
            assert result.tolist() == [value + 1] * 8


@pytest.mark.parametrize(
    "config",
    [
        {"cuda_graph": True},
        {"backend": "S[Identity,GpuTensor,TorchModule,CpuTensor]"},
        {"backend": "S[FixTensor,TorchModule]"},
        {"backend": "StreamPool(max=2)[TorchModule]"},
        {"backend": "BackgroundThread[TorchModule]"},
        {"backend": "CatSplit[CatTensor,TorchModule,SplitTensor]"},
    ],
    ids=lambda config: config.get("backend", "cuda_graph"),
)
def test_every_word_that_reads_tensors_waits(config):
    late = Late()
    with headrace.pipe({**NET, "max": 4, **config}) as pipe:
        mine = late.tensors(3.0, 5.0)
        with torch.cuda.stream(late.stream):
            futures = [pipe.submit({"data": one}) for one in mine]
        results = [future.result(60)["result"].flatten().tolist() for future in futures]
        assert results == [[4.0] * 8, [6.0] * 8]


def test_the_host_does_not_wait_for_the_stream():
    late = Late()
    with headrace.pipe(NET) as pipe:
        (mine,) = late.tensors(3.0)
        with torch.cuda.stream(late.stream):
            future = pipe.submit({"data": mine})
            assert not late.stream.query()
        assert future.result(60)["result"].tolist() == [4.0] * 8


def test_each_key_that_a_model_reads_is_waited_for():
    late = Late()
    config = {**NET, "module": f"{HERE}Masked", "shape": {"x": "float32:8", "mask": "float32:8"}}
    with headrace.pipe(config) as pipe:
        x, mask = late.tensors(3.0, 2.0)
        with torch.cuda.stream(late.stream):
            assert pipe({"x": x, "mask": mask})["result"].tolist() == [6.0] * 8


def test_an_instance_on_the_cpu_waits_before_it_copies():
    late = Late()
    with headrace.pipe({"backend": "CpuTensor", "device": "cpu"}) as pipe:
        (mine,) = late.tensors(3.0)
        with torch.cuda.stream(late.stream):
            assert pipe({"data": mine})["result"].tolist() == [3.0] * 8


@TWO_DEVICES
def test_an_instance_on_another_device_waits_before_it_copies():
    late = Late(OTHER)
    with headrace.pipe({**NET, "backend": "S[GpuTensor,TorchModule]"}) as pipe:
        (mine,) = late.tensors(3.0)
        with torch.cuda.device(OTHER), torch.cuda.stream(late.stream):
            assert pipe({"data": mine})["result"].tolist() == [4.0] * 8


def test_arrays_of_cupy_are_waited_for():
    cupy = pytest.importorskip("cupy")
    torch.cuda._sleep(1)  # the first launch of a kernel may wait for the device
    own = cupy.cuda.Stream(non_blocking=True)
    with headrace.pipe({**NET, "device": "cuda:0"}) as pipe:
        mine = cupy.empty(8, cupy.float32)
        mine[...] = 0
        cupy.cuda.Device(0).synchronize()
        with torch.cuda.stream(torch.cuda.ExternalStream(own.ptr, device="cuda:0")):
            torch.cuda._sleep(CYCLES)
        with own:
            mine[...] = 3
            result = pipe({"data": mine})["result"]
        assert result.tolist() == [4.0] * 8
