"""Arrays on which the caller's own stream still works, on a device of host memory."""

import ctypes
import sys
import threading
from types import SimpleNamespace

import device_stand_ins
import numpy as np
import pytest
from device_stand_ins import Queued
from trt_expressions import BOTH, samples

from headrace.errors import InputError
from headrace_tensors.entering import Mark

pytest.importorskip("onnxruntime")


def queued(device, values):
    """Return an array that is written once its stream is waited for."""
    raw, pointer, stream = values.tobytes(), device.malloc(values.nbytes), device.stream_create()
    device.queue(stream, lambda: ctypes.memmove(pointer, raw, len(raw)))
    about = {"shape": values.shape, "typestr": "<f4", "data": (pointer, False), "strides": None}
    return Queued(about, stream)


@pytest.fixture
def waits(device, monkeypatch):
    """Which streams of the device wait for a mark, and in which thread; a mark on a stream does its work."""
    found = []

    def mark_of(ordinal, handle):
        assert ordinal == 0
        assert device.streams[handle]  # the stream is busy
        device.stream_synchronize(handle)
        return type(
            "", (), {"hold_back": lambda self, to: found.append((to, threading.get_ident()))}
        )()

    monkeypatch.setattr("headrace_tensors.entering.mark_of", mark_of)
    monkeypatch.setattr(Mark, "made", True)
    return found


@BOTH
def test_what_a_callers_stream_has_queued_is_waited_for(device, waits, plan, pipe, linear, backend):
    model, expected = linear
    p = pipe(backend=backend, model=str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))})), max=8)
    arrays = [queued(device, sample) for sample in samples(4)]
    for sample, array in zip(samples(4), arrays, strict=True):
        assert np.allclose(p({"data": array})["result"], expected(sample))
    assert len(waits) == 4
    assert {thread for _, thread in waits}.isdisjoint({threading.get_ident()})
    assert {stream for stream, _ in waits}.isdisjoint({array.stream for array in arrays})


@pytest.fixture
def torch(device, monkeypatch):
    """Let tensors of torch lie on the device; note for which streams marks are asked, and in which threads."""

    def tensor(values, **about):
        pointer = device.malloc(values.nbytes)
        ctypes.memmove(pointer, values.ctypes.data, values.nbytes)
        return device_stand_ins.Tensor(values, **{"pointer": pointer, **about})

    found = SimpleNamespace(Tensor=tensor, behind=[])

    def mark_of(ordinal, handle):
        found.behind.append((ordinal, handle, threading.get_ident()))

    monkeypatch.setattr("headrace_tensors.entering.mark_of", mark_of)
    monkeypatch.setitem(sys.modules, "torch", device_stand_ins.torch)
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
    start, step = torch.Tensor(rows).pointer, rows[0].nbytes
    given = [torch.Tensor(row, pointer=start + k * step) for k, row in enumerate(rows)]
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
    start, step = torch.Tensor(rows).pointer, rows[0].nbytes
    raw, nbytes = device.memory[start]
    given = [torch.Tensor(row, pointer=start + k * step) for k, row in enumerate(rows)]
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
