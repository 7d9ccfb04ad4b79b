"""DLPack capsules against numpy: what is exported and read, and how long its memory lives."""

import gc
import weakref

import numpy as np
import pytest

from headrace_tensors import dlpack


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


@pytest.mark.parametrize("take", [np.from_dlpack, lambda exported: exported.__dlpack__()])
def test_the_owner_lives_as_long_as_an_array_of_it_or_a_capsule_that_nobody_takes(take):
    exported = Exported(np.arange(5))
    alive = weakref.ref(exported.owner)
    kept = take(exported)
    del exported
    gc.collect()
    assert alive() is not None
    del kept
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
