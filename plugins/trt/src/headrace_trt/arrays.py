"""Arrays in device memory: our own, and those that other libraries bring."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from headrace.errors import InputError
from headrace_trt import dlpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from headrace_trt.cuda import Cuda

__all__ = ["DeviceArray", "Foreign", "StreamRef", "item_bytes", "numpy_dtype", "read_foreign"]

_EXTENDED: Final = ("bfloat16", "float8_e4m3fn")
_TYPESTR: Final = {"bool": "|b1"}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Give the numpy dtype of a type by name; bfloat16 and fp8 come from ml_dtypes.

    Raises:
        InputError: ml_dtypes is not installed, and numpy alone has no such type.
    """
    if name not in _EXTENDED:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise InputError(
            f"numpy has no {name}", hint="`pip install ml_dtypes` brings it; or use a device array."
        ) from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


@functools.cache
def item_bytes(name: str) -> int:
    """Give the size of one element of a type by name."""
    return {"bfloat16": 2, "float8_e4m3fn": 1, "bool": 1}.get(name) or np.dtype(name).itemsize


class StreamRef:
    """The stream on which an array is made.

    Attributes:
        handle: The ``cudaStream_t``; 0 once the instance is closed, when all its work is done.
    """

    __slots__ = ("handle",)

    def __init__(self, handle: int) -> None:
        self.handle = handle


class DeviceArray:
    """An array in C order in the memory of a CUDA device.

    It owns its memory together with its slices. Other libraries take it without a copy:
    ``torch.from_dlpack(array)``, ``cupy.from_dlpack(array)``; `get` copies it to the host.

    Attributes:
        pointer: Address of the first element.
        shape: Lengths of its axes.
        dtype: Name of its type, as numpy writes it.
        ordinal: Number of the device.
    """

    __slots__ = ("_cuda", "_owner", "_row", "_stream", "dtype", "ordinal", "pointer", "shape")

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
        self._cuda = cuda
        self._owner = owner
        self._row: int | None = None
        self._stream = stream
        self.pointer = pointer
        self.shape = shape
        self.dtype = dtype
        self.ordinal = ordinal

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
        return self.size * item_bytes(self.dtype)

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
        """Give one row, or neighbouring rows, of the first axis; no copy."""
        row = self._row
        if row is None:
            row = item_bytes(self.dtype)
            for length in self.shape[1:]:
                row *= length
            self._row = row
        if type(rows) is int and 0 <= rows < self.shape[0]:
            return self._view(self.pointer + rows * row, self.shape[1:])
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise IndexError("rows of a DeviceArray are taken without a step")
            shape = (max(stop - start, 0), *self.shape[1:])
        else:
            start = range(len(self))[rows]
            shape = self.shape[1:]
        return self._view(self.pointer + start * row, shape)

    def rows(self) -> list[DeviceArray]:
        """Give every row of the first axis; no copy."""
        cuda, owner, stream = self._cuda, self._owner, self._stream
        shape, dtype, ordinal = self.shape[1:], self.dtype, self.ordinal
        step = item_bytes(dtype)
        for length in shape:
            step *= length
        pointer, new, made = self.pointer, DeviceArray.__new__, []
        for _ in range(self.shape[0]):
            row = new(DeviceArray)
            row._cuda, row._owner, row._stream, row._row = cuda, owner, stream, None
            row.pointer, row.shape, row.dtype, row.ordinal = pointer, shape, dtype, ordinal
            made.append(row)
            pointer += step
        return made

    def reshape(self, *shape: int) -> DeviceArray:
        """Give the same memory in another shape."""
        made = self._view(self.pointer, tuple(shape))
        if made.size != self.size:
            raise ValueError(f"{self!r} cannot be reshaped to {list(shape)}")
        return made

    def _view(self, pointer: int, shape: tuple[int, ...]) -> DeviceArray:
        made = DeviceArray.__new__(DeviceArray)
        made._cuda, made._owner, made._stream = self._cuda, self._owner, self._stream
        made.pointer, made.shape, made.dtype = pointer, shape, self.dtype
        made.ordinal, made._row = self.ordinal, None
        return made

    def get(self) -> NDArray[Any]:
        """Copy it to the host and wait for the copy."""
        made = np.empty(self.shape, numpy_dtype(self.dtype))
        self._cuda.set_device(self.ordinal)
        self._cuda.copy(made.ctypes.data, self.pointer, self.nbytes, self._stream.handle)
        self._cuda.stream_synchronize(self._stream.handle)
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
            "stream": self._stream.handle or None,
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
        """Give a capsule; ``stream`` of the consumer waits for what is queued here."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            if dl_device is not None and dl_device[0] == dlpack.CPU:
                return self.get().__dlpack__()
            raise BufferError("a DeviceArray is exported where it is, without a copy")
        wanted, own = 1 if stream is None else stream, self._stream.handle
        if own and wanted not in (-1, own):
            _wait(self._cuda, wanted, own)
        self._note_foreign()
        device = (dlpack.CUDA, self.ordinal)
        return dlpack.export_capsule(self.pointer, self.shape, self.dtype, device, self._owner)

    def _note_foreign(self) -> None:
        if hasattr(self._owner, "foreign"):
            self._owner.foreign = True


class Foreign(NamedTuple):
    """An array on the device that somebody else owns.

    Attributes:
        pointer: Address of the first element.
        shape: Its lengths.
        dtype: Name of its type.
        contiguous: Whether it is in C order.
        owner: What must be kept while it is read.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    contiguous: bool
    owner: Any


def read_foreign(value: Any, cuda: Cuda, stream: int, ordinal: int) -> Foreign | None:
    """Read an array in device memory; None where ``value`` is none.

    What its owner has queued on another stream is waited for by ``stream``, not by the host.

    Raises:
        InputError: It is on another device.
    """
    if type(value) is DeviceArray and value.ordinal == ordinal:
        own = value._stream.handle
        if own not in (0, stream):
            _wait(cuda, stream, own)
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
