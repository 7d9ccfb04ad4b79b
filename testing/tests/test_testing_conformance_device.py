"""Arrays on a device as the kit sees them: compared and kept by a copy on the host."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest

from headrace_testing.conformance.host import cuda_runtime, host_copy, is_on_device
from headrace_testing.conformance.memory import shares_memory
from headrace_testing.conformance.values import difference, is_array, kept

np = pytest.importorskip("numpy")

CUDA = 2


class OnlyDlpack:
    """An array on a device that has nothing but DLPack, and copies to the host when it is asked."""

    def __init__(self, array, *, asked=("dl_device", "copy")):
        self._array = array
        self._asked = asked

    def __dlpack_device__(self):
        return CUDA, 0

    def __dlpack__(self, **arguments):
        if set(arguments) != set(self._asked):
            raise TypeError("unexpected keyword argument")
        assert arguments["dl_device"] == (1, 0)
        return self._array.copy().__dlpack__()


class Copied:
    """An array on a device with a method that copies it to the host."""

    def __init__(self, array, method):
        self._array = array
        self.dtype, self.shape = array.dtype, array.shape
        self.device = "cuda:0"
        setattr(self, method, array.copy)


class Pointed:
    """An array that tells its memory and nothing of what is in it."""

    def __init__(self, begin, shape, *, typestr="<f4", read_only=False):
        self.shape, self.dtype = shape, "float32"
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (begin, read_only),
            "version": 3,
        }


class Tensor:
    """What tells its memory as torch does."""

    dtype = "torch.float16"

    def __init__(self, begin, count):
        self.begin, self.count, self.shape = begin, count, (count,)

    def data_ptr(self):
        return self.begin

    def numel(self):
        return self.count

    def element_size(self):
        return 2


WAYS = [
    OnlyDlpack,
    lambda array: OnlyDlpack(array, asked=("dl_device",)),
    *(lambda array, method=m: Copied(array, method) for m in ("cpu", "get", "copy_to_host")),
]
IDS = ["dlpack", "dlpack-without-copy", "cpu", "get", "copy_to_host"]


@pytest.mark.parametrize("on_device", WAYS, ids=IDS)
def test_arrays_on_a_device_are_compared_by_what_they_hold(on_device):
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    one = on_device(a)
    assert is_array(one)
    assert is_on_device(one)
    assert difference(one, on_device(a.copy())) is None
    assert difference(one, on_device(a + 1)) is not None
    assert difference(one, on_device(a + 1e-7), atol=1e-5) is None
    assert difference(one, on_device(a.astype(np.float64))) is not None
    assert difference(one, on_device(a.reshape(3, 2))) is not None
    assert difference({"x": [one]}, {"x": [on_device(a * 2)]}) is not None


@pytest.mark.parametrize("on_device", WAYS, ids=IDS)
def test_what_was_kept_of_an_array_on_a_device_stays(on_device):
    @dataclasses.dataclass
    class Box:
        array: object

    memory = np.arange(3.0)
    one = on_device(memory)
    value = {"list": [one, one], "box": Box(one), "n": 1}
    copy = kept(value)
    assert difference(copy, value) is None
    assert copy["list"][0] is copy["list"][1] is copy["box"].array
    assert not is_on_device(copy["box"].array)
    memory[0] = 9
    assert difference(copy, value) is not None


class OnlyDlpackView(OnlyDlpack):
    """One that gives no copy, as a view of memory that the CPU can read."""

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__()


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, -2.0], [0.0, 3.25]], np.float32),
        np.array([0.5, -1.0], np.float16),
        np.array([1 + 2j], np.complex64),
        np.array([True, False]),
        np.zeros((0, 4), np.float32),
        np.array(7.0),
        np.arange(24, dtype=np.int32).reshape(2, 3, 4)[:, ::2, 1:],
        np.arange(4, dtype=np.float32)[::-1],
    ],
    ids=["float32", "float16", "complex64", "bool", "empty", "no-axis", "strided", "backwards"],
)
def test_an_array_with_dlpack_alone_is_copied_as_it_is(array):
    copy = host_copy(OnlyDlpackView(array))
    assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
    assert copy.tobytes() == array.tobytes()
    assert not np.shares_memory(copy, array)


def test_a_capsule_of_device_memory_is_never_read():
    """What an exporter gives that does not heed ``dl_device``: memory that the CPU must not touch."""

    class Deaf(OnlyDlpack):
        def __dlpack__(self, **arguments):
            return capsule_on_cuda(self._array)

    assert host_copy(Deaf(np.arange(3.0))) is None


def capsule_on_cuda(array):
    """A capsule that says of an array's memory that it is CUDA's."""
    import ctypes

    capsule = array.__dlpack__()
    pointer = ctypes.PyDLL("python", handle=ctypes.pythonapi._handle).PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    # The pointer to the data comes first in a DLTensor, then the type of the device.
    device = pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
    ctypes.c_int32.from_address(device).value = CUDA
    return capsule


def test_where_numpy_is_not_loaded_dlpack_alone_cannot_be_read(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy")
    assert host_copy(OnlyDlpack(np.arange(3.0))) is None


def test_an_array_that_cannot_be_read_is_no_recursion_and_not_equal():
    class Locked(OnlyDlpack):
        def __dlpack__(self, **arguments):
            raise BufferError("this device gives no copies")

    one, other = Locked("at 4096"), Locked("at 8192")
    assert difference(one, one) is None
    found = difference(one, other)
    assert found is not None
    assert "cannot be read" in found


def test_two_arrays_with_dlpack_alone_and_no_device_are_compared():
    class Bare:
        shape, dtype = (3,), "float64"

        def __init__(self, array):
            self._array = array

        def __dlpack__(self, **_):
            return self._array.__dlpack__()

    assert difference(Bare(np.arange(3.0)), Bare(np.arange(3.0))) is None
    assert difference(Bare(np.arange(3.0)), Bare(np.ones(3))) is not None


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (Pointed(4096, (2, 3)), Pointed(4096, (2, 3)), True),
        (Pointed(4096, (2, 3)), Pointed(4096 + 20, (1,)), True),
        (Pointed(4096, (2, 3)), Pointed(4096 + 24, (1,)), False),
        (Pointed(4096, (2, 3), read_only=True), Pointed(4096, (2, 3)), False),
        (Pointed(4096, (0,)), Pointed(4096, (2, 3)), False),
        (Tensor(4096, 8), Tensor(4096 + 14, 8), True),
        (Tensor(4096, 8), Tensor(4096 + 16, 8), False),
        (Tensor(4096, 8), Pointed(4096, (1,)), True),
    ],
)
def test_memory_on_a_device_is_seen(one, other, shared):
    assert shares_memory({"a": [one]}, (other,)) is shared
    assert not shares_memory(one, other, but=[one])


@pytest.mark.parametrize(("answer", "found"), [((0, 1), True), ((35, None), False), (None, False)])
def test_a_cuda_runtime_counts_only_with_a_driver(answer, found, monkeypatch):
    def count():
        if answer is None:
            raise RuntimeError("Failed to dlopen libcuda.so.1")  # as cuda-bindings 12.8 says it
        return answer

    runtime = types.SimpleNamespace(cudaGetDeviceCount=count)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    assert cuda_runtime() is (runtime if found else None)
