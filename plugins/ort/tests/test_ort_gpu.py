"""OnnxTensor on a CUDA device, with tensors of torch as what other backends bring."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from onnx import TensorProto as T

import headrace
from headrace.errors import InputError, SetupError
from headrace_ort import binding, cuda
from headrace_tensors import DeviceArray

pytestmark = pytest.mark.gpu
DEVICE = os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0")


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return found


@pytest.fixture
def matmul(save):
    """``y = x W``: small whole numbers, so that sums are exact in any order and precision."""
    weights = np.random.default_rng(5).integers(-4, 5, (64, 32)).astype(np.float32)
    path = save(
        [("MatMul", ["x", "w"], ["y"], {})],
        [("x", T.FLOAT, ["n", 64])],
        [("y", T.FLOAT, ["n", 32])],
        [("w", weights)],
    )
    return path, weights


@pytest.fixture
def chain(save):
    """Forty matrices of 1024 x 1024: the device is far behind whoever queues them.

    The matrix turns and does not stretch, so that what is rounded is not enlarged from layer to layer.
    No convolution: ONNX Runtime plans those anew for every other batch size.
    """
    turn, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((1024, 1024)))
    nodes, before = [], "x"
    for k in range(40):
        after = "y" if k == 39 else f"t{k}"
        nodes.append(("MatMul", [before, "w"], [f"m{k}"], {}))
        nodes.append(("Tanh", [f"m{k}"], [after], {}))
        before = after
    port = ["n", 32, 1024]
    weights = [("w", turn.astype(np.float32))]
    return save(nodes, [("x", T.FLOAT, port)], [("y", T.FLOAT, port)], weights)


def forty_convolutions():
    """Return the nodes of forty layers of a convolution from ``x`` to ``y``, and their weights."""
    rng = np.random.default_rng(2)
    nodes, weights, before = [], [], "x"
    for k in range(40):
        after = "y" if k == 39 else f"t{k}"
        weights.append((f"w{k}", (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32)))
        nodes.append(("Conv", [before, f"w{k}"], [f"c{k}"], {"pads": [1, 1, 1, 1]}))
        nodes.append(("Tanh", [f"c{k}"], [after], {}))
        before = after
    return nodes, weights


@pytest.fixture
def deep(save):
    """Forty layers of a convolution."""
    nodes, weights = forty_convolutions()
    port = ["n", 16, 32, 32]
    return save(nodes, [("x", T.FLOAT, port)], [("y", T.FLOAT, port)], weights)


@pytest.fixture
def telling(save):
    """Forty layers of a convolution, and for each row in ``ran`` the number of rows of its run: a sum of ones."""
    nodes, weights = forty_convolutions()
    nodes += [
        ("ReduceMean", ["x"], ["mean"], {"axes": [1, 2, 3]}),
        ("Mul", ["mean", "zero"], ["zeros"], {}),
        ("Add", ["zeros", "unit"], ["units"], {}),
        ("ReduceSum", ["units", "axis"], ["sum"], {}),
        ("Add", ["zeros", "sum"], ["ran"], {}),
    ]
    weights += [("zero", np.float32(0)), ("unit", np.float32(1)), ("axis", np.int64([0]))]
    port = ["n", 16, 32, 32]
    outputs = [("y", T.FLOAT, port), ("ran", T.FLOAT, ["n", 1, 1, 1])]
    return save(nodes, [("x", T.FLOAT, port)], outputs, weights)


def samples_of(count, seed=0):
    return np.random.default_rng(seed).integers(-8, 9, (count, 64)).astype(np.float32)


def on_host(array):
    return array.get() if isinstance(array, DeviceArray) else array


@pytest.mark.parametrize("to", ["cpu", "device"])
@pytest.mark.parametrize("graph", [False, True])
def test_any_mixture_of_places_gives_the_same(torch, start, matmul, to, graph):
    path, weights = matmul
    backend = start(
        path, {"device": DEVICE, "batch": {"max": 8}}, output_device=to, cuda_graph=graph
    )
    assert backend.describe()["cuda_graphs"] == ([1, 2, 4, 8] if graph else [])
    for resident in ((), (0,), (1, 3), (0, 1, 2, 3)):
        arrays = [samples_of(1)[0], samples_of(2, 1), samples_of(1, 2)[0], samples_of(3, 3)]
        batch = []
        for place, array in enumerate(arrays):
            value = torch.from_numpy(array).to(DEVICE) if place in resident else array
            batch.append(
                {"data": value, **({"request_size": len(array)} if array.ndim == 2 else {})}
            )
        assert backend(batch) is None
        for array, request in zip(arrays, batch, strict=True):
            result = request["result"]
            assert isinstance(result, DeviceArray if to == "device" else np.ndarray)
            np.testing.assert_array_equal(on_host(result), array @ weights)


def test_no_copy_where_the_device_is_the_same(torch, start, matmul, monkeypatch):
    path, weights = matmul
    backend = start(path, {"device": DEVICE}, output_device="device")
    found, look = [], binding.in_place

    def seen(arrays, rows):
        found.append(look(arrays, rows))
        return found[-1]

    monkeypatch.setattr(binding, "in_place", seen)
    whole = torch.from_numpy(samples_of(4)).to(DEVICE)
    batch = [{"data": row} for row in whole]
    assert backend(batch) is None
    assert found == [True]
    tensors = [torch.from_dlpack(request["result"]) for request in batch]
    for request, tensor in zip(batch, tensors, strict=True):
        about = request["result"].__cuda_array_interface__
        assert tensor.data_ptr() == about["data"][0]
    expected = whole.cpu().numpy() @ weights
    np.testing.assert_array_equal(torch.stack(tensors).cpu().numpy(), expected)
    cupy = pytest.importorskip("cupy")
    if DEVICE != "cuda:0":
        return  # cupy makes arrays on its current device
    assert cupy.from_dlpack(batch[0]["result"]).data.ptr == tensors[0].data_ptr()
    np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(batch[1]["result"])), expected[1])
    request = {"data": cupy.asarray(samples_of(1, 9)[0])}
    assert backend([request]) is None
    np.testing.assert_array_equal(on_host(request["result"]), samples_of(1, 9)[0] @ weights)


@pytest.mark.parametrize("graph", [False, True])
def test_rows_apart_on_the_device_are_gathered_by_one_launch(
    torch, start, matmul, monkeypatch, graph
):
    path, weights = matmul
    context = {"device": DEVICE, "batch": {"sizes": (8,), "max": 8}}
    backend = start(path, context, output_device="device", cuda_graph=graph)
    single, queue = [], cuda._copies.queue_copy
    monkeypatch.setattr(cuda._copies, "queue_copy", lambda *to: single.append(to) or queue(*to))
    whole, order = torch.from_numpy(samples_of(6)).to(DEVICE), [5, 0, 3, 1, 5]
    for _ in range(2):
        batch = [{"data": whole[k]} for k in order]
        assert backend(batch) is None
        found = [on_host(request["result"]) for request in batch]
        np.testing.assert_array_equal(found, samples_of(6)[order] @ weights)
    assert single == []


@pytest.mark.parametrize("to", ["cpu", "device"])
@pytest.mark.parametrize("inputs", ["cpu", "device"])
def test_a_batch_calls_the_runtime_only_to_wait(torch, start, matmul, monkeypatch, inputs, to):
    """Its calls release the interpreter lock, the driver's keep it."""
    path, weights = matmul
    ends, called, call = [], [], cuda.call
    context = {"device": "cuda:0", "batch": {"max": 8, "at_end": ends.append}}
    backend = start(path, context, output_device=to)
    monkeypatch.setattr(cuda, "call", lambda name, *args: called.append(name) or call(name, *args))
    rows, order = samples_of(4), [3, 0, 2, 1]
    given = list(torch.from_numpy(rows).cuda()) if inputs == "device" else rows
    for _ in range(2):
        called.clear()
        batch = [{"data": given[k]} for k in order]
        assert backend(batch) is None
        for end in ends:
            end()
    assert called == (["cudaEventSynchronize"] if to == "device" else [])
    found = [on_host(request["result"]) for request in batch]
    np.testing.assert_array_equal(found, rows[order] @ weights)


