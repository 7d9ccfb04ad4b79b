"""Arrays in device memory: our own class, and reading those of other libraries."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from headrace.errors import InputError
from headrace_tensors import dlpack, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from headrace_trt.cuda import Cuda

__all__ = [
    "ArrayKind",
    "DeviceArray",
    "Foreign",
    "StreamRef",
    "item_bytes",
    "numpy_dtype",
    "read_foreign",
]

_EXTENDED: Final = ("bfloat16", "float8_e4m3fn")
_TYPESTR: Final = {"bool": "|b1"}


@functools.cache
def item_bytes(name: str) -> int:
    """Give the size of one element of a type by name."""
    return {"bfloat16": 2, "float8_e4m3fn": 1, "bool": 1}.get(name) or np.dtype(name).itemsize


class StreamRef:
    """The stream on which an array is made.

    Attributes:
        handle: The ``cudaStream_t``. 0 once the instance is closed, when all its work is done.
        lock: Held by a thread that reads a result while it uses the stream, and by the instance while it gives the
            stream up: a reader that has taken the handle would otherwise use a stream that was ended meanwhile.
    """

    __slots__ = ("handle", "lock")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.lock = threading.RLock()

    def close(self) -> None:
        """Return the stream up, once no reader uses it."""
        with self.lock:
            self.handle = 0


class ArrayKind:
    """Device, stream, type and shape, which many arrays share as one object.

    If two arrays have the same `ArrayKind` object, code that has checked one of them need not check the other.

    Attributes:
        cuda: The CUDA runtime.
        stream: The stream on which the arrays are made.
        ordinal, dtype, shape, nbytes: As in `DeviceArray`.
    """

    __slots__ = ("_row", "cuda", "dtype", "nbytes", "ordinal", "shape", "stream")

    def __init__(
        self, cuda: Cuda, stream: StreamRef, ordinal: int, dtype: str, shape: tuple[int, ...]
    ) -> None:
        self.cuda, self.stream, self.ordinal = cuda, stream, ordinal
        self.dtype, self.shape = dtype, shape
        self.nbytes = item_bytes(dtype)
        for length in shape:
            self.nbytes *= length
        self._row: ArrayKind | None = None

    def of_shape(self, shape: tuple[int, ...]) -> ArrayKind:
        """Return the kind of arrays of another shape; if its rows have the same shape, it shares their kind."""
        made = ArrayKind(self.cuda, self.stream, self.ordinal, self.dtype, shape)
        if self._row is not None and self._row.shape == shape[1:]:
            made._row = self._row
        return made

    @property
    def row(self) -> ArrayKind:
        """The kind of a row of the first axis."""
        if self._row is None:
            self._row = self.of_shape(self.shape[1:])
        return self._row

    def array(self, pointer: int, owner: Any) -> DeviceArray:
        """Return the array at an address; the array keeps ``owner`` alive."""
        made = DeviceArray.__new__(DeviceArray)
        made._kind, made.pointer, made._owner = self, pointer, owner
        return made


class DeviceArray:
    """An array in C order in the memory of a CUDA device.

    The array and its slices own the memory together. Other libraries read it without a copy:
    ``torch.from_dlpack(array)``, ``cupy.from_dlpack(array)``. `get` copies it to the host.

    Attributes:
        pointer: Address of the first element.
        shape: Lengths of its axes.
        dtype: Name of its type, as numpy writes it.
        ordinal: Number of the device.
    """

    __slots__ = ("_kind", "_owner", "pointer")

    def __init__(
        self,
        cuda: Cuda,
        pointer: int,
        shape: tuple[int, ...],
        dtype: str,
        *,
        ordinal: int,
        stream: StreamRef,
        owner: Any,
    ) -> None:
        self._kind = ArrayKind(cuda, stream, ordinal, dtype, shape)
        self._owner = owner
        self.pointer = pointer

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its axes."""
        return self._kind.shape

    @property
    def dtype(self) -> str:
        """Name of its type, as numpy writes it."""
        return self._kind.dtype

    @property
    def ordinal(self) -> int:
        """Number of the device."""
        return self._kind.ordinal

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self._kind.nbytes

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        axes = ", ".join(map(str, self.shape))
        return f"DeviceArray({self.dtype} [{axes}] on cuda:{self.ordinal})"

    def __iter__(self) -> Iterator[DeviceArray]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, rows: int | slice) -> DeviceArray:
        """Return one row, or neighbouring rows, of the first axis; no copy."""
        kind = self._kind
        row = kind.row
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise IndexError("rows of a DeviceArray are taken without a step")
            kind = kind.of_shape((max(stop - start, 0), *kind.shape[1:]))
        else:
            start = range(len(self))[rows]
            kind = row
        return kind.array(self.pointer + start * row.nbytes, self._owner)

    def rows(self) -> list[DeviceArray]:
        """Return every row of the first axis; no copy."""
        kind, owner = self._kind.row, self._owner
        pointer, step, new, made = self.pointer, kind.nbytes, DeviceArray.__new__, []
        for _ in range(self._kind.shape[0]):
            row = new(DeviceArray)
            row._kind, row._owner, row.pointer = kind, owner, pointer
            made.append(row)
            pointer += step
        return made

    def reshape(self, *shape: int) -> DeviceArray:
        """Return the same memory in another shape."""
        kind = self._kind.of_shape(tuple(shape))
        if kind.nbytes != self.nbytes:
            raise ValueError(f"{self!r} cannot be reshaped to {list(shape)}")
        return kind.array(self.pointer, self._owner)

    def get(self) -> NDArray[Any]:
        """Copy the array to the host, wait for the copy, and give it as a numpy array."""
        made = np.empty(self.shape, numpy_dtype(self.dtype))
        cuda, stream = self._kind.cuda, self._kind.stream
        with stream.lock, cuda.on_device(self.ordinal):
            cuda.copy(made.ctypes.data, self.pointer, self.nbytes, stream.handle)
            cuda.stream_synchronize(stream.handle)
        return made

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype in _EXTENDED:
            raise AttributeError(f"the CUDA array interface has no {self.dtype}; use DLPack")
        self._note_foreign()
        return {
            "shape": self.shape,
            "typestr": _TYPESTR.get(self.dtype) or np.dtype(self.dtype).str,
            "data": (self.pointer, False),
            "version": 3,
            "strides": None,
            "stream": self._kind.stream.handle or None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule; the consumer's ``stream`` waits for the work that is queued on the array's stream."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            if dl_device is not None and dl_device[0] == dlpack.CPU:
                return self.get().__dlpack__()
            raise BufferError("a DeviceArray is exported where it is, without a copy")
        wanted, own = 1 if stream is None else stream, self._kind.stream
        # The thread is the consumer's: another device may be current in it, and an event belongs to one device.
        with own.lock:
            if own.handle and wanted not in (-1, own.handle):
                with self._kind.cuda.on_device(self.ordinal):
                    _wait(self._kind.cuda, wanted, own.handle)
        self._note_foreign()
        device = (dlpack.CUDA, self.ordinal)
        return dlpack.export_capsule(self.pointer, self.shape, self.dtype, device, self._owner)

    def _note_foreign(self) -> None:
        if hasattr(self._owner, "foreign"):
            self._owner.foreign = True


class Foreign(NamedTuple):
    """An array on the device that another library, or a caller, owns.

    Attributes:
        pointer: Address of the first element.
        shape: Lengths of its axes.
        dtype: Name of its type.
        contiguous: Whether it is in C order.
        owner: The object that must be kept alive while the array is read.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    contiguous: bool
    owner: Any

    def __getitem__(self, index: Any) -> Any:
        """Return the array with one more axis in front, for None."""
        return self._replace(shape=(1, *self.shape)) if index is None else tuple(self)[index]


def read_foreign(value: Any, cuda: Cuda, stream: int, ordinal: int) -> Foreign | None:
    """Read an array in device memory. None if ``value`` is no such array.

    If the owner has queued work on another stream, ``stream`` waits for that work. The host does not wait.

    Raises:
        InputError: The array is on another device.
    """
    if type(value) is DeviceArray and value.ordinal == ordinal:
        own = value._kind.stream
        with own.lock:
            if own.handle not in (0, stream):
                _wait(cuda, stream, own.handle)
        return Foreign(value.pointer, value.shape, value.dtype, True, value)
    place = getattr(value, "__dlpack_device__", None)
    if place is not None:
        kind, number = place()
        if int(kind) not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
            return None
        if number != ordinal:
            raise InputError(
                "the array is on another device", expected=f"cuda:{ordinal}", got=f"cuda:{number}"
            )
        capsule = value.__dlpack__(stream=stream)
        found = dlpack.read_capsule(capsule)
        return Foreign(found.pointer, found.shape, found.dtype, found.contiguous, (value, capsule))
    about = getattr(value, "__cuda_array_interface__", None)
    if about is None:
        return None
    dtype = np.dtype(about["typestr"])
    shape = tuple(int(n) for n in about["shape"])
    strides = about.get("strides")
    contiguous = strides is None or tuple(strides) == _c_strides(shape, dtype.itemsize)
    if about.get("stream") not in (None, stream):
        _wait(cuda, stream, int(about["stream"]))
    return Foreign(int(about["data"][0]), shape, dtype.name, contiguous, value)


def _wait(cuda: Cuda, stream: int, other: int) -> None:
    event = cuda.event_create()
    cuda.event_record(event, other)
    cuda.stream_wait(stream, event)
    cuda.event_destroy(event)


def _c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
