"""``Timer``, ``inspect``, ``gpus`` and their commands, with fake clocks and a fake NVML."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import types

import numpy as np
import pytest
from typer.testing import CliRunner

import headrace
import headrace_observe
from headrace.errors import MissingDependencyError
from headrace_cli.app import app
from headrace_observe import Timer, gpus, inspect


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_timers_sum_up_and_stand_inside_each_other():
    clock = Clock()
    whole, part = Timer("whole", clock=clock), Timer("part", clock=clock)

    @part
    def work(seconds):
        """Take a while."""
        clock.now += seconds
        return seconds

    for seconds in (1, 3):
        with whole:
            clock.now += 0.5
            assert work(seconds) == seconds
    assert work.__doc__ == "Take a while."
    assert (whole.seconds, part.seconds) == ([1.5, 3.5], [1, 3])
    assert (whole.count, whole.total_s, part.latency_ms["p50"]) == (2, 5.0, 1000.0)
    assert whole.children == [part]
    assert str(whole).splitlines() == [
        "whole: 2 runs, mean 2500.000 ms, p50 1500.000 ms, p99 3500.000 ms, total 5.000 s",
        "  part: 2 runs, mean 2000.000 ms, p50 1000.000 ms, p99 3000.000 ms, total 4.000 s",
    ]


def test_coroutines_that_run_at_a_time_are_timed_to_their_ends():
    clock = Clock()
    part = Timer("part", clock=clock)

    @part
    async def work(mine, others):
        await mine.wait()
        clock.now += 1
        others.set()

    async def both():
        first, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()
        # The one that begins first ends last.
        tasks = [asyncio.create_task(work(second, third)), asyncio.create_task(work(first, second))]
        await asyncio.sleep(0)
        clock.now += 5
        first.set()
        await asyncio.gather(*tasks)

    asyncio.run(both())
    assert part.seconds == [6.0, 7.0]
    assert part.children == []


def test_a_timer_may_stand_inside_itself_and_an_error_passes():
    clock = Clock()
    timer = Timer("t", clock=clock)

    @timer
    def fall(depth):
        clock.now += 1
        if depth:
            fall(depth - 1)
        else:
            raise KeyError("bottom")

    with pytest.raises(KeyError):
        fall(2)
    assert timer.seconds == [1, 2, 3]
    assert timer.children == []
    assert str(Timer("never")) == "never: not run"


def test_the_device_is_waited_for_before_each_reading_of_the_clock():
    clock, pending = Clock(), [0.0]

    def wait():
        clock.now += pending.pop() if pending else 0.0

    timer = Timer(clock=clock, wait=wait)
    pending[:] = [7.0]  # from before: none of its business
    with timer:
        pending.append(2.0)  # launched, and not yet done
    assert timer.seconds == [2.0]


def test_a_bare_decorator_says_what_to_write():
    with pytest.raises(TypeError, match=r'@Timer\("name"\)'):

        @Timer
        def work():
            pass


def test_a_cuda_timer_waits_by_torch(monkeypatch):
    waited = []
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(synchronize=waited.append))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with Timer(device="cuda:1"):
        pass
    assert waited == ["cuda:1", "cuda:1"]
    for wrong in ("cpu", "cuda:", "cuda:x"):
        with pytest.raises(ValueError, match="'cuda' or 'cuda:N'"):
            Timer(device=wrong)


def test_a_cuda_timer_without_torch_waits_by_cuda_python(monkeypatch):
    calls = []
    runtime = types.SimpleNamespace(
        cudaGetDevice=lambda: (0, 0),
        cudaSetDevice=lambda n: calls.append(n) or (0,),
        cudaDeviceSynchronize=lambda: calls.append("wait") or (0,),
    )
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    with Timer(device="cuda:1"):
        pass
    assert calls == [1, "wait", 0, 1, "wait", 0]


def test_a_torch_without_cuda_says_that_the_device_cannot_be_waited_for(monkeypatch):
    def synchronize(device):
        raise AssertionError("Torch not compiled with CUDA enabled")

    cuda = types.SimpleNamespace(synchronize=synchronize)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    with pytest.raises(
        RuntimeError, match="waiting for the device failed: Torch not compiled with CUDA"
    ):
        Timer(device="cuda").__enter__()


def test_a_generator_is_not_timed_as_if_its_call_were_its_work():
    def numbers():
        yield 1

    async def later():
        yield 1

    for generator in (numbers, later):
        with pytest.raises(TypeError, match="around the loop"):
            Timer()(generator)


def test_a_backend_is_inspected_by_batch_size():
    ticks = itertools.count()
    image = np.zeros((480, 640, 3), np.uint8)
    found = inspect(
        "ResizeMat(64,32)", [image], repeat=5, warm_up=2, clock=lambda: next(ticks) / 1000
    )
    assert found["expression"] == "ResizeMat(64,32)"
    assert found["reads"] == {"data": "uint8 [480, 640, 3]"}
    assert found["writes"] == {"result": "uint8 [64, 32, 3]"}
    assert [batch["size"] for batch in found["batches"]] == [1, 2, 4, 8, 16, 32]
    for batch in found["batches"]:
        assert (batch["ok"], batch["failed"]) == (5 * batch["size"], {})
        assert batch["latency_ms"]["p50"] == batch["latency_ms"]["max"] == 1.0
        assert batch["per_item_ms"] == pytest.approx(1 / batch["size"], abs=1e-5)
    assert "no queue" in found["clock"]
    assert set(found["memory"]["host_bytes"]) == {"before", "built", "run"}


def test_all_that_was_built_is_told():
    found = inspect("S[Identity,CatSplit[Identity,Identity,Identity]]", [1], repeat=1, sizes=[1])
    assert found["tree"]["name"] == "S"
    assert [one["name"] for one in found["tree"]["children"]] == ["Identity", "CatSplit"]
    assert len(found["tree"]["children"][1]["children"]) == 3


def test_what_fails_is_counted_and_sizes_outside_are_refused():
    found = inspect("DecodeMat", [{"data": b"no picture"}], repeat=3, warm_up=0, sizes=[1])
    assert found["batches"][0]["failed"] == {"input": 3}
    assert list(found["errors"]) == ["input"]
    assert "backend 'DecodeMat'" in found["errors"]["input"]
    assert found["writes"] == {}
    with pytest.raises(ValueError, match=r"batches hold 1 to 2 requests here, got \[4\]"):
        inspect({"backend": "Identity", "max": 2}, [1], sizes=[4])
    with pytest.raises(ValueError, match="hold 1 or more requests here, got no size"):
        inspect("Identity", [1], sizes=[])
    with pytest.raises(ValueError, match="no items"):
        inspect("Identity", [])


@pytest.mark.parametrize("rows", [1, 4])
def test_a_range_that_init_sets_is_that_of_the_batches(rows):
    class Fixed(headrace.Backend):
        """Takes so many requests at once, as a model with a fixed batch does."""

        max = None

        def init(self, options, context):
            self.min = self.max = rows

        def forward(self, batch):
            assert len(batch) == rows
            for request in batch:
                request["result"] = request["data"]

    headrace.register("Fixed", Fixed, replace=True)
    found = inspect("Fixed", [1], repeat=2, warm_up=0)
    assert (found["range"], found["errors"]) == ([rows, rows], {})
    assert [(batch["size"], batch["ok"]) for batch in found["batches"]] == [(rows, 2 * rows)]
    with pytest.raises(ValueError, match=rf"batches hold {rows} to {rows} requests here"):
        inspect("Fixed", [1], sizes=[8])


@pytest.mark.parametrize("keys", [{}, {"min": 1}, {"pad": True}])
def test_batch_sizes_of_the_node_are_its_range(keys):
    found = inspect({"backend": "Identity", "batch_sizes": [2, 6], **keys}, [1], repeat=1)
    assert found["range"] == [keys.get("min", 2), 6]
    sizes = [batch["size"] for batch in found["batches"]]
    assert sizes == ([1] if keys.get("min") else []) + [2, 4, 6]


def test_what_dicts_and_lists_hold_is_described():
    def found(data):
        boxes = [np.zeros((2, k), np.float32) for k in (4, 4, 5)]
        return {"boxes": boxes, "scores": (0.5, 1), "text": "abc", "none": []}

    headrace.register("InspectFound", found, replace=True)
    (written,) = inspect("InspectFound", [1], repeat=1, warm_up=0, sizes=[1])["writes"].values()
    assert written == (
        "dict {boxes: list [3] of float32 [2, 4], float32 [2, 5], scores: tuple [2] of float, int, "
        "text: str [3], none: list [0]}"
    )
    (deep,) = inspect("Identity", [[[[[1]]]]], repeat=1, warm_up=0, sizes=[1])["reads"].values()
    assert deep == "list [1] of list [1] of list [1] of list [1]"


def test_the_command_inspects_an_expression_and_a_file(tmp_path):
    args = ["--data", "uint8:8x8x3", "--repeat", "2", "--warm-up", "0", "--sizes", "1,2"]
    done = CliRunner().invoke(app, ["observe", "inspect", "Identity", *args, "--json"])
    assert done.exit_code == 0, done.output
    assert [batch["size"] for batch in json.loads(done.stdout)["batches"]] == [1, 2]
    file = tmp_path / "one.toml"
    file.write_text('backend = "ResizeMat"\nresize_h = 4\nresize_w = 4\nmax = 2\n')
    done = CliRunner().invoke(app, ["observe", "inspect", str(file), *args])
    assert done.exit_code == 0, done.output
    assert "writes result: uint8 [4, 4, 3]" in done.stdout
    assert "The clock: the call of the built instance" in done.stdout
    above = CliRunner().invoke(app, ["observe", "inspect", str(file), *args[:-1], "4"])
    assert (above.exit_code, "batches hold 1 to 2 requests" in above.stderr) == (2, True)
    file.write_text('[a]\nbackend = "Identity"\nnext = "b"\n[b]\nbackend = "Identity"\n')
    done = CliRunner().invoke(app, ["observe", "inspect", str(file), *args])
    assert (done.exit_code, "has a, b" in done.stderr) == (2, True)


class NVMLError(Exception):
    pass


def fake_nvml():
    def unknown(handle):
        raise NVMLError

    return types.SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA X",
        nvmlDeviceGetUUID=lambda handle: "GPU-1",
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=2**30, total=2**34),
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=40),
        nvmlDeviceGetTemperature=lambda handle, kind: unknown(handle),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            types.SimpleNamespace(pid=7, usedGpuMemory=2**20)
        ],
    )


def test_gpus_are_listed_and_what_one_does_not_tell_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    (one,) = gpus()
    assert one == {
        "index": 0,
        "name": "NVIDIA X",
        "uuid": "GPU-1",
        "memory_used_bytes": 2**30,
        "memory_total_bytes": 2**34,
        "utilisation_percent": 40,
        "temperature_c": None,
        "processes": [{"pid": 7, "memory_bytes": 2**20}],
    }
    done = CliRunner().invoke(app, ["observe", "gpus"])
    assert "NVIDIA X" in done.stdout
    assert "7 (1 MiB)" in done.stdout


def test_a_gpu_that_the_driver_has_lost_is_listed_without_values(monkeypatch):
    nvml = fake_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (before,) = gpus()

    def lost(index):
        raise NVMLError

    nvml.nvmlDeviceGetHandleByIndex = lost
    (one,) = gpus()
    assert one == {**dict.fromkeys(before), "index": 0, "processes": []}
    done = CliRunner().invoke(app, ["observe", "gpus"])
    assert done.exit_code == 0


def test_without_a_gpu_the_list_is_empty(monkeypatch):
    nvml = fake_nvml()

    def no_driver():
        raise NVMLError

    nvml.nvmlInit = no_driver
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpus() == []
    done = CliRunner().invoke(app, ["observe", "gpus", "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])


def test_a_driver_without_the_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(MissingDependencyError, match=r"headrace-observe\[gpu\]"):
        gpus()
    for command, *args in (
        ("bench", "--clients", "1", "--seconds", "0.05"),
        ("observe inspect", "--repeat", "1"),
    ):
        done = CliRunner().invoke(app, [*command.split(), "Identity", "--data", "uint8", *args])
        assert done.exit_code == 0
        assert "listing GPUs needs pynvml" in done.stderr
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert gpus() == []


def test_random_data_without_numpy_names_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    done = CliRunner().invoke(app, ["observe", "inspect", "Identity", "--data", "uint8"])
    assert done.exit_code == 2
    assert "random data needs numpy" in done.stderr
    assert done.stderr.rstrip().endswith("pip install numpy")


def test_memory_that_is_not_known_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    args = ["observe", "inspect", "Identity", "--data", "uint8", "--repeat", "1", "--sizes", "1"]
    done = CliRunner().invoke(app, args)
    assert "host memory is not known without psutil" in done.stderr
    assert "headrace-observe[gpu]" in done.stderr


@pytest.mark.gpu
def test_gpus_of_this_machine():
    found = headrace_observe.gpus()
    assert found
    assert all(one["memory_total_bytes"] > one["memory_used_bytes"] >= 0 for one in found)