def test_graphs_change_no_bit(torch, start, deep):
    x = torch.randn(5, 16, 32, 32).to(DEVICE)
    got = []
    for graph in (False, True):
        backend = start(
            deep,
            {"device": DEVICE, "batch": {"sizes": (5,)}},
            cuda_graph=graph,
            provider_options={"cuda": {"cudnn_conv_algo_search": "DEFAULT"}},
        )
        for _ in range(3):
            request = {"data": x, "request_size": 5}
            assert backend([request]) is None
        got.append(request["result"])
    np.testing.assert_array_equal(got[0], got[1])


@pytest.mark.parametrize(
    ("model", "graph", "to"),
    [
        ("chain", False, "cpu"),
        ("chain", False, "device"),
        ("chain", True, "cpu"),
        ("chain", True, "device"),
        ("deep", True, "device"),
    ],
)
def test_no_result_is_read_early_and_no_input_late(torch, request, model, graph, to):
    config = {
        "backend": "OnnxTensor",
        "model": str(request.getfixturevalue(model)),
        "max": 4,
    }
    shape = (64, 16, 32, 32) if model == "deep" else (64, 32, 1024)
    inputs = np.random.default_rng(11).standard_normal(shape, np.float32)
    with headrace.pipe({**config, "max": 64}) as pipe:
        expected = pipe({"data": inputs, "request_size": 64})["result"]
    config |= {"device": DEVICE, "instance_num": 4, "output_device": to, "cuda_graph": graph}
    config["provider_options"] = {"cuda": {"use_tf32": False}}
    wrong = []

    def client(number):
        stream = torch.cuda.Stream(DEVICE)
        order = np.random.default_rng(number).integers(0, 64, 300)
        with torch.cuda.stream(stream):
            for k in order:
                value = torch.from_numpy(inputs[k]).to(DEVICE) if k % 2 else inputs[k].copy()
                try:
                    result = pipe({"data": value})["result"]
                except Exception as error:
                    wrong.append(error)
                    return
                # At once after the answer the input is overwritten, and freed.
                value.fill_(99) if k % 2 else value.fill(99)
                del value
                if to == "device":
                    result = torch.from_dlpack(result).cpu().numpy()
                if not np.allclose(result, expected[k], atol=5e-3):
                    wrong.append((int(k), float(np.abs(result - expected[k]).max())))

    with headrace.pipe(config) as pipe:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = pipe.stats()["nodes"]["main"]
    assert wrong == []
    assert stats["ok"] == 16 * 300


