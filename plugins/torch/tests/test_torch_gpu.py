"""What only a CUDA device shows: streams, graphs, its memory, its decoder, a device that is lost."""

import gc
import io
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import BackendError, InputError, SetupError
from headrace_torch.models.graphs import Graphs

pytestmark = pytest.mark.gpu
HERE = f"{__name__}:"
DEVICE = os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0")
ORDINAL = torch.device(DEVICE).index


class Small(torch.nn.Module):
    """A network whose launches cost more than its arithmetic."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = []
        for _ in range(12):
            layers += [torch.nn.Linear(64, 64), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x) + x


class Waits(torch.nn.Module):
    """Cannot be captured: it asks the device for a number."""

    def forward(self, x):
        if x.sum().item() > 1e9:
            return x * 2
        return x + 1


class Long(torch.nn.Module):
    """Work that takes some milliseconds, so that a result read too early is wrong."""

    def forward(self, x):
        y = x
        for _ in range(200):
            y = y + 1
        return y - 199


class Indexed(torch.nn.Module):
    """Reads outside of its table where a number is too large: the device is lost."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4, 2)

    def forward(self, x):
        return self.table(x)


def spy(name):
    """A backend that notes the stream and the device that are current in the instance's thread."""
    seen = []

    @headrace.register(name, replace=True)
    class Spy(headrace.Backend):
        owns_thread = True

        def init(self, options, context):
            self.instance = context.store.instance

        def forward(self, batch):
            stream = torch.cuda.current_stream()
            shared = self.instance.get(("cuda.stream", ORDINAL))
            seen.append((stream.cuda_stream, shared.handle, torch.cuda.current_device()))
            for request in batch:
                request["result"] = request["data"]

    return seen


def test_all_elements_work_on_the_instances_stream_and_nobody_elses_changes():
    seen = spy("StreamSpy")
    before = torch.cuda.current_stream().cuda_stream, torch.cuda.current_device()
    config = {"backend": "S[GpuTensor,StreamSpy,SoftmaxTensor,StreamSpy]", "instance_num": 3}
    with headrace.pipe({**config, "device": DEVICE}) as pipe:
        futures = [pipe.submit({"data": np.ones(4, np.float32)}) for _ in range(40)]
        for future in futures:
            assert float(future.result(60)["result"][0]) == 0.25
    assert all(current == shared != 0 for current, shared, _ in seen)
    assert 1 <= len({current for current, _, _ in seen}) <= 3
    assert (torch.cuda.current_stream().cuda_stream, torch.cuda.current_device()) == before


class Foreign:
    """A stream as another plugin makes it."""

    def __init__(self):
        self.stream = torch.cuda.Stream(DEVICE)
        self.handle = self.stream.cuda_stream
        self.closed = 0

    def close(self):
        self.closed += 1


def test_a_stream_that_another_plugin_made_first_is_used():
    made = []

    @headrace.register("MakesStream", replace=True)
    class MakesStream(headrace.Backend):
        owns_thread = True

        def init(self, options, context):
            made.append(context.store.instance.get_or_create(("cuda.stream", ORDINAL), Foreign))

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    seen = spy("StreamSpy2")
    with headrace.pipe(
        {"backend": "S[MakesStream,GpuTensor,StreamSpy2]", "device": DEVICE}
    ) as pipe:
        pipe({"data": np.ones(4, np.float32)})
    assert seen == [(made[0].handle, made[0].handle, ORDINAL)]
    assert made[0].closed == 1


@pytest.mark.parametrize("sync", ["", ",SyncTensor", ",SyncTensor[SoftmaxTensor]"])
def test_a_batch_is_waited_for_once(sync, monkeypatch):
    from headrace_torch.devices.place import Place

    waited = []
    real = torch.cuda.Event.synchronize
    monkeypatch.setattr(
        torch.cuda.Event, "synchronize", lambda event: waited.append(1) or real(event)
    )
    places = []
    made = Place.__init__
    monkeypatch.setattr(
        Place, "__init__", lambda self, *args: places.append(self) or made(self, *args)
    )
    words = f"S[GpuTensor,SoftmaxTensor,ContiguousTensor,SoftmaxTensor{sync}]"
    with headrace.pipe({"backend": words, "device": DEVICE, "max": 8}) as pipe:
        for _ in range(5):
            pipe([{"data": np.ones(16, np.float32)} for _ in range(8)])
        batches = pipe.stats()["nodes"]["main"]["batches"]
    assert len(waited) == places[0].waits == batches  # SyncTensor's wait is that one


