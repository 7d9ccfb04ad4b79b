"""What words of a chain hand each other: the rows of one tensor, and nothing that others could see."""

import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import InputError
from headrace_tensors import DeviceArray, dlpack
from headrace_tensors.device_arrays import StreamRef
from headrace_torch.devices.place import Place
from headrace_torch.devices.pool import _tensors_in
from headrace_torch.devices.staging import Staging
from headrace_torch.devices.waiting import SHORT_S, Waiting
from headrace_torch.requests.arrays import gather


@pytest.fixture
def spy():
    """Register a word that passes on what it sees, and remembers its kinds."""
    seen = []

    @headrace.register("RowsSpy", replace=True)
    class Spy(headrace.Backend):
        owns_thread = True

        def forward(self, batch):
            for request in batch:
                seen.append(type(request["data"]))
                request["result"] = request["data"]

    return seen


@pytest.fixture
def unbound(monkeypatch):
    """Count how often a tensor is taken apart into one per row."""
    calls, real = [], torch.Tensor.unbind
    counted = lambda tensor, dim=0: calls.append(1) or real(tensor, dim)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "unbind", counted)
    return calls


def images(count):
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, 256, (count, 3, 9, 8), np.uint8)
    return [torch.from_numpy(one) for one in drawn]


def piped(words, requests, **config):
    with headrace.pipe({"backend": words, "max": 8, **config}) as pipe:
        return [future.result(60)["result"] for future in pipe.submit(requests)]


def one_by_one(words, requests):
    with headrace.pipe({"backend": words}) as pipe:
        return [pipe(request)["result"] for request in requests]


def test_a_chain_is_taken_apart_once_and_gives_tensors(unbound):
    words = "S[NormalizeTensor(0.5,1),CropTensor(box=[1,1,7,7]),PadTensor(8,8),SoftmaxTensor]"
    alone = one_by_one(words, [{"data": one} for one in images(4)])
    unbound.clear()
    with headrace.pipe({"backend": words, "max": 8}) as pipe:
        found = pipe([{"data": one} for one in images(4)])
        batches = pipe.stats()["nodes"]["main"]["batches"]
    assert len(unbound) <= batches
    for request, expected in zip(found, alone, strict=True):
        assert type(request["result"]) is torch.Tensor
        assert torch.allclose(request["result"], expected)


