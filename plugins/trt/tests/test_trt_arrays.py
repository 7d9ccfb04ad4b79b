"""Memory and calls of a device of host memory."""

import gc
from types import SimpleNamespace

import pytest
from fake_device import FakeCuda

from headrace_tensors import device_copies
from headrace_tensors.device_arrays import DeviceArray, StreamRef
from headrace_trt.libraries.cuda import Cuda, CudaError, device_of, request_error
from headrace_trt.running.memory import Buffer, DevicePool, PinnedArena


def test_memory_that_cannot_be_given_back_is_told_in_the_log(caplog, monkeypatch):
    cuda = FakeCuda()
    pool = DevicePool(cuda, cuda.stream_create(), 0)
    block = pool.take(300)
    pool.close()
    with monkeypatch.context() as patch:
        patch.setattr(cuda, "free", lambda pointer: pointer / 0)
        del block
    assert "512 bytes of device memory could not be given back" in caplog.text


def test_a_reader_on_another_device_finds_its_thread_as_it_was():
    cuda = FakeCuda(devices=2)
    with cuda.on_device(1):
        stream, pointer = cuda.stream_create(), cuda.malloc(8)
    array = DeviceArray(
        cuda, pointer, (2,), "float32", ordinal=1, stream=StreamRef(stream), owner=None
    )
    assert array.get().shape == (2,)
    assert cuda.current == 0


def test_blocks_are_used_again_only_when_dropped_and_given_back_when_memory_is_short():
    cuda = FakeCuda(most_bytes=4096)
    pool = DevicePool(cuda, cuda.stream_create(), 0)
    one, two = pool.take(1000), pool.take(1000)
    assert one.pointer != two.pointer
    first = one.pointer
    del one
    assert pool.take(900).pointer == first
    big = pool.take(2000)
    del big
    gc.collect()
    huge = pool.take(2500)
    assert huge.nbytes == 2560
    with pytest.raises(CudaError) as caught:
        pool.take(2500)
    assert caught.value.out_of_memory
    pool.close()
    assert len(cuda.memory) == 2
    del two, huge
    gc.collect()
    assert cuda.memory == {}


def test_pinned_pieces_are_distinct_until_the_reset():
    cuda = FakeCuda()
    arena = PinnedArena(cuda)
    pieces = [arena.take(n) for n in (10, 300, 5000, 1)]
    for i, (_, view) in enumerate(pieces):
        view[:] = i
    assert [set(view.tolist()) for _, view in pieces] == [{0}, {1}, {2}, {3}]
    assert all(pointer % 256 == 0 for pointer, _ in pieces)
    arena.reset()
    assert len(cuda.pinned) == 1
    arena.take(5000)
    assert len(cuda.pinned) == 1
    arena.close()
    assert cuda.pinned == {}
    buffer = Buffer(cuda)
    assert [buffer.reserve(n) for n in (10, 200, 300, 0)] == [True, False, True, False]
    buffer.close()
    assert cuda.memory == {}


def test_devices_and_errors_by_name():
    cuda = FakeCuda(devices=2)
    assert [device_of(text, cuda) for text in (None, "cuda", "cuda:1", " CUDA:0 ")] == [0, 0, 1, 0]
    assert request_error(CudaError("call", 2, "out of memory")).hint
    assert type(request_error(CudaError("call", 700, "illegal"))).__name__ == "InstanceLostError"
    assert type(request_error(CudaError("call", 1, "invalid"))).__name__ == "BackendError"


def test_the_real_runtime_takes_our_arguments_and_says_that_there_is_no_driver():
    from cuda.bindings import runtime

    cuda = Cuda(runtime)
    if cuda.device_count():
        pytest.skip("there is a device")
    calls = [
        lambda: cuda.set_device(0), lambda: cuda.describe(0), cuda.memory_bytes,
        lambda: cuda.malloc(8), lambda: cuda.free(8), lambda: cuda.host_malloc(8),
        lambda: cuda.copy(8, 8, 8, 8), cuda.stream_create, lambda: cuda.stream_synchronize(8),
        cuda.event_create, lambda: cuda.event_record(8, 8),
        lambda: cuda.event_elapsed_ms(8, 8), lambda: cuda.begin_capture(8),
        lambda: cuda.end_capture(8), lambda: cuda.graph_launch(8, 8),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(CudaError, match="driver"):
            call()


@pytest.mark.parametrize(
    ("answer", "called"),
    [
        (None, [("runtime", 1, 2, 3, 4, 5)]),
        (0, [("driver", 1, 2, 3, 5)]),
        (1, [("driver", 1, 2, 3, 5), ("runtime", 1, 2, 3, 4, 5)]),
    ],
    ids=["no driver", "queued", "error"],
)
def test_a_queued_copy_is_the_driver_s_and_the_runtime_tells_its_errors(
    monkeypatch, answer, called
):
    calls = []

    def driver(*args):
        calls.append(("driver", *args))
        return answer

    runtime = SimpleNamespace(
        cudaEventDisableTiming=2,
        cudaMemcpyKind=SimpleNamespace(cudaMemcpyDefault=4),
        cudaMemcpyAsync=lambda *args: calls.append(("runtime", *args)) or (0,),
    )
    found = None if answer is None else driver
    monkeypatch.setattr(device_copies, "_driver_copy", lambda: found)
    Cuda(runtime).queue_copy(1, 2, 3, 5)
    assert calls == called