def test_a_result_is_finished_when_the_call_is_over():
    with headrace.pipe(
        {"backend": "S[GpuTensor,TorchModule]", "module": f"{HERE}Long", "device": DEVICE}
    ) as pipe:
        host = torch.empty(1 << 20).pin_memory()
        side = torch.cuda.Stream(DEVICE)
        for number in range(30):
            result = pipe({"data": np.full(1 << 20, number, np.float32)})["result"]
            with torch.cuda.stream(side):  # this stream knows nothing of the pipeline's
                host.copy_(result, non_blocking=True)
            side.synchronize()
            assert float(host.min()) == float(host.max()) == number + 1


def test_a_thread_inside_of_the_instance_works_on_its_stream_and_is_waited_for():
    seen = spy("StreamSpy3")
    words = "S[GpuTensor,BackgroundThread[S[TorchModule,StreamSpy3]],CpuTensor]"
    with headrace.pipe({"backend": words, "module": f"{HERE}Long", "device": DEVICE}) as pipe:
        for number in range(20):
            result = pipe({"data": np.full(1 << 20, number, np.float32)})["result"]
            assert float(result.min()) == float(result.max()) == number + 1
    assert all(current == shared != 0 for current, shared, _ in seen)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_model_that_is_compiled_with_graphs_answers_in_one_pipeline_after_another(mode):
    rows = torch.randn(8, 64, device=DEVICE)
    with torch.inference_mode():
        wanted = Small().eval().to(DEVICE)(rows)
    node = {"backend": "TorchModule", "module": f"{HERE}Small", "shape": "64", "device": DEVICE}
    for _ in range(2):
        with headrace.pipe(node | {"max": 4, "compile": mode}) as pipe:
            for _ in range(3):  # the second run of a size records its graph, the third replays it
                answers = pipe([{"data": row} for row in rows])
                found = torch.stack([one["result"] for one in answers])
                assert torch.allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("word", ["GpuTensor", "FixTensor"])
def test_a_word_on_the_cpu_brings_a_tensor_from_the_gpu(word):
    with headrace.pipe({"backend": word, "device": "cpu"}) as pipe:
        for number in range(5):
            given = torch.zeros(1 << 20, device=DEVICE)
            for _ in range(300):
                given += 1
            given += number
            result = pipe({"data": given})["result"]
            assert result.device.type == "cpu"
            assert float(result.min()) == float(result.max()) == number + 300


def test_what_a_caller_has_just_started_on_the_default_stream_comes_first():
    with headrace.pipe(
        {"backend": "TorchModule", "module": f"{HERE}Long", "device": DEVICE}
    ) as pipe:
        for number in range(20):
            given = torch.zeros(1 << 20, device=DEVICE)
            for _ in range(300):
                given += 1
            given += number
            result = pipe({"data": given})["result"]
            del given
            noise = torch.full((1 << 20,), -1.0, device=DEVICE)
            assert float(result.min()) == float(result.max()) == number + 301
            del noise


def test_arrays_of_cupy_come_in_and_their_memory_is_kept():
    cupy = pytest.importorskip("cupy")
    with headrace.pipe(
        {"backend": "TorchModule", "module": f"{HERE}Long", "device": "cuda:0"}
    ) as pipe:
        for number in range(20):
            given = cupy.full(1 << 20, number, cupy.float32)
            result = pipe({"data": given})["result"]
            assert float(result.min()) == float(result.max()) == number + 1
            back = cupy.from_dlpack(result)
            assert back.data.ptr == result.data_ptr()


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_graphs_on_and_off_are_equal_bit_by_bit(dtype):
    config = {
        "backend": "S[GpuTensor,TorchModule]",
        "module": f"{HERE}Small",
        "shape": "64",
        "device": DEVICE,
        "max": 8,
        "dtype": dtype,
    }
    config = {key: value for key, value in config.items() if value is not None}
    rows = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    answers = []
    for graph in (False, True):
        with headrace.pipe({**config, "cuda_graph": graph}) as pipe:
            built = pipe.describe()["nodes"]["main"]["tree"]["children"][1]["built"]
            assert built["cuda_graphs"] == ([1, 2, 4, 8] if graph else [])
            assert built["warm_up_peak_bytes"] > 0
            kept = []
            for size in (1, 2, 4, 8):
                request = {"data": rows[:size], "request_size": size}
                kept.append(pipe(request)["result"])
            pipe({"data": rows[8:16], "request_size": 8})  # replays write over static memory
            answers.append([one.cpu() for one in kept])
            seven = pipe({"data": rows[:7], "request_size": 7})["result"].cpu()
            assert torch.allclose(seven, kept[3][:7].cpu(), atol=1e-2 if dtype else 1e-5)
    for off, on in zip(*answers, strict=True):
        assert torch.equal(off, on)


