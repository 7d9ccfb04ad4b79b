"""Arrays on which the caller's own stream still works, on a device of host memory."""

import ctypes
import math
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from trt_expressions import BOTH, samples

from headrace.errors import InputError
from headrace_tensors.entering import Mark

pytest.importorskip("onnxruntime")


class Queued:
    """An array of a library whose stream is the thread's, as CuPy's is; what writes it is queued on a stream."""

    def __init__(self, device, values):
        self.shape, self.pointer = values.shape, device.malloc(values.nbytes)
        self.stream, self.thread = device.stream_create(), threading.get_ident()
        raw = values.tobytes()
        device.queue(self.stream, lambda: ctypes.memmove(self.pointer, raw, len(raw)))

    @property
    def __cuda_array_interface__(self):
        own = self.stream if threading.get_ident() == self.thread else None
        about = {"shape": self.shape, "typestr": "<f4", "data": (self.pointer, False)}
        return {**about, "version": 3, "strides": None, "stream": own}


def call(p, request):
    return p(request)["result"]


def call_with_a_list(p, request):
    return p([request])[0]["result"]


def submit(p, request):
    return p.submit(request).result(60)["result"]


@pytest.fixture
def waits(device, monkeypatch):
    """Which streams of the device wait for a mark, and in which thread; a mark on a stream does its work."""
    found = []

    def mark_of(ordinal, handle):
        assert ordinal is None
        assert device.streams[handle]  # the stream is busy
        device.stream_synchronize(handle)
        return type(
            "", (), {"hold_back": lambda self, to: found.append((to, threading.get_ident()))}
        )()

    monkeypatch.setattr("headrace_tensors.entering.mark_of", mark_of)
    monkeypatch.setattr(Mark, "made", True)
    return found


WAYS = pytest.mark.parametrize("way", [call, call_with_a_list, submit], ids=lambda w: w.__name__)


@WAYS
@BOTH
def test_what_a_callers_stream_has_queued_is_waited_for(
    device, waits, plan, pipe, linear, backend, way
):
    model, expected = linear
    p = pipe(backend=backend, model=str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))})), max=8)
    arrays = [Queued(device, sample) for sample in samples(4)]
    for sample, array in zip(samples(4), arrays, strict=True):
        assert np.allclose(way(p, {"data": array}), expected(sample))
    assert len(waits) == 4
    assert {thread for _, thread in waits}.isdisjoint({threading.get_ident()})
    assert {stream for stream, _ in waits}.isdisjoint({array.stream for array in arrays})


@pytest.fixture
def torch(device, monkeypatch):
    """A stand-in for torch: tensors lie on the device, and a stream of this thread writes them."""

    class Tensor:
        is_cuda, requires_grad, dtype, layout = True, False, "torch.float32", "strided"

        def __init__(self, values, **about):
            self.shape, self.values, self.here = values.shape, values, device.malloc(values.nbytes)
            ctypes.memmove(self.here, values.ctypes.data, values.nbytes)
            self.dense, self.ordinal = True, 0
            self.__dict__.update(about)

        def get_device(self):
            return self.ordinal

        def data_ptr(self):
            return self.here

        def is_contiguous(self):
            return self.dense

        def numel(self):
            return math.prod(self.shape)

        def __dlpack_device__(self):
            return 2, self.ordinal

        def __dlpack__(self, *, stream=None):
            raise BufferError("not as it is")

    found = SimpleNamespace(Tensor=Tensor, strided="strided", behind=[])
    found._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 5)

    def mark_of(ordinal, handle):
        found.behind.append((ordinal, handle, threading.get_ident()))

    monkeypatch.setattr("headrace_tensors.entering.mark_of", mark_of)
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


@BOTH
def test_tensors_of_torch_are_read_by_their_address(torch, plan, pipe, linear, backend):
    model, expected = linear
    p = pipe(backend=backend, model=str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))})), max=8)
    rows = samples(4)
    answers = p([{"data": torch.Tensor(row)} for row in rows])
    for row, answer in zip(rows, answers, strict=True):
        assert np.allclose(answer["result"], expected(row))
    me = threading.get_ident()
    assert torch.behind.count((0, 5, me)) == 1  # one question for a list
    others = [thread for *_, thread in torch.behind if thread != me]
    assert others  # the stream that is current in the instance's thread comes first
    answer = p({"data": torch.Tensor(np.stack(rows)), "request_size": 4})["result"]
    assert np.allclose(answer, np.stack([expected(row) for row in rows]))


@BOTH
def test_neighbouring_tensors_of_torch_are_read_where_they_are(
    torch, device, plan, pipe, linear, backend
):
    model, expected = linear
    p = pipe(
        backend=backend,
        model=str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))})),
        min=4,
        max=4,
        batching_timeout=10_000,
        output_device="device",
    )
    rows = np.stack(samples(4))
    start, step = torch.Tensor(rows).here, rows[0].nbytes
    given = [torch.Tensor(row, here=start + k * step) for k, row in enumerate(rows)]
    for order, copied in (([0, 1, 2, 3], 0), ([1, 0, 2, 3], 4), ([0, 0, 1, 2], 4)):
        device.copies.clear()
        answers = p([{"data": given[k]} for k in order])
        assert len(device.copies) == copied
        for k, answer in zip(order, answers, strict=True):
            assert np.allclose(answer["result"].get(), expected(rows[k]))


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_neighbours_of_two_allocations_are_not_copied_at_once(
    torch, device, plan, pipe, linear, monkeypatch, cuda_graph
):
    """CUDA answers such a copy with ``invalid argument``; torch's allocator has many neighbouring allocations."""
    monkeypatch.setattr("headrace_tensors.device_copies.load_driver", lambda: device)
    model, expected = linear
    p = pipe(
        backend="TensorrtTensor",
        model=str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))})),
        min=4,
        max=4,
        batching_timeout=10_000,
        cuda_graph=cuda_graph,
    )
    rows = np.stack(samples(4))
    start, step = torch.Tensor(rows).here, rows[0].nbytes
    raw, nbytes = device.memory[start]
    given = [torch.Tensor(row, here=start + k * step) for k, row in enumerate(rows)]
    for border, copies in ((0, 0), (2 * step, 4), (3 * step, 4)):
        device.memory[start] = raw, border or nbytes
        if border:
            device.memory[start + border] = raw, nbytes - border
        device.copies.clear()
        answers = p([{"data": one} for one in given])
        came = [source for _, source, _ in device.copies if start <= source < start + nbytes]
        assert len(came) == (copies or cuda_graph)
        for row, answer in zip(rows, answers, strict=True):
            assert np.allclose(answer["result"], expected(row))


def test_a_tensor_of_torch_that_may_have_to_be_refused_is_read_by_its_capsule(
    torch, plan, pipe, linear
):
    model, _ = linear
    p = pipe(backend="TensorrtTensor", model=str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))})))
    (row,) = samples(1)
    for about in ({"requires_grad": True}, {"dense": False}, {"layout": "sparse"}):
        with pytest.raises(InputError, match="not as it is"):
            p({"data": torch.Tensor(row, **about)})
    with pytest.raises(InputError, match="another device"):
        p({"data": torch.Tensor(row, ordinal=1)})
    with pytest.raises(InputError, match="dtype"):
        p({"data": torch.Tensor(row, dtype="torch.int32")})