def on_cuda(model, **more):
    """Return the keys of a node on CUDA that computes as exactly as the CPU, and `max` 8."""
    exact = {"cuda": {"use_tf32": False}}
    keys = {"backend": "OnnxTensor", "model": str(model), "device": "cuda:0", "max": 8}
    return {**keys, "provider_options": exact, **more}


def row_sizes_of(pipe):
    return pipe.describe()["nodes"]["main"]["tree"]["built"]["row_sizes"]


@pytest.mark.parametrize("to", ["cpu", "device"])
def test_forty_threads_before_convolutions_meet_no_number_of_rows_that_the_build_has_not_run(
    torch, telling, to
):
    inputs = np.random.default_rng(11).standard_normal((64, 16, 32, 32), np.float32)
    with headrace.pipe({"backend": "OnnxTensor", "model": str(telling), "max": 64}) as pipe:
        expected = pipe({"data": inputs, "request_size": 64})["result"]["y"]
    begin, wrong, sizes = threading.Barrier(40), [], set()

    def client(number):
        begin.wait()
        for k in np.random.default_rng(number).integers(0, 64, 50):
            try:
                result = pipe({"data": inputs[k]})["result"]
                if not np.allclose(on_host(result["y"]), expected[k], atol=5e-3):
                    wrong.append(k)
                sizes.add(float(on_host(result["ran"]).item()))
            except Exception as error:
                wrong.append(error)
                return

    with headrace.pipe(on_cuda(telling, instance_num=2, output_device=to)) as pipe:
        assert row_sizes_of(pipe) == [1, 2, 4, 8]
        burst = pipe([{"data": row} for row in inputs[:40]])
        # The build ends with the plan for eight rows, which a few runs do not give up.
        assert {float(on_host(answer["result"]["ran"]).item()) for answer in burst} == {8}
        threads = [threading.Thread(target=client, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert sizes <= {1, 2, 4, 8}


def test_single_requests_after_the_build_go_down_from_its_plan_and_never_up(telling):
    row = np.ones((16, 32, 32), np.float32)
    with headrace.pipe(on_cuda(telling)) as pipe:
        ran = [int(pipe({"data": row})["result"]["ran"].item()) for _ in range(500)]
        rows = np.stack([row] * 3)
        (more,) = {int(n) for n in pipe({"data": rows, "request_size": 3})["result"]["ran"].flat}
    assert ran[0] == 8
    assert ran == sorted(ran, reverse=True)
    assert more == max(4, ran[-1])


def test_row_sizes_that_the_user_names_are_taken_as_they_are(telling):
    rows = np.ones((3, 16, 32, 32), np.float32)
    for row_sizes, expected in (([], 3), ([6], 6)):
        with headrace.pipe(on_cuda(telling, row_sizes=row_sizes)) as pipe:
            assert row_sizes_of(pipe) == row_sizes
            ran = pipe({"data": rows, "request_size": 3})["result"]["ran"]
        assert ran.ravel().tolist() == [expected] * 3


def test_a_network_without_convolutions_runs_with_any_number_of_rows(matmul):
    with headrace.pipe(on_cuda(matmul[0])) as pipe:
        assert row_sizes_of(pipe) == []


def test_what_a_caller_has_just_started_on_the_second_device_comes_first(torch, start, matmul):
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    path, weights = matmul
    torch.zeros(1, device="cuda:0")  # a device that nothing uses is not made current again
    backend = start(path, {"device": "cuda:1"})
    assert torch.cuda.current_device() == 0
    for seed in range(20):
        x = samples_of(1, seed)[0]
        source, late = torch.from_numpy(x).to("cuda:1"), torch.zeros(64, device="cuda:1")
        torch.cuda.synchronize(1)
        with torch.cuda.device(1):
            torch.cuda._sleep(30_000_000)
        late.copy_(source)
        request = {"data": late}
        assert backend([request]) is None
        np.testing.assert_array_equal(request["result"], x @ weights)
        assert torch.cuda.current_device() == 0


def test_one_wait_per_batch(torch, matmul, monkeypatch):
    path, _ = matmul
    waits, wait = [], cuda.wait_for

    def counted(stream, event):
        waits.append(stream)
        wait(stream, event)

    for to in ("cpu", "device"):
        config = {"backend": "OnnxTensor", "model": str(path), "device": DEVICE, "max": 4}
        with headrace.pipe({**config, "output_device": to}) as pipe, monkeypatch.context() as patch:
            patch.setattr(cuda, "wait_for", counted)
            waits.clear()
            for _ in range(5):
                pipe({"data": samples_of(1)[0]})
            assert len(waits) <= 5


@pytest.mark.whole_device
def test_memory_comes_back_when_another_pipeline_takes_over(torch, deep):
    config = {"backend": "OnnxTensor", "model": str(deep), "device": DEVICE, "max": 4}
    x = np.random.default_rng(1).standard_normal((16, 32, 32)).astype(np.float32)
    free = []
    with headrace.pipe({**config, "device": "cpu"}) as pipe:
        first = pipe({"data": x})["result"]
        for _ in range(10):
            with headrace.pipe(config) as other:
                np.testing.assert_allclose(other({"data": x})["result"], first, atol=2e-2)
            torch.cuda.synchronize(DEVICE)
            free.append(torch.cuda.mem_get_info(DEVICE)[0])
    assert free[-1] >= free[2] - (8 << 20)


def test_what_is_not_there_or_elsewhere_is_told(torch, start, matmul):
    path, _ = matmul
    with pytest.raises(SetupError, match="cuda:99"):
        start(path, {"device": "cuda:99"})
    backend = start(path, {"device": DEVICE})
    gaps = torch.zeros(64, 2).to(DEVICE)[:, 0]
    (error,) = backend([{"data": gaps}])
    assert isinstance(error, InputError)
    (error,) = start(path, {"device": "cpu"})([{"data": torch.zeros(64).to(DEVICE)}])
    assert isinstance(error, InputError)
    assert DEVICE in error.got


def test_a_device_without_torch_in_the_process(matmul):
    path, weights = matmul
    program = f"""
import sys, numpy as np, headrace
config = {{"backend": "OnnxTensor", "model": {str(path)!r}, "device": {DEVICE!r}, "cuda_graph": True}}
with headrace.pipe(config) as pipe:
    print(pipe({{"data": np.ones(64, np.float32)}})["result"].tolist())
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(weights.sum(0).tolist())


@pytest.mark.whole_device
def test_memory_that_runs_out_fails_that_batch_alone(torch, start, save):
    path = save(
        [("Expand", ["x", "shape"], ["y"], {})],
        [("x", T.FLOAT, ["n", 1])],
        [("y", T.FLOAT, ["n", "m"])],
        [("shape", np.int64([1, 1 << 28]))],
    )
    backend = start(path, {"device": DEVICE}, providers=["cuda", "cpu"], output_device="device")
    free = torch.cuda.mem_get_info(DEVICE)[0]
    rows = int(free // (4 << 28)) + 2
    outcomes = backend([{"data": np.ones((rows, 1), np.float32), "request_size": rows}])
    assert outcomes is not None
    request = {"data": np.ones((1, 1), np.float32), "request_size": 1}
    assert backend([request]) is None
    assert request["result"].shape == (1, 1 << 28)


def test_a_chain_with_torch_copies_nothing(torch, matmul):
    pytest.importorskip("headrace_torch")
    path, weights = matmul
    config = {
        "backend": "S[GpuTensor,FixTensor,OnnxTensor,CpuTensor(numpy=true)]",
        "model": str(path),
        "device": DEVICE,
        "output_device": "device",
        "max": 4,
    }
    with headrace.pipe(config) as pipe:
        for seed in range(20):
            x = samples_of(1, seed)[0]
            expected = (x @ weights)[None]  # FixTensor gives the batch axis that was missing
            np.testing.assert_array_equal(pipe({"data": x})["result"], expected)
            there = torch.from_numpy(x).to(DEVICE)
            np.testing.assert_array_equal(pipe({"data": there})["result"], expected)


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_an_input_that_its_callers_stream_has_not_written_yet_is_waited_for(torch, matmul, where):
    """A long kernel is queued before the input is written, so that who reads too early reads zeros."""
    path, weights = matmul
    config = {"backend": "OnnxTensor", "model": str(path), "device": DEVICE, "max": 4}
    config["output_device"] = where
    rows = np.random.default_rng(1).integers(-4, 5, (3, 64)).astype(np.float32)
    right = torch.from_numpy(rows).to(DEVICE)
    stream = torch.cuda.Stream(DEVICE)
    mine = [torch.zeros(64, device=DEVICE) for _ in rows]
    mine[0].copy_(right[0]).zero_()
    with torch.cuda.device(DEVICE):
        torch.cuda._sleep(1)  # the first launch of a kernel may wait for the device
    with headrace.pipe(config) as pipe:
        torch.cuda.synchronize(DEVICE)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(400_000_000)
            for one, row in zip(mine, right, strict=True):
                one.copy_(row)
            futures = [pipe.submit({"data": one}) for one in mine]
            assert not stream.query()  # the host has not waited
            results = [future.result(60)["result"] for future in futures]
        if where == "device":
            results = [torch.from_dlpack(one).cpu().numpy() for one in results]
    assert np.array_equal(np.stack(results), rows @ weights)


def test_an_array_of_cupy_that_its_stream_has_not_written_yet_is_waited_for(torch, matmul):
    cupy = pytest.importorskip("cupy")
    path, weights = matmul
    torch.cuda._sleep(1)
    row = np.random.default_rng(1).integers(-4, 5, 64).astype(np.float32)
    right, mine = cupy.asarray(row), cupy.zeros(64, cupy.float32)
    cupy.copyto(mine, right)
    mine[...] = 0
    stream = cupy.cuda.Stream(non_blocking=True)
    config = {"backend": "OnnxTensor", "model": str(path), "device": "cuda:0"}
    with headrace.pipe(config) as pipe:
        cupy.cuda.Device(0).synchronize()
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch.cuda._sleep(400_000_000)
        with stream:
            cupy.copyto(mine, right)
            result = pipe({"data": mine})["result"]
    assert np.array_equal(result, row @ weights)