def test_graphs_are_replayed_by_several_instances_at_once():
    config = {
        "backend": "S[GpuTensor,TorchModule,CpuTensor]",
        "module": f"{HERE}Small",
        "shape": "64",
        "cuda_graph": True,
        "device": DEVICE,
        "instance_num": 4,
        "max": 4,
    }
    model = Small().eval().to(DEVICE)
    rows = torch.randn(400, 64)
    with torch.inference_mode():
        expected = model(rows.to(DEVICE)).cpu()
    with headrace.pipe(config) as pipe:
        futures = [pipe.submit({"data": row}) for row in rows]
        results = torch.stack([future.result(60)["result"] for future in futures])
    assert torch.allclose(results, expected, atol=1e-4)


def test_a_model_that_cannot_be_captured_names_the_call_and_leaves_nothing_behind():
    config = {
        "backend": "S[GpuTensor,TorchModule]",
        "module": f"{HERE}Waits",
        "shape": "64",
        "device": DEVICE,
        "max": 2,
    }
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(DEVICE)
    with pytest.raises(
        SetupError, match=r"test_torch_gpu\.py, line \d+.*x\.sum\(\)\.item\(\)"
    ) as caught:
        headrace.pipe({**config, "cuda_graph": True})
    assert "cuda_graph = false" in str(caught.value)
    gc.collect()
    torch.cuda.empty_cache()  # it is refused while a capture is underway anywhere
    assert torch.cuda.memory_allocated(DEVICE) == before
    with headrace.pipe(config) as pipe:
        assert float(pipe({"data": np.ones(64, np.float32)})["result"][0]) == 2
    with headrace.pipe({**config, "module": f"{HERE}Small", "cuda_graph": True}) as pipe:
        assert pipe({"data": np.ones(64, np.float32)})["result"].shape == (64,)


def test_an_error_that_is_held_holds_no_memory_of_the_device():
    @headrace.register("Greedy", replace=True)
    class Greedy(headrace.Backend):
        owns_thread = True

        def forward(self, batch):
            big = torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)
            torch.empty(1 << 45, dtype=torch.uint8, device=DEVICE)
            del big

    with headrace.pipe({"backend": "S[GpuTensor,Greedy,SoftmaxTensor]", "device": DEVICE}) as pipe:
        with pytest.raises(BackendError):
            pipe({"data": np.ones(3, np.float32)})
        gc.collect()
        before = torch.cuda.memory_allocated(DEVICE)
        with pytest.raises(BackendError) as caught:
            pipe({"data": np.ones(3, np.float32)})
        gc.collect()
        assert torch.cuda.memory_allocated(DEVICE) - before < 1 << 20
        assert "memory" in str(caught.value)


