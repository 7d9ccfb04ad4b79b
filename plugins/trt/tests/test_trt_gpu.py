"""Engines on a real device, against ONNX Runtime (or the reference evaluator) on the CPU."""

import json
import os
import threading

import numpy as np
import pytest
from gpu_helpers import ALONE, BOTH, GATHERED, PROFILE, QUICK, expected_of, images, relative
from onnx import TensorProto as T

import headrace
from headrace.errors import InputError, SetupError
from headrace_tensors.device_arrays import StreamRef
from headrace_trt import DeviceArray
from headrace_trt.libraries.cuda import load_cuda
from headrace_trt.running.memory import DevicePool, Stream

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu_cache")]
DEVICE = os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0")


@BOTH
@pytest.mark.parametrize(("precision", "limit"), [("model", 1e-3), ("fp16", 1e-2), ("bf16", 4e-2)])
def test_answers_and_the_precision_that_is_read_back(pipe, small_net, backend, precision, limit):
    p = pipe(
        backend=backend, model=str(small_net), profiles=[PROFILE], precision=precision, max=8,
        **QUICK,
    )  # fmt: skip
    x = images(8)
    (expected,) = expected_of(small_net, x=x)
    got = np.stack([r["result"] for r in p([{"data": image} for image in x])])
    assert relative(got, expected) <= limit
    rows = p({"data": x[:5], "request_size": 5})["result"]
    assert relative(rows, expected[:5]) <= limit
    tree = json.dumps(p.describe())
    assert '"layers_by_type"' in tree
    if precision != "model":
        assert f'"{precision}":' in tree


def test_int8_through_calibration(pipe, small_net, tmp_path):
    pytest.importorskip("onnxruntime")
    np.savez(tmp_path / "samples.npz", x=images(16, seed=1))
    p = pipe(
        backend=ALONE, model=str(small_net), profiles=[PROFILE], precision="int8", max=8,
        calibration=str(tmp_path / "samples.npz"), **QUICK,
    )  # fmt: skip
    x = images(8)
    (expected,) = expected_of(small_net, x=x)
    got = p({"data": x, "request_size": 8})["result"]
    assert (got.argmax(1) == expected.argmax(1)).mean() >= 0.75
    assert relative(got, expected) <= 0.1


@BOTH
def test_four_instances_and_forty_threads_with_distinct_answers(pipe, small_net, backend):
    p = pipe(
        backend=backend, model=str(small_net), profiles=[PROFILE], max=8, instance_num=4, **QUICK
    )
    wrong = []

    def client(seed):
        own = images(20, seed=seed)
        (expected,) = expected_of(small_net, x=own)
        got = np.stack([p({"data": image})["result"] for image in own])
        if relative(got, expected) > 1e-3:
            wrong.append((seed, relative(got, expected)))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@BOTH
def test_several_profiles_are_several_ranges(pipe, small_net, backend):
    profiles = [
        {"min": "x:1x3x16x16", "max": "x:1x3x16x16"},
        {"min": "x:2x3x16x16", "max": "x:8x3x16x16"},
    ]
    p = pipe(
        backend=backend, model=str(small_net), profiles=profiles, max=8, instance_num=2, **QUICK
    )
    x = images(8)
    (expected,) = expected_of(small_net, x=x)
    assert relative(p({"data": x[0]})["result"], expected[0]) <= 1e-3
    assert relative(p({"data": x, "request_size": 8})["result"], expected) <= 1e-3


@BOTH
def test_dynamic_height_and_width(pipe, small_net, backend):
    p = pipe(
        backend=backend, model=str(small_net), profiles=[PROFILE], max=8, ragged="group", **QUICK
    )
    mixed = [images(1, size, size)[0] for size in (16, 32, 20, 16, 31)]
    for request, image in zip(p([{"data": image} for image in mixed]), mixed, strict=True):
        assert relative(request["result"], expected_of(small_net, x=image[None])[0][0]) <= 1e-3
    with pytest.raises(InputError, match=r"16\.\.32"):
        p({"data": images(1, 33)[0]})


