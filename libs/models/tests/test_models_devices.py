"""Budgets of devices: whether they are here, and what models take there. The driver and NVML are fakes of their documents."""

# ruff: noqa: N802 - names of the driver and of NVML

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest

import headrace
from headrace.errors import SetupError
from headrace_models import Memory, Models

BUS_IDS = ["0000:65:00.0", "0000:17:00.0"]
"""In the order of CUDA, which is not that of NVML."""


class Driver:
    """The CUDA driver. Its functions give 0, and write into their first argument."""

    def __init__(self, bus_ids):
        self.bus_ids = bus_ids

    def cuInit(self, flags):
        return 0 if self.bus_ids else 100  # CUDA_ERROR_NO_DEVICE

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self.bus_ids)
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = 40 + ordinal  # a handle of its own
        return 0

    def cuDeviceGetPCIBusId(self, text, length, device):
        text.value = self.bus_ids[device.value - 40].encode()
        assert len(text) == length
        return 0


class NVMLError(Exception):
    pass


class Nvml:
    """NVML, on which processes compute, by the bus id of the device."""

    NVMLError = NVMLError

    def __init__(self):
        self.processes, self.users = {}, 0

    def nvmlInit(self):
        self.users += 1

    def nvmlShutdown(self):
        self.users -= 1

    def nvmlDeviceGetHandleByPciBusId(self, bus_id):
        if not self.users:
            raise NVMLError("uninitialized")
        return bus_id

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        told = [(pid, each) for place, pid, each in self.processes() if place == handle]
        return [SimpleNamespace(pid=pid, usedGpuMemory=each) for pid, each in told]


@pytest.fixture
def cuda(monkeypatch):
    """Give the driver that there is from now on."""
    driver, load = Driver(BUS_IDS), ctypes.CDLL

    def library(name, *args):
        return driver if name in {"libcuda.so.1", "nvcuda.dll"} else load(name, *args)

    monkeypatch.setattr(ctypes, "CDLL", library)
    return driver


@pytest.fixture
def nvml(cuda, monkeypatch):
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    yield fake
    assert fake.users == 0


def on(device, text):
    return {"backend": f"Says({text})", "device": device}


def test_a_device_that_is_not_here_is_refused_before_anything_is_built(cuda, says):
    budget = {"host": "1 GiB", "cuda:1": "20 GiB", "cuda:3": "20 GiB"}
    with pytest.raises(SetupError, match=r"(?s)names cuda:3, .*There are: host, cuda:0, cuda:1\."):
        Models({"a": on("cuda:3", "a")}, memory=Memory(budget))
    cuda.bus_ids = []
    with pytest.raises(SetupError, match=r"(?s)cuda:1, cuda:3, .*There are: host\."):
        Models({"a": on("cpu", "a")}, memory=Memory(budget))
    assert says.built == []


def test_bytes_on_a_device_are_measured_by_nvml(nvml, says):
    budget = Memory({"cuda:1": "8 KiB"})
    nvml.processes = lambda: [
        (BUS_IDS[1], os.getpid(), 900 + 1700 * says.living),
        (BUS_IDS[1], 0, 5_000 * says.living),
        (BUS_IDS[0], os.getpid(), 70_000 * says.living),
    ]
    with Models({n: on("cuda:1", n) for n in "abc"}, preload=False, memory=budget) as models:
        for name in "abc":
            assert models(name, {"data": 0})["result"] == name
        told = models.status()
        assert {about["memory_origin"] for about in told.values()} == {"measured"}
        assert told["a"]["memory"] == {"cuda:1": 1700}
        assert budget.used_bytes() == {"cuda:1": 3 * 1700}


@pytest.mark.parametrize("told", ["nothing", "no process", "no bytes", "an error", "no device"])
def test_where_nvml_tells_nothing_the_estimate_stays(nvml, says, monkeypatch, tmp_path, told):
    (tmp_path / "weights").write_text("a" * 1000)
    nvml.processes = lambda: [(BUS_IDS[0], os.getpid(), None if told == "no bytes" else 7)]
    if told == "nothing":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif told == "no process":
        nvml.processes = list
    elif told == "an error":
        monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByPciBusId", raising)
    elif told == "no device":
        monkeypatch.setattr(nvml, "nvmlInit", raising)
    config = {"backend": f"Says(model={str(tmp_path / 'weights')!r})", "device": "cuda:0"}
    with Models({"a": config}, memory=Memory({"cuda:0": "1 MiB"})) as models:
        about = models.status()["a"]
        assert (about["memory"], about["memory_origin"]) == ({"cuda:0": 2000}, "estimated")


def raising(*_):
    raise NVMLError


@pytest.mark.gpu
def test_a_gigabyte_on_this_machine_is_measured(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("pynvml")

    class Holds(headrace.Backend):
        """Hold a gigabyte."""

        def init(self, options, context):
            self.held = torch.ones(1 << 30, dtype=torch.uint8, device="cuda:0")

        def forward(self, batch):
            for request in batch:
                request["result"] = self.held.numel()

    headrace.register("Holds", Holds, replace=True)
    torch.ones(1, device="cuda:0")  # the context of CUDA belongs to no model
    (tmp_path / "weights").write_bytes(b"")
    budget = Memory({"cuda:0": "4 GiB"})
    with Models({"a": {"backend": "Holds", "device": "cuda:0"}}, memory=budget) as models:
        about = models.status()["a"]
        assert about["memory_origin"] == "measured"
        assert 1 << 30 <= about["memory"]["cuda:0"] < 1100 << 20