def jpeg(k, height=48, width=64):
    from PIL import Image

    y, x = np.mgrid[0:height, 0:width]
    planes = [x * 255 // width, y * 255 // height, (x + y + 8 * k) % 256]
    file = io.BytesIO()
    Image.fromarray(np.stack(planes, -1).astype(np.uint8)).save(file, "jpeg", quality=92)
    return file.getvalue()


def test_the_gpu_decodes_what_the_cpu_does():
    files = [jpeg(k, 48 + 16 * (k % 3)) for k in range(8)]
    files[3] = files[3][:200]
    config = {"backend": "S[DecodeTensor,CpuTensor]", "max": 8, "device": DEVICE}
    try:
        pipe = headrace.pipe(config)
    except headrace.errors.MissingDependencyError as error:
        pytest.skip(str(error).splitlines()[0])
    with (
        pipe,
        headrace.pipe({**config, "backend": "DecodeTensor", "device": "cpu"}) as cpu,
    ):
        futures = [pipe.submit({"data": file}) for file in files]
        for k, future in enumerate(futures):
            if k == 3:
                assert isinstance(future.exception(60), InputError)
                continue
            got, expected = future.result(60)["result"], cpu({"data": files[k]})["result"]
            assert got.shape == expected.shape
            difference = (got.int() - expected.int()).abs()
            assert difference.float().mean() < 2  # nvJPEG blends colours between pixels
            assert difference.max() <= 40


def test_a_lost_device_takes_the_instance_out():
    program = f"""
import sys, torch, numpy as np, headrace
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
config = {{"backend": "S[GpuTensor,TorchModule]", "module": {__file__ + ":Indexed"!r}, "device": {DEVICE!r}}}
pipe = headrace.pipe(config)
good = pipe({{"data": np.array([0, 3])}})["result"]
assert good.shape == (2, 2)
try:
    pipe({{"data": np.array([0, 99])}})
except headrace.errors.InstanceLostError as error:
    print("lost", "illegal" in str(error) or "assert" in str(error))
print(pipe.ready, pipe.stats()["nodes"]["main"]["instances"][0]["alive"])
try:
    pipe({{"data": np.array([0, 1])}}, timeout=20)
except Exception as error:
    print(type(error).__name__)
pipe.close()
pipe = headrace.pipe({{**config, "device": "cpu"}})
print(pipe({{"data": np.array([0, 1])}})["result"].device, pipe.ready)
pipe.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["lost True", "False False"], done.stderr
    assert lines[3] == "cpu True"
    assert done.returncode == 0, done.stderr


def test_a_capture_that_the_model_ends_with_the_program_leaves_the_stream_free():
    runs = []

    def call(inputs):
        runs.append(torch.cuda.is_current_stream_capturing())
        if runs[-1]:
            raise SystemExit(3)
        return {"out": inputs[0] + 1}

    graphs = Graphs(torch.device(DEVICE))
    with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
        with pytest.raises(SystemExit):
            graphs.capture(call, lambda rows: (torch.zeros(rows, 2, device=DEVICE),), (2,))
        assert runs == [False, False, False, True]
        assert not torch.cuda.is_current_stream_capturing()
        assert (
            float((torch.ones(5, device=DEVICE) + 1).sum()) == 10.0
        )  # waits, which a capture forbids
    graphs.close()


def test_numbers_of_python_reach_the_device_in_the_dtype_that_is_told():
    config = {"backend": "TorchModule", "module": f"{HERE}Long", "shape": "float32:3"}
    with headrace.pipe({**config, "device": DEVICE, "max": 8, "batching_timeout": 50}) as pipe:
        futures = pipe.submit(
            [
                {"data": [1, 2.5, 3]},
                {"data": [[0, 0, 0], [4, 5, 6]], "request_size": 2},
                {"data": torch.full((3,), 7.0, device=DEVICE)},
                {"data": np.zeros(3, np.float32)},  # of the host, which is taken too
                {"data": [1e300, 0, 0]},
                {"data": ["1", "2", "3"]},
                {"data": [torch.zeros(3, device=DEVICE)], "request_size": 1},
            ]
        )
        results = [future.result(60)["result"] for future in futures[:4]]
        errors = [future.exception(60) for future in futures[4:]]
    assert all(str(one.device) == DEVICE and one.dtype == torch.float32 for one in results)
    expected = [[2, 3.5, 4], [[1, 1, 1], [5, 6, 7]], [8, 8, 8], [1, 1, 1]]
    assert [one.tolist() for one in results] == expected
    assert all(isinstance(one, InputError) and one.key == "data" for one in errors)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_two_devices_share_a_node():
    config = {
        "backend": "S[GpuTensor,TorchModule]",
        "module": f"{HERE}Long",
        "device": ["cuda:0", "cuda:1"],
        "instance_num": 4,
        "max": 2,
    }
    given = [torch.full((256,), float(k), device=f"cuda:{k % 2}") for k in range(200)]
    with headrace.pipe(config) as pipe:
        futures = [pipe.submit({"data": one}) for one in given]
        results = [future.result(60)["result"] for future in futures]
    assert {str(one.device) for one in results} == {"cuda:0", "cuda:1"}
    assert [float(one[0]) for one in results] == [k + 1 for k in range(200)]
    with headrace.pipe(
        {**config, "backend": "TorchModule", "device": "cuda:1", "instance_num": 1}
    ) as pipe:
        with pytest.raises(InputError, match="cuda:1") as caught:
            pipe({"data": given[0]})
        assert "cuda:0" in str(caught.value)


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer")
def test_compute_sanitizer_finds_nothing_in_a_short_run():
    program = """
import numpy as np, headrace
config = {"backend": "S[GpuTensor,ResizeTensor(8,8),NormalizeTensor(0.01),SoftmaxTensor,CpuTensor]",
          "device": "cuda:0", "instance_num": 2, "max": 4}
with headrace.pipe(config) as pipe:
    futures = [pipe.submit({"data": np.full((3, 9 + k % 2, 9), k, np.uint8)}) for k in range(60)]
    assert all(f.result(300)["result"].shape == (3, 8, 8) for f in futures)
"""
    done = subprocess.run(
        ["compute-sanitizer", "--error-exitcode", "9", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout


def test_reading_results_from_threads_that_know_no_stream():
    config = {"backend": "S[GpuTensor,TorchModule]", "module": f"{HERE}Long", "device": DEVICE}
    wrong = []

    def client(index, pipe):
        for turn in range(100):
            number = index * 100 + turn
            result = pipe({"data": np.full(4096, number, np.float32)})["result"]
            if float(result.sum()) != (number + 1) * 4096.0:
                wrong.append(number)

    with headrace.pipe({**config, "instance_num": 4, "max": 4}) as pipe:
        threads = [threading.Thread(target=client, args=(i, pipe)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