def test_outputs_whose_size_the_data_decide(pipe, save):
    model = save(
        [("NonZero", ["x"], ["z"], {})], [("x", T.FLOAT, ["n", 4])], [("z", T.INT64, [2, "k"])]
    )
    for where in ("cpu", "device"):
        p = pipe(backend=ALONE, model=str(model), max=1, output_device=where, **QUICK)
        for row in ([0, 1, 0, 2], [1, 2, 3, 4], [0, 0, 0, 5]):
            x = np.float32(row)
            result = p({"data": x})["result"]
            result = result.get() if isinstance(result, DeviceArray) else result
            assert result.tolist() == [list(n) for n in np.nonzero(x[None])]
    with pytest.raises(SetupError, match="CUDA graph"):
        pipe(backend=ALONE, model=str(model), max=1, cuda_graph=True, **QUICK)


@BOTH
def test_cuda_graphs_give_the_same_bits(pipe, small_net, backend):
    plain, graph = (
        pipe(
            backend=backend, model=str(small_net), profiles=[PROFILE], max=8, cuda_graph=on,
            cuda_graph_limit=2, **QUICK,
        )
        for on in (False, True)
    )  # fmt: skip
    for size in (1, 4, 8, 1, 4, 2, 1):
        x = images(size, seed=size)
        one = plain({"data": x, "request_size": size})["result"]
        two = graph({"data": x, "request_size": size})["result"]
        assert one.tobytes() == two.tobytes()


def test_pictures_as_they_are_decoded(pipe, small_net):
    profile = {"min": "x:1x16x16x3", "max": "x:4x16x16x3"}
    mean, std = (120.0, 110.0, 100.0), (60.0,)
    p = pipe(
        backend=GATHERED, model=str(small_net), profiles=[profile], max=4, image_input=True,
        mean=list(mean), std=list(std), **QUICK,
    )  # fmt: skip
    pictures = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), np.uint8)
    planar = (pictures.transpose(0, 3, 1, 2) - np.float32(mean).reshape(1, 3, 1, 1)) / 60
    (expected,) = expected_of(small_net, x=planar.astype(np.float32))
    got = np.stack([r["result"] for r in p([{"data": picture} for picture in pictures])])
    assert relative(got, expected) <= 1e-3


@BOTH
def test_torch_takes_and_gives_without_a_copy(pipe, small_net, backend):
    torch = pytest.importorskip("torch")
    seen = []

    @headrace.register("TrtGpuPointers", replace=True)
    class Pointers(headrace.Backend):
        owns_thread = True

        def init(self, options, context):
            seen.append(context.store.instance.get(("cuda.stream", torch.device(DEVICE).index)))

        def forward(self, batch):
            batch[0]["result"] = batch[0]["data"]

    p = pipe(
        backend=f"S[{backend},TrtGpuPointers]", model=str(small_net), profiles=[PROFILE], max=4,
        output_device="device", **QUICK,
    )  # fmt: skip
    x = torch.from_numpy(images(4)).to(DEVICE)
    (expected,) = expected_of(small_net, x=x.cpu().numpy())
    result = p({"data": x, "request_size": 4})["result"]
    taken = torch.from_dlpack(result)
    assert taken.data_ptr() == result.pointer
    assert taken.device == torch.device(DEVICE)
    assert relative(taken.cpu().numpy(), expected) <= 1e-3
    kept = [torch.from_dlpack(p({"data": x[i]})["result"]) for i in range(4)]
    assert len({tensor.data_ptr() for tensor in kept}) == 4
    assert relative(torch.stack(kept).cpu().numpy(), expected) <= 1e-3
    assert seen[0].handle
    with pytest.raises(InputError, match="C order"):
        p({"data": x.permute(0, 1, 3, 2), "request_size": 4})


@BOTH
def test_results_of_the_second_device_are_read_from_a_thread_on_the_first(pipe, small_net, backend):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    p = pipe(
        backend=backend, model=str(small_net), profiles=[PROFILE], max=4, device="cuda:1",
        output_device="device", **QUICK,
    )  # fmt: skip
    x = images(4)
    (expected,) = expected_of(small_net, x=x)
    assert torch.cuda.current_device() == 0
    for turn in range(20):
        result = p({"data": torch.from_numpy(x).to("cuda:1"), "request_size": 4})["result"]
        taken = torch.from_dlpack(result)
        assert taken.device.index == 1
        read = result.get() if turn % 2 else taken.cpu().numpy()
        assert relative(read, expected) <= 1e-3
        assert torch.cuda.current_device() == 0