@pytest.mark.parametrize(
    "words", ["TorchModule", "SoftmaxTensor", "CatSplit[CatTensor,TorchModule,SplitTensor]"]
)
def test_numpy_arrays_of_a_batch_become_one_tensor(words, monkeypatch):
    made, real = [], torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda array: made.append(array.shape) or real(array))
    arrays = [np.full((2, 3), k, np.float32) for k in range(4)]
    config = {"backend": words, "max": 8, "device": "cpu"}
    if "TorchModule" in words:
        config |= {"module": "torch.nn:Softmax", "args": {"dim": -1}, "shape": "2x3"}
    with headrace.pipe(config) as pipe:
        made.clear()
        found = pipe([{"data": array} for array in arrays])
        batches = pipe.stats()["nodes"]["main"]["batches"]
    assert len([shape for shape in made if shape != (0,)]) <= batches  # (0,) asks for a dtype, once
    for request in found:
        assert torch.allclose(request["result"], torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize(
    "words",
    ["ResizeTensor(9,8)", "CvtColorTensor(rgb)", "PadTensor(9,8)", "S[PadTensor(9,8),SyncTensor]"],
)
def test_arrays_with_which_nothing_is_to_be_done_become_tensors_in_any_company(words):
    given = [{"data": image.numpy(), "color": "rgb"} for image in images(3)]
    for results in (one_by_one(words, given), piped(words, given, max=3)):
        for result, request in zip(results, given, strict=True):
            assert type(result) is torch.Tensor
            assert np.array_equal(result.numpy(), request["data"])


@pytest.mark.parametrize(
    "words",
    [
        "S[NormalizeTensor(2.0),RowsSpy,SoftmaxTensor]",
        "S[NormalizeTensor(2.0),CropTensor(box=[0,0,8,9]),RowsSpy]",
        "S[CvtColorTensor(bgr),CvtColorTensor(bgr),PadTensor(9,8),RowsSpy]",  # passed on unchanged
        "S[NormalizeTensor(2.0),(key=color)RowsSpy,SoftmaxTensor]",
        "S[NormalizeTensor(2.0),S[RowsSpy,SoftmaxTensor]]",
        "S[S[CvtColorTensor(bgr),NormalizeTensor(2.0)],RowsSpy]",
        "S[GpuTensor,CatTensor,RowsSpy]",
        "S[NormalizeTensor(2.0),TopKTensor(k=1),RowsSpy]",
    ],
)
def test_nobody_else_is_given_rows(spy, words):
    requests = [{"data": one, "color": "rgb"} for one in images(4)]
    with headrace.pipe({"backend": words, "max": 8, "device": "cpu"}) as pipe:
        pipe(requests)
    assert set(spy) <= {torch.Tensor, dict}
    assert len(spy) == 4


def test_an_item_that_fails_in_the_middle_of_a_chain_fails_alone():
    words = "S[NormalizeTensor(2.0),CropTensor(box),SoftmaxTensor]"
    boxes = [[0, 0, 4, 4], [50, 50, 60, 60], [1, 1, 5, 5], [0, 0, 4, 4]]
    batch = [{"data": one, "box": box} for one, box in zip(images(4), boxes, strict=True)]
    with headrace.pipe({"backend": words, "max": 8}) as pipe:
        futures = pipe.submit([dict(request) for request in batch])
        errors = [future.exception(60) for future in futures]
    assert [type(error) for error in errors] == [type(None), InputError, type(None), type(None)]
    good = [k for k in range(4) if k != 1]
    alone = one_by_one(words, [batch[k] for k in good])
    for k, expected in zip(good, alone, strict=True):
        assert torch.allclose(futures[k].result(0)["result"], expected)


def test_a_word_that_runs_its_items_again_alone_finds_the_tensor_of_each(monkeypatch):
    from headrace_torch.backends.selection import SoftmaxTensor

    real = SoftmaxTensor.compute

    def fragile(self, whole, how):
        if len(whole) > 1:
            raise RuntimeError("more than one")
        return real(self, whole, how)

    words = "S[NormalizeTensor(2.0),CropTensor(box=[0,0,4,4]),SoftmaxTensor]"
    batch = [{"data": one} for one in images(4)]
    alone = one_by_one(words, [dict(request) for request in batch])
    monkeypatch.setattr(SoftmaxTensor, "compute", fragile)
    found = piped(words, batch)
    for result, expected in zip(found, alone, strict=True):
        assert torch.allclose(result, expected)


def test_batches_of_any_size_follow_each_other_through_a_chain():
    words = "S[NormalizeTensor(0.5,1),CropTensor(box=[1,1,7,7]),PadTensor(8,8),SoftmaxTensor]"
    requests = [{"data": one} for one in images(8)]
    alone = one_by_one(words, requests)
    with headrace.pipe({"backend": words, "max": 8}) as pipe:
        for count in (8, 3, 1, 8, 5, 3):
            found = [future.result(60)["result"] for future in pipe.submit(requests[:count])]
            assert all(torch.equal(*pair) for pair in zip(found, alone, strict=False))


def test_what_is_handed_on_is_found_in_a_request_and_let_go_with_the_batch():
    place = Place(torch.device("cpu"), None)
    whole, batch = torch.rand(3, 4), [{}, {}, {}]
    place.give(batch, whole, hands_on=True)
    found = list(_tensors_in(row for request in batch for row in request.values()))
    assert [one.tolist() for one in found] == whole.tolist()
    kept = weakref.ref(whole)
    del whole, found
    place.end()
    assert kept() is None


@pytest.fixture
def engine(monkeypatch):
    """Register the word RowsEngine; return the arrays that torch has read, and a function that changes the rows."""
    found = SimpleNamespace(read=[], wholes=[], change=lambda rows: rows)
    monkeypatch.setattr(dlpack, "CUDA", dlpack.CPU)  # where a capsule says that the memory is
    real = torch.from_dlpack
    monkeypatch.setattr(torch, "from_dlpack", lambda one: found.read.append(one) or real(one))

    @headrace.register("RowsEngine", replace=True)
    class Word(headrace.Backend):
        owns_thread = True

        def forward(self, batch):
            values = np.stack([np.asarray(request["data"]) for request in batch])
            whole = DeviceArray(
                None, values.ctypes.data, values.shape, values.dtype.name,
                ordinal=0, stream=StreamRef(0), owner=SimpleNamespace(values=values),
            )  # fmt: skip
            found.wholes.append(whole)
            for request, row in zip(batch, found.change(whole.rows()), strict=True):
                request["result"] = row

    return found


@pytest.mark.parametrize(
    "words",
    [
        "S[RowsEngine,SoftmaxTensor]",
        "S[NormalizeTensor(1.0),RowsEngine,NormalizeTensor(1.0),SoftmaxTensor]",
        "S[RowsEngine,CatSplit[CatTensor,SoftmaxTensor,SplitTensor]]",
        "S[IoC[Identity;RowsEngine],SoftmaxTensor]",
    ],
)
def test_the_batch_of_an_engine_is_read_as_one_array(words, engine):
    given = [{"data": torch.rand(1, 2, 3)} for _ in range(4)]
    with headrace.pipe({"backend": words, "max": 8, "device": "cpu"}) as pipe:
        found = pipe(given)
    assert [one.pointer for one in engine.read] == [one.pointer for one in engine.wholes]
    assert sum(one.shape[0] for one in engine.read) == 4
    for request, one in zip(found, given, strict=True):
        assert torch.allclose(request["result"], torch.softmax(one["data"], -1))


def test_a_model_reads_the_batch_of_an_engine_where_it_is_and_does_not_write_into_it(engine):
    config = {"backend": "S[RowsEngine,TorchModule]", "max": 8, "device": "cpu", "shape": "2x3"}
    config |= {"module": "torch.nn:ReLU", "args": {"inplace": True}}
    given = [{"data": torch.randn(2, 3)} for _ in range(4)]
    with headrace.pipe(config) as pipe:
        engine.read.clear()
        engine.wholes.clear()
        found = pipe(given)
    assert [one.pointer for one in engine.read] == [one.pointer for one in engine.wholes]
    for request, one in zip(found, given, strict=True):
        assert torch.equal(request["result"], one["data"].relu())
    kept = [row for whole in engine.wholes for row in np.from_dlpack(whole)]
    assert all(np.array_equal(row, one["data"]) for row, one in zip(kept, given, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[::-1],
        lambda rows: [rows[0], np.full((2, 3), 7, np.float32), *rows[2:]],
        lambda rows: [rows[0], torch.full((2, 3), 7.0), *rows[2:]],
        lambda rows: [row[:1] for row in rows],
        lambda rows: [rows[1]] * len(rows),
    ],
    ids=["order", "numpy", "torch", "slices", "twice"],
)
def test_rows_that_somebody_has_changed_are_read_one_by_one(change, engine):
    engine.change = change
    given = [{"data": torch.rand(2, 3)} for _ in range(4)]
    config = {"max": 4, "min": 4, "batching_timeout": 10_000, "device": "cpu"}
    with headrace.pipe({"backend": "S[RowsEngine,SoftmaxTensor]", **config}) as pipe:
        found = pipe(given)
    expected = change([one["data"].numpy() for one in given])
    for request, one in zip(found, expected, strict=True):
        assert torch.allclose(request["result"], torch.softmax(torch.as_tensor(one), -1))


class Event:
    """An event of a device that takes as long as it is told."""

    def __init__(self, blocking=False):
        self.blocking = blocking

    def record(self, stream):
        self.stream = stream

    def synchronize(self):
        Event.waits.append((self.blocking, self.stream))
        Event.now += Event.takes.pop(0)


def test_a_thread_waits_awake_where_the_last_wait_was_short(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.now, Event.waits, Event.takes = 0.0, [], [1.0, SHORT_S / 2, SHORT_S / 2, 1.0, 1.0]
    waiting = Waiting(lambda: Event.now)
    for turn in range(5):
        waiting.wait(turn)
    assert Event.waits == [(True, 0), (True, 1), (False, 2), (False, 3), (True, 4)]


@pytest.mark.parametrize("kind", ["", "(numpy=true)"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_rows_come_back_to_the_cpu_as_what_was_asked_for(kind, dtype):
    words = (
        f"S[GpuTensor,CatSplit[CatTensor,FixTensor({dtype},cast=true),SplitTensor],CpuTensor{kind}]"
    )
    batch = [{"data": torch.full((2, 3), float(k))} for k in range(4)]
    with headrace.pipe({"backend": words, "max": 8, "device": "cpu", "shape": "2x3"}) as pipe:
        futures = pipe.submit(batch)
        if kind and dtype == "bfloat16":
            errors = [future.exception(60) for future in futures]
            assert {type(error) for error in errors} == {InputError}
            return
        results = [future.result(60)["result"] for future in futures]
    for k, result in enumerate(results):
        assert type(result) is (np.ndarray if kind else torch.Tensor)
        assert str(result.dtype).endswith(dtype)
        assert result.tolist() == [[k] * 3] * 2


@pytest.fixture
def staging(monkeypatch):
    """A staging on a device that is the CPU, whose pinned memory is ordinary memory."""
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **more: real(*size, **more))
    place = SimpleNamespace(stream=object(), device=torch.device("cpu"), turns=0, waits=0)
    place.use = lambda: None
    place.wait = lambda: setattr(place, "waits", place.waits + 1)
    made = Staging(place)
    yield made, place
    made.close()


def test_arrays_of_one_shape_are_moved_in_memory_that_the_next_batch_uses_again(staging):
    made, place = staging
    first = [np.full((2, 3), k, np.int16) for k in range(4)]
    moved = made.moved_arrays(first)
    assert moved.dtype is torch.int16
    assert moved.tolist() == np.stack(first).tolist()
    again = made.moved_arrays([array + 1 for array in first])  # in the same batch: of its own
    assert moved.tolist() == np.stack(first).tolist()
    assert again.data_ptr() != moved.data_ptr()
    place.turns += 1
    assert made.moved_arrays(first[:2]).data_ptr() == moved.data_ptr()
    place.turns += 1
    wide = made.moved_arrays([np.full((5, 5), 0.5)] * 3)
    assert (wide == 0.5).all()
    assert wide.dtype is torch.float64


@pytest.mark.parametrize(
    "arrays",
    [
        [np.zeros(3), np.zeros(4)],
        [np.zeros(3), np.zeros(3, np.float32)],
        [np.zeros(3, ">f4"), np.zeros(3, ">f4")],
        [np.array(["a"]), np.array(["a"])],
        [np.zeros(3), torch.zeros(3)],
        [None, None],
    ],
    ids=["shapes", "dtypes", "byte order", "text", "kinds", "nothing"],
)
def test_what_is_no_set_of_like_arrays_goes_the_other_way(staging, arrays):
    made, _ = staging
    assert made.moved_arrays(arrays) is None


def test_what_is_copied_out_is_finished_and_has_an_array_where_numpy_has_the_dtype(staging):
    made, place = staging
    whole = torch.arange(6).reshape(2, 3)
    staged = made.copied_out(whole)
    assert place.waits == 1
    assert made.array_of(staged).tolist() == whole.tolist()
    assert made.array_of(staged) is made.array_of(staged)
    place.turns += 1
    assert made.array_of(made.copied_out(whole.bfloat16())) is None


@pytest.mark.parametrize("sample", [(), (3,), (3, 100, 300), (1100, 1000)])
@pytest.mark.parametrize("library", [None, "cv2"])
def test_arrays_are_gathered_as_numpy_stacks_them(sample, library, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", library and pytest.importorskip(library))
    values = np.random.default_rng(5).integers(0, 255, (3, *sample)).astype(np.int16)
    arrays = [np.asarray(one) for one in values]
    for given in (arrays, [np.array(one, order="F") for one in arrays]):
        target = np.zeros((3, *sample), np.int16)
        gather(given, target)
        np.testing.assert_array_equal(target, np.stack(given))
