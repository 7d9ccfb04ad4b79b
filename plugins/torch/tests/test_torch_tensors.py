"""Arrays of other libraries come in and go out without a copy where the device is the same."""

import array
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import InputError, SetupError
from headrace_tensors import view_of_torch
from headrace_torch.backends.batching import CatTensor, ContiguousTensor, SplitTensor
from headrace_torch.backends.geometry import PadTensor
from headrace_torch.backends.moving import CpuTensor, FixTensor, GpuTensor
from headrace_torch.backends.selection import (
    ArgMaxTensor,
    IndexSelectTensor,
    SoftmaxTensor,
    TopKTensor,
)
from headrace_torch.backends.streams import StreamPool, SyncTensor
from headrace_torch.devices import transfer
from headrace_torch.devices.memory import unless_lost
from headrace_torch.devices.place import Passing, Place
from headrace_torch.requests.tensors import as_tensor


class ByDlpack:
    """An array of a library that torch has not heard of."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **how):
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class ByArray:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


class ByInterface:
    def __init__(self, values):
        self.values = values

    @property
    def __array_interface__(self):  # as pictures of Pillow have it
        return self.values.__array_interface__


def address(values):
    return values.data_ptr() if isinstance(values, torch.Tensor) else values.ctypes.data


@pytest.mark.parametrize(
    "wrap", [lambda a: a, ByDlpack, ByArray, ByInterface, memoryview, torch.from_numpy]
)
def test_the_cpu_is_no_reason_to_copy(bench, wrap):
    one = bench()
    gpu, back = one.start(GpuTensor), one.start(CpuTensor, numpy=True)
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tensor,) = one.run(gpu, {"data": wrap(values)})
    assert isinstance(tensor, torch.Tensor)
    assert tensor.data_ptr() == values.ctypes.data
    assert tensor.dtype == torch.uint8
    (returned,) = one.run(back, {"data": tensor})
    assert type(returned) is np.ndarray
    assert address(returned) == values.ctypes.data
    assert np.array_equal(returned, values)


def test_what_may_only_be_read_is_read_without_a_copy_and_without_a_warning(recwarn):
    values = np.frombuffer(bytes(range(12)), np.uint8)
    tensor = as_tensor(values)
    assert tensor.data_ptr() == values.ctypes.data
    assert as_tensor(bytes(range(12))).tolist() == list(range(12))
    assert as_tensor(array.array("d", [1.5, 2.5])).tolist() == [1.5, 2.5]
    del values
    assert tensor.tolist() == list(range(12))
    assert not recwarn.list


def test_odd_arrays_are_copied_to_what_torch_has():
    values = np.arange(6, dtype=np.int16)
    assert as_tensor(values[::-1]).tolist() == [5, 4, 3, 2, 1, 0]
    assert as_tensor(values[:1][::-1]).tolist() == [0]  # numpy calls one number contiguous
    assert as_tensor(values.astype(">i2")).tolist() == list(range(6))
    assert as_tensor(values[::2]).data_ptr() == values.ctypes.data


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "text",
        3,
        [1, 2],
        pytest.param(object(), id="object"),
        torch.Tensor,  # the class, whose `shape` is no shape
        np.array(["a"]),
        np.array([None]),
        torch.eye(2).to_sparse(),
        torch.eye(2, device="meta"),
    ],
    ids=str,
)
def test_what_is_no_array_is_the_senders_error(bench, wrong):
    one = bench()
    for cls in (GpuTensor, CpuTensor, ContiguousTensor, ArgMaxTensor):
        error = one.error(one.start(cls), {"data": wrong})
        assert (type(error), error.key) == (InputError, "data")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("more", [{}, {"request_size": 2}])
def test_a_nested_tensor_is_the_senders_error(bench, layout, more):
    nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(4)], layout=layout)
    one = bench()
    for cls in (GpuTensor, CpuTensor, ArgMaxTensor, CatTensor):
        backend = one.start(cls)
        batch = [{"data": nested, **more}, {"data": nested, **more}]
        for error in [*one.outcomes(backend, *batch), *one.outcomes(backend, batch[0])]:
            assert (type(error), error.key) == (InputError, "data")
            assert "nested" in error.got


@pytest.mark.parametrize("device", ["cuda:97", "tpu", "cpu:1", "cuda:x"])
def test_a_device_that_is_not_there_is_an_error_that_lists_those_there_are(device):
    with pytest.raises(SetupError) as caught:
        headrace.pipe({"backend": "SoftmaxTensor", "device": device})
    assert "cpu" in caught.value.hint
    assert caught.value.backend == "SoftmaxTensor"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("word", ["GpuTensor", "DecodeTensor"])
def test_without_a_device_words_for_the_gpu_never_run_on_the_cpu(word):
    with pytest.raises(SetupError, match="cuda:0"):
        headrace.pipe({"backend": word})


def test_an_input_on_another_device_names_both(bench):
    one = bench()
    error = one.error(one.start(ArgMaxTensor), {"data": torch.zeros(3, device="meta")})
    assert isinstance(error, InputError)
    assert "meta" in str(error)
    assert "cpu" in str(error)
    assert "GpuTensor" in error.hint


def test_cpu_tensor_takes_tables_and_says_what_numpy_lacks(bench):
    one = bench()
    (table,) = one.run(
        one.start(CpuTensor, numpy=True), {"data": {"a": torch.ones(2), "b": torch.zeros(1)}}
    )
    assert {name: part.tolist() for name, part in table.items()} == {"a": [1, 1], "b": [0]}
    error = one.error(one.start(CpuTensor, numpy=True), {"data": torch.ones(2).bfloat16()})
    assert isinstance(error, InputError)


def fix(bench, value, signature=None, request=None, **options):
    one = bench()
    if signature is not None:
        one.instance.get_or_create("inputs", lambda: signature)
    backend = one.start(FixTensor, **options)
    outcome = {"data": value, **(request or {})}
    found = one.outcomes(backend, outcome)[0]
    return found if found is not None else outcome["result"]


IMAGE = {"x": {"dtype": "float32", "shape": [None, 3, None, None]}}


def test_fix_turns_an_image_round_and_gives_it_its_batch_axis(bench):
    image = np.random.default_rng(0).standard_normal((5, 7, 3)).astype(np.float32)
    result = fix(bench, image, IMAGE)
    assert result.shape == (1, 3, 5, 7)
    assert result.is_contiguous()
    assert np.array_equal(result[0].permute(1, 2, 0).numpy(), image)
    planar = torch.from_numpy(image).permute(2, 0, 1).contiguous()
    assert torch.equal(fix(bench, planar, IMAGE), result)
    assert fix(bench, planar, IMAGE).data_ptr() == planar.data_ptr()
    rows = np.stack([image, image + 1])
    assert fix(bench, rows, IMAGE, {"request_size": 2}).shape == (2, 3, 5, 7)
    assert fix(
        bench, image[..., 0], {"x": {"dtype": "float32", "shape": [None, 1, 5, 7]}}
    ).shape == ((1, 1, 5, 7))


def test_fix_converts_only_where_it_was_asked_to(bench):
    image = np.full((5, 7, 3), 200, np.uint8)
    error = fix(bench, image, IMAGE)
    assert isinstance(error, InputError)
    assert "cast" in error.hint
    result = fix(bench, image, IMAGE, cast=True)
    assert (result.dtype, float(result.max())) == (torch.float32, 200.0)


def test_fix_drops_no_imaginary_part(bench):
    image = np.full((3, 5, 7), 1 + 2j, np.complex64)
    error = fix(bench, image, IMAGE, cast=True)
    assert isinstance(error, InputError)
    assert "imaginary" in error.what
    assert fix(bench, image, shape="3x5x7", cast=True).dtype == torch.complex64


def test_fix_takes_from_its_options_what_the_model_does_not_tell(bench):
    values = torch.arange(6.0)
    result = fix(bench, values, dtype="float32", shape="6")
    assert result.shape == (1, 6)
    assert fix(
        bench, values, {"x": {"dtype": None, "shape": [None, 6]}}, dtype="float32"
    ).shape == (1, 6)
    assert isinstance(fix(bench, values, shape="5"), InputError)
    assert isinstance(fix(bench, values, dtype="int64", shape="6"), InputError)
    assert fix(bench, values).shape == (1, 6)  # nobody tells: a sample without request_size
    several = {
        "a": {"dtype": "float32", "shape": [None, 6]},
        "b": {"dtype": "int64", "shape": [None]},
    }
    assert fix(bench, values, several, input="a").shape == (1, 6)


def test_fix_finds_what_a_module_behind_it_tells():
    config = {
        "backend": "S[FixTensor,TorchModule]",
        "module": "headrace_torch.conformance:small_model",
        "TorchModule::shape": "5",
        "max": 4,
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": np.ones(5, np.float32)})["result"].shape == (1, 3)
        with pytest.raises(InputError, match="FixTensor"):
            pipe({"data": np.ones(5, np.float64)})


@pytest.mark.parametrize("told", ["", ",shape=2x2"])
def test_fix_goes_by_the_model_behind_it_where_there_are_two(told):
    first, second = "module='torch.nn:Flatten'" + told, "module='torch.nn:ReLU',shape=4"
    words = f"S[FixTensor,TorchModule({first}),FixTensor,TorchModule({second})]"
    with headrace.pipe({"backend": words, "device": "cpu"}) as pipe:
        result = pipe({"data": torch.tensor([[1.0, -2], [-3, 4]])})["result"]
    assert result.tolist() == [[1, 0, 0, 4]]


def test_softmax_argmax_topk_and_index_are_numpys(bench):
    one = bench()
    values = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    power = np.exp(values - values.max(-1, keepdims=True))
    for request, rows in (
        ({"data": values}, slice(None)),
        ({"data": values, "request_size": 2}, slice(None)),
        ({"data": values[1]}, 1),
    ):

        def result(cls, request=request, **options):
            return one.run(one.start(cls, **options), dict(request))[0]

        expected = (power / power.sum(-1, keepdims=True))[rows]
        assert np.allclose(result(SoftmaxTensor).numpy(), expected, atol=1e-6)
        assert np.array_equal(result(ArgMaxTensor).numpy(), values[rows].argmax(-1))
        order = np.argsort(-values[rows], -1)[..., :3]
        top = result(TopKTensor, k=3)
        assert np.array_equal(top["indices"].numpy(), order)
        assert np.array_equal(top["values"].numpy(), np.take_along_axis(values[rows], order, -1))
        picked = result(IndexSelectTensor, index=(0, -1, 2))
        assert np.array_equal(picked.numpy(), values[rows][..., [0, -1, 2]])


@pytest.mark.parametrize("word", [SoftmaxTensor, ArgMaxTensor, TopKTensor])
@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "float8_e4m3fn", "bool"])
def test_a_dtype_that_torch_cannot_compute_with_is_refused_alone(bench, word, dtype):
    one = bench()
    options = {"k": 1} if word is TopKTensor else {}
    wrong = torch.ones(3).to(getattr(torch, dtype))
    started = one.start(word, **options)
    bad, good = one.outcomes(started, {"data": wrong}, {"data": torch.ones(3)})
    assert (bad.key, bad.got, good) == ("data", f"{dtype} [3] on cpu", None)


def test_an_axis_is_one_of_the_sample_whether_rows_come_or_not(bench):
    one = bench()
    values = torch.randn(4, 3, 5)
    first = one.start(ArgMaxTensor, dim=0)
    assert torch.equal(one.run(first, {"data": values})[0], values.argmax(0))
    assert torch.equal(one.run(first, {"data": values, "request_size": 4})[0], values.argmax(1))
    last = one.start(ArgMaxTensor)
    assert torch.equal(one.run(last, {"data": values, "request_size": 4})[0], values.argmax(-1))
    assert isinstance(one.error(first, {"data": torch.zeros(4), "request_size": 4}), InputError)
    assert isinstance(one.error(first, {"data": values, "request_size": 3}), InputError)
    assert isinstance(one.error(one.start(TopKTensor, k=6), {"data": values}), InputError)
    assert isinstance(one.error(one.start(SoftmaxTensor), {"data": torch.arange(3)}), InputError)


def test_indices_of_the_request_are_checked(bench):
    one = bench()
    pick = one.start(IndexSelectTensor, key="which", dim=0)
    values = torch.arange(5) * 10
    batch = [{"data": values, "which": which} for which in ([4, 0], np.array([-1]), [4, 0])]
    assert [r.tolist() for r in one.run(pick, *batch)] == [[40, 0], [40], [40, 0]]
    indices = np.array([4, 0])
    for which in (list(indices), list(torch.from_numpy(indices)), ByDlpack(indices)):
        assert one.run(pick, {"data": values, "which": which})[0].tolist() == [40, 0]
    for wrong in ([5], [-6], [1.5], "0", b"0", None, [[1]], [True], [np.True_], indices[0]):
        error = one.error(pick, {"data": values, "which": wrong})
        assert (type(error), error.key) == (InputError, "which")


def test_cat_split_gives_each_its_rows_as_it_came():
    seen = []

    class Double(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                seen.append(request["data"].shape[0])
                request["result"] = request["data"] * 2

    name = "DoubleOfCatSplitTest"
    headrace.register(name, Double)
    config = {"backend": f"CatSplit[CatTensor,S[ContiguousTensor,{name}],SplitTensor]", "max": 8}
    with headrace.pipe(config) as pipe:
        batch = [
            {"data": torch.tensor([1.0, 2.0])},
            {"data": torch.tensor([[3.0, 4.0], [5.0, 6.0]]), "request_size": 2},
            {"data": torch.tensor([[7.0, 8.0]]), "request_size": 1},
        ]
        results = [request["result"] for request in pipe(batch)]
    assert seen == [4]
    assert [r.tolist() for r in results] == [[2, 4], [[6, 8], [10, 12]], [[14, 16]]]


def test_words_inside_of_cat_split_give_what_they_give_outside():
    words = (
        "CvtColorTensor(bgr),NormalizeTensor(0.01,0.5),CropTensor(box=[1,1,7,7]),PadTensor(8,8),"
        "SoftmaxTensor,TopKTensor(3)"
    )
    images = torch.arange(4 * 3 * 8 * 8, dtype=torch.float32).reshape(4, 3, 8, 8)
    own = images.clone()
    padded = torch.zeros(4, 3, 8, 8)
    padded[:, :, :6, :6] = (images.flip(1) * 0.01 - 0.5)[:, :, 1:7, 1:7]
    expected = padded.softmax(-1).topk(3).values
    kinds = {
        "samples": [{"data": image} for image in images],
        "rows": [{"data": images[:3], "request_size": 3}, {"data": images[3]}],
    }
    for form in (f"S[{words}]", f"CatSplit[CatTensor,S[{words}],SplitTensor]"):
        with headrace.pipe({"backend": form, "device": "cpu", "max": 8}) as pipe:
            for requests in kinds.values():
                found = pipe([{**request, "color": "rgb"} for request in requests])
                rows = [request["result"]["values"].reshape(-1, 3, 8, 3) for request in found]
                torch.testing.assert_close(torch.cat(rows), expected)
                assert [one["result"]["values"].ndim for one in found] == [
                    one["data"].ndim for one in requests
                ]
            # One that is wrong says so; the whole of those gathered with it is not touched.
            with pytest.raises(InputError, match="color"):
                pipe({"data": images[0], "color": "mauve"})
    assert torch.equal(images, own)


def test_split_gives_rows_of_their_own_as_samples_to_the_word_behind():
    config = {"backend": "S[CatSplit[CatTensor,NormalizeTensor(2),SplitTensor],SoftmaxTensor]"}
    images = [torch.rand(3, 4, 4) for _ in range(3)]
    with headrace.pipe({**config, "device": "cpu", "max": 4}) as pipe:
        found = pipe([{"data": image} for image in images])
        alone = pipe({"data": images[0]})
    for request, image in zip([*found, alone], [*images, images[0]], strict=True):
        torch.testing.assert_close(request["result"], (image * 2).softmax(-1))


def test_cat_refuses_what_does_not_fit_the_first_alone(bench):
    one = bench()
    cat = one.start(CatTensor)
    batch = [{"data": torch.zeros(2)}, {"data": torch.zeros(3)}, {"data": torch.ones(2)}]
    found = one.outcomes(cat, *batch)
    assert [type(o) for o in found] == [type(None), InputError, type(None)]
    assert "ragged" not in str(found[1])  # which CatTensor has not
    assert batch[0]["result"] is batch[2]["result"]
    assert batch[2]["result"].tolist() == [[0, 0], [1, 1]]
    assert batch[2]["cat_rows"] == (1, 2, True)


def test_split_without_a_note_goes_by_the_weights(bench):
    one = bench()
    whole = torch.arange(4) * 10
    split = one.start(SplitTensor)
    results = one.run(split, {"data": whole}, {"data": whole, "request_size": 2}, {"data": whole})
    assert [r.tolist() for r in results] == [0, [10, 20], 30]
    for rows in (5, 3):
        assert isinstance(one.error(split, {"data": whole, "request_size": rows}), InputError)
    assert one.error(split, {"data": whole}).got == "int64 [4] on cpu"  # three rows of no request
    for wrong in ("0:1", (3, 1, False), (-1, 0, True), (2, 2, False), (0.0, 1, True), (0, 2, True)):
        error = one.error(split, {"data": whole, "cat_rows": wrong})
        assert error.key == "cat_rows"


@pytest.mark.parametrize(("place", "expected"), [(Place, 1), (Passing, 3)])
def test_an_array_of_another_device_is_ordered_behind_its_own_library(monkeypatch, place, expected):
    """On the instance's device DLPack orders the instance's stream; elsewhere the default stream, array by array."""
    waited = []
    stream = SimpleNamespace(wait_stream=waited.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    cpu = torch.device("cpu")
    found = place(cpu) if place is Passing else place(cpu, None)
    found._default = SimpleNamespace(query=lambda: False)
    for _ in range(3):
        found._order()
    assert waited == [found._default] * expected


def test_each_thread_of_an_instance_has_its_place_and_its_end(monkeypatch):
    """On a GPU the place makes the stream current: the second thread would work on the default stream, unwaited for."""
    ran, ended = {}, []
    monkeypatch.setattr(Place, "end", lambda self: ended.append((self, threading.get_ident())))
    for word in (SoftmaxTensor, ContiguousTensor, ArgMaxTensor):

        def run(self, batch, real=word.run):
            ran[type(self).__name__] = self._place, threading.get_ident()
            return real(self, batch)

        monkeypatch.setattr(word, "run", run)
    words = "S[SoftmaxTensor,BackgroundThread[ContiguousTensor],ArgMaxTensor]"
    with headrace.pipe({"backend": words, "device": "cpu"}) as pipe:
        assert int(pipe({"data": torch.tensor([1.0, 3, 2])})["result"]) == 1
    assert ran["SoftmaxTensor"] == ran["ArgMaxTensor"] != ran["ContiguousTensor"]
    assert set(ended) == set(ran.values())


def test_only_the_thread_of_a_place_is_set_back(monkeypatch):
    """The place of a `BackgroundThread` is closed in the thread of the instance, whose stream stays."""
    current = {}
    here = threading.get_ident
    cuda = {
        "current_stream": lambda device: current.get(here(), "default"),
        "device": lambda device: nullcontext(),
        "set_stream": lambda stream: current.update({here(): stream}),
    }
    for name, fake in cuda.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(Place, "_watch", lambda self, device: None)
    made = []
    stream = SimpleNamespace(synchronize=lambda: None)
    device = torch.device("cpu")  # so that no memory of a GPU is asked for
    other = threading.Thread(target=lambda: made.append(Place(device, stream)))
    other.start()
    other.join()
    made.append(Place(device, stream))
    assert list(current.values()) == [stream, stream]
    made[0].close()
    assert current[here()] is stream
    made[1].close()
    assert current[here()] == "default"


def test_what_comes_from_a_gpu_to_the_cpu_is_copied_on_a_stream_beside_it(monkeypatch):
    given = SimpleNamespace(device=torch.device("cuda", 1))
    place = Place(torch.device("cpu"), None)
    beside = place._others[given.device] = SimpleNamespace(stream=None)
    monkeypatch.setattr(transfer, "copied_back", lambda tensors, where: [(*tensors, where)])
    assert transfer.moved_in(given, place) == (given, beside)


def test_sync_and_pool_change_no_result(bench):
    one = bench()
    inner = one.start(SoftmaxTensor)
    values = torch.randn(3, 4)
    (expected,) = one.run(inner, {"data": values})
    (around,) = one.run(one.start(SyncTensor, inner), {"data": values})
    assert torch.equal(around, expected)
    (passed,) = one.run(one.start(SyncTensor), {"data": values})
    assert passed is values
    config = {"backend": "S[StreamPool(max=2)[SoftmaxTensor],SyncTensor]", "max": 4}
    with headrace.pipe(config) as pipe:
        assert torch.equal(pipe({"data": values})["result"], expected)
    assert StreamPool.rerun is SyncTensor.rerun is False


@pytest.mark.parametrize("around", ["SyncTensor[{}]", "StreamPool[{}]"])
def test_what_is_inside_of_them_may_read_other_keys_than_data(around):
    config = {
        "backend": around.format("TorchModule"),
        "module": "torch.nn:PairwiseDistance",
        "device": "cpu",
    }
    with headrace.pipe(config) as pipe:
        request = pipe({"x1": torch.zeros(2), "x2": torch.tensor([3.0, 4.0])})
    assert request["result"].item() == pytest.approx(5, abs=1e-3)


def test_a_batch_is_waited_for_once_whatever_its_words(bench):
    one = bench()
    words = [one.start(cls) for cls in (GpuTensor, ContiguousTensor, SoftmaxTensor, ArgMaxTensor)]
    place = words[0]._place
    assert all(word._place is place for word in words)
    waits = place.waits
    for _ in range(3):
        batch = [{"data": torch.randn(5)} for _ in range(4)]
        for word in words:
            assert word(batch) is None
            for request in batch:
                request["data"] = request.pop("result")
        for end in one.ends:
            end()
    assert place.waits - waits == 3


class Halved(torch.nn.Module):
    """A function of ``[N, 3, H, W]`` that refuses another rank, and tells no shape."""

    def forward(self, x):
        rows, channels, _, _ = x.shape
        assert channels == 3
        return x.reshape(rows, -1)[:, :4] / 2


IMAGE_HWC = np.arange(4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3)
FIX = "FixTensor(float32,3x-1x-1)"


@pytest.mark.parametrize(
    "expression",
    [
        f"S[{FIX},TorchModule]",
        f"CatSplit[S[{FIX},CatTensor],TorchModule,SplitTensor]",
        f"S[{FIX},CatSplit[CatTensor,TorchModule,SplitTensor]]",
        f"S[{FIX},PadTensor(4,5),NormalizeTensor(1),ContiguousTensor,TorchModule,SoftmaxTensor(0)]",
        f"S[{FIX},IndexSelectTensor([0,1,2],dim=0),TorchModule]",
    ],
)
@pytest.mark.parametrize("shape", [{}, {"shape": "3x4x5"}], ids=["no-rank", "rank"])
def test_the_batch_axis_of_fix_is_seen_where_no_rank_is_told(expression, shape):
    config = {
        "backend": expression,
        "module": f"{__name__}:Halved",
        "device": "cpu",
        "max": 8,
        "batching_timeout": 50,
        **{f"TorchModule::{key}": value for key, value in shape.items()},
    }
    rows = np.stack([IMAGE_HWC + 1, IMAGE_HWC + 2])
    with headrace.pipe(config) as pipe:
        alike = pipe([{"data": IMAGE_HWC}, {"data": IMAGE_HWC + 3}])
        found = pipe(
            [{"data": IMAGE_HWC}, {"data": rows, "request_size": 2}, {"data": IMAGE_HWC + 3}]
        )
    planes = [IMAGE_HWC[None], rows, IMAGE_HWC[None] + 3]
    for request, plane in zip(found, planes, strict=True):
        expected = plane.transpose(0, 3, 1, 2).reshape(len(plane), -1)[:, :4] / 2
        if "Softmax" in expression:
            powers = np.exp(expected)
            expected = powers / powers.sum(1, keepdims=True)
        np.testing.assert_allclose(request["result"], expected, rtol=1e-5)
    # Samples alone, which can be worked on as one tensor, keep their batch axis, too.
    for request, other in zip(alike, (found[0], found[2]), strict=True):
        np.testing.assert_allclose(request["result"], other["result"], rtol=1e-6)


@pytest.mark.parametrize("shape", ["float32:3x-1x-1", {"x": "float32:3x-1x-1"}, {"x": "3x4x5"}])
def test_one_shape_of_the_node_serves_fix_and_the_module(shape):
    config = {
        "backend": "S[FixTensor(cast=true),TorchModule]",
        "module": f"{__name__}:Halved",
        "device": "cpu",
        "shape": shape,
    }
    with headrace.pipe(config) as pipe:
        result = pipe({"data": IMAGE_HWC.astype(np.float32)})["result"]
    np.testing.assert_array_equal(result[0], IMAGE_HWC[..., 0].reshape(-1)[:4] / 2)


@pytest.mark.parametrize("option", ["float33", "int7", "float32 "])
def test_a_dtype_that_torch_lacks_is_an_error_of_the_configuration(option):
    with pytest.raises(headrace.errors.ConfigError, match="'float32'"):
        headrace.pipe({"backend": "FixTensor", "dtype": option, "device": "cpu"})


def test_one_axis_or_index_may_be_a_number(bench):
    config = {"backend": "S[FixTensor(float32,3),IndexSelectTensor(1)]", "device": "cpu"}
    with headrace.pipe(config) as pipe:
        result = pipe({"data": torch.tensor([5.0, 6.0, 7.0])})["result"]
    assert result.tolist() == [[6.0]]
    with headrace.pipe(
        {"backend": "TorchModule(module=torch.nn:ReLU,shape=2)", "device": "cpu"}
    ) as pipe:
        assert pipe({"data": torch.tensor([-1.0, 1.0])})["result"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("expression", "value", "shown"),
    [
        ("SoftmaxTensor", torch.arange(4), "got int64 [4] on cpu"),
        ("TopKTensor(9)", torch.zeros(2, 5), "got float32 [2, 5] on cpu"),
        ("ResizeTensor(2,2)", torch.zeros(2, 7, 7), "got float32 [2, 7, 7] on cpu"),
        ("PadTensor(2,2)", torch.zeros(3, 7, 7), "got float32 [3, 7, 7] on cpu"),
        ("GpuTensor", "text", "got str"),
        (
            "TorchModule(module=torch.nn:ReLU,shape=2,dtype=float16)",
            torch.zeros(3),
            "got float32 [3] on cpu",
        ),
    ],
)
def test_an_error_shows_the_array_as_it_came(expression, value, shown):
    pipe = headrace.pipe({"backend": expression, "device": "cpu"})
    with pipe, pytest.raises(InputError) as caught:
        pipe({"data": value})
    assert f"{shown} [node" in str(caught.value)


def test_errors_of_one_call_show_each_request_its_own_array(bench):
    """Images of one shape are computed in one call; what is wrong with them all is told to each by itself."""
    one = bench()
    pad = one.start(PadTensor, pad_h=2, pad_w=2)
    sample, rows = torch.zeros(3, 7, 7), torch.zeros(2, 3, 7, 7)
    batch = [{"data": sample}, {"data": rows, "request_size": 2}, {"data": sample}]
    assert [error.got for error in pad(batch)] == [
        "float32 [3, 7, 7] on cpu",
        "float32 [2, 3, 7, 7] on cpu",
        "float32 [3, 7, 7] on cpu",
    ]


def test_only_a_lost_device_is_not_told_when_memory_is_given_back(caplog):
    with unless_lost("this"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    assert not caplog.records
    with unless_lost("this"):
        raise RuntimeError("invalid argument\n")
    assert [record.getMessage() for record in caplog.records] == ["this failed: invalid argument"]
    with pytest.raises(KeyError), unless_lost("this"):
        raise KeyError


def test_a_tensor_whose_memory_holds_other_values_than_it_shows_is_not_read_by_its_address():
    """On the CPU torch's number of the device is -1. Conjugated and negated tensors change their values as they are read."""
    z = torch.tensor([1 + 2j, 3 - 4j])
    shown = [z.conj(), z.conj().imag, z.conj().imag[:1], z.conj()[0].imag]
    assert shown[2].is_neg()
    assert shown[2].is_contiguous()
    assert [view_of_torch(one, -1) for one in shown] == [None] * 4
    for plain in (z.imag[:1].clone(), torch.arange(6.0).reshape(2, 3), torch.tensor(3.0)):
        found = view_of_torch(plain, -1)
        assert found == (plain.data_ptr(), tuple(plain.shape), "float32")