def test_an_array_of_torch_is_read_where_it_is(pipe, small_net, monkeypatch):
    torch = pytest.importorskip("torch")
    from headrace_trt.running.execution import Execution

    bound = []
    plain = Execution.bind
    monkeypatch.setattr(
        Execution, "bind", lambda self, name, at: (bound.append((name, at)), plain(self, name, at))
    )
    p = pipe(backend=ALONE, model=str(small_net), profiles=[PROFILE], max=4, **QUICK)
    x = torch.from_numpy(images(4)).to(DEVICE)
    p({"data": x, "request_size": 4})
    assert ("x", x.data_ptr()) in bound


def test_cupy_takes_and_gives(pipe, small_net):
    cupy = pytest.importorskip("cupy")
    p = pipe(
        backend=ALONE,
        device="cuda:0",
        model=str(small_net),
        profiles=[PROFILE],
        max=4,
        output_device="device",
        **QUICK,
    )
    x = images(4)
    result = p({"data": cupy.asarray(x), "request_size": 4})["result"]
    taken = cupy.from_dlpack(result)
    assert taken.data.ptr == result.pointer
    assert relative(cupy.asnumpy(taken), expected_of(small_net, x=x)[0]) <= 1e-3
    assert relative(cupy.asnumpy(cupy.asarray(result)), expected_of(small_net, x=x)[0]) <= 1e-3


@pytest.mark.parametrize("ordinal", [0, 1])
def test_the_kernel_gathers_rows_of_any_size_from_any_address(ordinal):
    cuda = load_cuda()
    if cuda.device_count() <= ordinal:
        pytest.skip(f"no cuda:{ordinal}")
    random = np.random.default_rng(0)
    with cuda.on_device(ordinal):
        stream = Stream(cuda)
        pool = DevicePool(cuda, stream.handle, ordinal)
        here = StreamRef(stream.handle)
        memory = random.integers(0, 256, 1 << 22, np.uint8)
        source, target = pool.take(memory.nbytes), pool.take(memory.nbytes)
        cuda.copy(source.pointer, memory.ctypes.data, memory.nbytes, stream.handle)
        cases = [
            (16, 3),
            (48, 64),
            (20, 65),
            (7, 200),
            (1, 130),
            (4096, 8),
            (150_528, 27),
            (100_003, 9),
        ]
        for row_bytes, count in cases:
            for align in (16, 4, 1):
                starts = random.integers(0, (memory.nbytes - row_bytes) // align, count) * align
                sources = [source.pointer + start for start in starts.tolist()]
                cuda.queue_gather(target.pointer + align, sources, row_bytes, stream.handle)
                assert cuda._gather is not None
                shape = (count, row_bytes)
                rows = DeviceArray(
                    cuda, target.pointer + align, shape, "uint8", ordinal=ordinal, stream=here, owner=target
                )  # fmt: skip
                expected = [memory[start : start + row_bytes] for start in starts]
                assert np.array_equal(rows.get(), expected)
        stream.close()
        del source, target, rows
        pool.close()


@BOTH
def test_an_input_that_its_callers_stream_has_not_written_yet_is_waited_for(
    pipe, small_net, backend
):
    """A long kernel is queued before the input is written, so that who reads too early reads zeros."""
    torch = pytest.importorskip("torch")
    p = pipe(backend=backend, model=str(small_net), profiles=[PROFILE], max=8, **QUICK)
    x = images(3)
    (expected,) = expected_of(small_net, x=x)
    right = torch.from_numpy(x).to(DEVICE)
    stream = torch.cuda.Stream(DEVICE)
    mine = [torch.zeros_like(row) for row in right]
    mine[0].copy_(right[0]).zero_()
    with torch.cuda.device(DEVICE):
        torch.cuda._sleep(1)  # the first launch of a kernel may wait for the device
    p({"data": mine[0]})
    torch.cuda.synchronize(DEVICE)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        for one, row in zip(mine, right, strict=True):
            one.copy_(row)
        futures = [p.submit({"data": one}) for one in mine]
        assert not stream.query()  # the host has not waited
        results = [future.result(60)["result"] for future in futures]
    assert relative(np.stack(results), expected) <= 1e-3
