"""DLPack capsules against numpy, and arrays of a device of host memory."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from fake_device import FakeCuda, OnDevice

from headrace.errors import InputError
from headrace_tensors import device_copies, dlpack
from headrace_tensors.device_arrays import DeviceArray, StreamRef, read_on_device
from headrace_trt.libraries.cuda import Cuda, CudaError, device_of, request_error
from headrace_trt.running.memory import Buffer, DevicePool, PinnedArena


class Owner:
    """What must live as long as somebody reads its memory."""

    def __init__(self, array):
        self.array = array


class Exported:
    """Memory of the host, exported by our capsules."""

    def __init__(self, array):
        self.owner = Owner(array)
        self.array = array

    def __dlpack_device__(self):
        return dlpack.CPU, 0

    def __dlpack__(self, **_):
        a = self.array
        return dlpack.export_capsule(a.ctypes.data, a.shape, a.dtype.name, (1, 0), self.owner)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 3)])
def test_numpy_reads_what_we_export(dtype, shape):
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    read = np.from_dlpack(Exported(array))
    assert read.dtype == array.dtype
    assert read.shape == shape
    assert np.array_equal(read, array)
    if array.size:
        assert read.ctypes.data == array.ctypes.data


def test_the_owner_lives_as_long_as_the_consumer():
    exported = Exported(np.arange(5))
    alive = weakref.ref(exported.owner)
    taken = np.from_dlpack(exported)
    del exported
    gc.collect()
    assert alive() is not None
    assert taken.tolist() == [0, 1, 2, 3, 4]
    del taken
    gc.collect()
    assert alive() is None


def test_a_capsule_that_nobody_takes_lets_go_of_its_owner():
    exported = Exported(np.arange(5))
    alive = weakref.ref(exported.owner)
    capsule = exported.__dlpack__()
    del exported
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("refuse", "error"),
    [
        (lambda exported: [exported.__dlpack__(), 1 // 0], ZeroDivisionError),
        (lambda exported: len(exported.__dlpack__()), TypeError),
    ],
)
def test_a_capsule_that_is_dropped_by_an_error_keeps_the_error_and_lets_go(refuse, error):
    exported = Exported(np.arange(5))
    alive = weakref.ref(exported.owner)
    with pytest.raises(error):
        refuse(exported)
    del exported
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "bool", "float64"])
@pytest.mark.parametrize(
    ("pointer", "shape"),
    [(0x7F1200000000, (5, 1, 4)), (0x302000300, ()), (0x302000300, (1 << 30, 4)), (0, (0, 3))],
)
def test_memory_of_a_device_is_exported_without_being_read(dtype, pointer, shape):
    capsule = dlpack.export_capsule(pointer, shape, dtype, (dlpack.CUDA, 3), None)
    assert dlpack.read_capsule(capsule) == dlpack.Tensor(pointer, shape, dtype, (2, 3), True)


@pytest.mark.parametrize(
    ("make", "contiguous"),
    [
        (lambda a: a, True),
        (lambda a: a[1:], True),
        (lambda a: a.T, False),
        (lambda a: a[:, ::2], False),
        (lambda a: a[:1].T, True),
        (lambda a: a[:0].T, True),
    ],
)
def test_what_numpy_exports_is_read(make, contiguous):
    array = make(np.arange(12, dtype=np.float32).reshape(3, 4))
    found = dlpack.read_capsule(array.__dlpack__())
    assert (found.shape, found.dtype, found.device) == (array.shape, "float32", (1, 0))
    assert found.contiguous is contiguous
    if array.size:
        assert found.pointer == array.ctypes.data


def test_slices_of_an_array_on_the_device():
    cuda = FakeCuda()
    stream = cuda.stream_create()
    pool = DevicePool(cuda, stream, 0)
    values = np.arange(24, dtype=np.int32).reshape(4, 3, 2)
    block = pool.take(values.nbytes)
    cuda.copy(block.pointer, values.ctypes.data, values.nbytes, stream)
    array = DeviceArray(
        cuda, block.pointer, values.shape, "int32", ordinal=0, stream=StreamRef(stream), owner=block
    )
    assert repr(array) == "DeviceArray(int32 [4, 3, 2] on cuda:0)"
    assert (len(array), array.ndim, array.nbytes) == (4, 3, values.nbytes)
    for take in (0, -1, slice(1, 3), slice(None), slice(3, 1)):
        assert np.array_equal(array[take].get(), values[take])
    assert [row.get().tolist() for row in array] == values.tolist()
    assert np.array_equal(array.reshape(2, 12).get(), values.reshape(2, 12))
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            array[wrong]
    with pytest.raises(IndexError):
        array[::2]
    with pytest.raises(ValueError, match="reshaped"):
        array.reshape(5)
    about = array[1].__cuda_array_interface__
    assert (about["shape"], about["typestr"], about["stream"]) == ((3, 2), "<i4", stream)
    part = array[2]
    del array, block
    gc.collect()
    assert np.array_equal(part.get(), values[2]), "a slice keeps the memory"
    del part
    gc.collect()
    pool.close()
    assert cuda.memory == {}


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


def test_arrays_of_others_are_read_where_they_are():
    cuda = FakeCuda(devices=2)
    array = OnDevice(cuda, np.zeros((2, 3), np.float16), stream=7)
    found = read_on_device(array, cuda, 5, 0)
    assert (found.pointer, found.shape, found.dtype) == (array.pointer, (2, 3), "float16")
    with pytest.raises(InputError, match="contiguous"):
        read_on_device(OnDevice(cuda, np.zeros((2, 3)), strides=(8, 16)), cuda, 5, 0)
    assert read_on_device(np.zeros(3), cuda, 5, 0) is None
    assert read_on_device([1, 2], cuda, 5, 0) is None

    class Elsewhere:
        def __dlpack_device__(self):
            return dlpack.CUDA, 1

    with pytest.raises(InputError, match="another device"):
        read_on_device(Elsewhere(), cuda, 5, 0)


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
