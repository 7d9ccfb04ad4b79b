"""Arrays on which the caller's own stream still works, on a device of host memory."""

import ctypes
import threading

import numpy as np
import pytest
from trt_expressions import BOTH, samples

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


WAYS = pytest.mark.parametrize("way", [call, call_with_a_list, submit], ids=lambda w: w.__name__)


@WAYS
@BOTH
def test_what_a_callers_stream_has_queued_is_waited_for(device, plan, pipe, linear, backend, way):
    model, expected = linear
    p = pipe(backend=backend, model=str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))})), max=8)
    waits = []
    device.stream_wait = lambda stream, event: waits.append((stream, threading.get_ident()))
    arrays = [Queued(device, sample) for sample in samples(4)]
    device.waits = 0
    for sample, array in zip(samples(4), arrays, strict=True):
        assert np.allclose(way(p, {"data": array}), expected(sample))
    assert {thread for _, thread in waits}.isdisjoint({threading.get_ident()})
    assert {stream for stream, _ in waits}.isdisjoint({array.stream for array in arrays})


def test_copies_of_a_request_wait_too(device, plan, pipe, linear):
    model, expected = linear
    made = str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))}))
    nodes = {
        "first": {"backend": "Identity", "next": "engine"},
        "engine": {"backend": "TensorrtTensor", "model": made, "max": 8, "each": "list:data"},
    }
    p = pipe(**nodes)
    one, two = samples(2)
    answer = p({"data": 0, "list": [Queued(device, one), Queued(device, two)]})["result"]
    assert np.allclose(answer[0], expected(one))
    assert np.allclose(answer[1], expected(two))


def test_nothing_is_recorded_for_arrays_of_the_host(device, plan, pipe, linear):
    model, expected = linear
    p = pipe(backend="TensorrtTensor", model=str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))})))
    (sample,) = samples(1)
    p({"data": sample})
    made = []
    device.event_create = lambda **_: made.append(1)
    device.event_record = device.stream_wait = lambda *_: made.append(1)
    assert np.allclose(p({"data": sample})["result"], expected(sample))
    assert made == []
