"""`DeviceArray`: a result in the memory of a CUDA device, one class for all engines."""

from __future__ import annotations

import functools
import math
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from headrace.errors import InputError
from headrace_tensors import dlpack
from headrace_tensors.device_copies import device_of
from headrace_tensors.entering import PER_THREAD, order_behind
from headrace_tensors.host_arrays import numpy_dtype
from headrace_tensors.torch_views import order_behind_torch, view_of_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["ArrayKind", "DeviceArray", "StreamRef", "item_bytes", "read_on_device"]

_EXTENDED: Final = ("bfloat16", "float8_e4m3fn")


@functools.cache
def item_bytes(name: str) -> int:
    """Give the size of one element of a type by name."""
    return {"bfloat16": 2, "float8_e4m3fn": 1}.get(name) or numpy_dtype(name).itemsize


class Runtime(Protocol):
    """What an array needs of the CUDA runtime."""

    def read(self, target: NDArray[Any], source: int, stream: int, ordinal: int) -> None:
        """Copy device memory to the host, in order on ``stream``, and wait for it."""


class StreamRef:
    """The stream on which an array is made.

    Attributes:
        handle: The ``cudaStream_t``. 0 once all work on the array is done.
        lock: Held by a thread that reads a result while it uses the stream, and by the instance while it gives the
            stream up: a reader that has taken the handle would otherwise use a stream that was ended meanwhile.
    """

    __slots__ = ("handle", "lock")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.lock = threading.RLock()

    def close(self) -> None:
        """Give the stream up, once no reader uses it."""
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
        self, cuda: Runtime, stream: StreamRef, ordinal: int, dtype: str, shape: tuple[int, ...]
    ) -> None:
        self.cuda, self.stream, self.ordinal = cuda, stream, ordinal
        self.dtype, self.shape = dtype, shape
        self.nbytes = item_bytes(dtype) * math.prod(shape)
        self._row: ArrayKind | None = None

    def of_shape(self, shape: tuple[int, ...]) -> ArrayKind:
        """Return the kind of arrays of another shape; if its rows have the same shape, it shares their kind."""
        kind = ArrayKind(self.cuda, self.stream, self.ordinal, self.dtype, shape)
        if self._row is not None and self._row.shape == shape[1:]:
            kind._row = self._row
        return kind

    @property
    def row(self) -> ArrayKind:
        """The kind of a row of the first axis."""
        if self._row is None:
            self._row = self.of_shape(self.shape[1:])
        return self._row

    def array(self, pointer: int, owner: Any) -> DeviceArray:
        """Return the array at an address; the array keeps ``owner`` alive."""
        array = DeviceArray.__new__(DeviceArray)
        array._kind, array.pointer, array._owner = self, pointer, owner
        return array


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
        cuda: Runtime,
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
        return math.prod(self.shape)

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

    def __getitem__(self, rows: int | slice | None) -> DeviceArray:
        """Return one row, or neighbouring rows, of the first axis; for None the array with one more axis in front. No copy."""
        kind = self._kind
        if rows is None:
            return self.reshape(1, *kind.shape)
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
        pointer, step, new, arrays = self.pointer, kind.nbytes, DeviceArray.__new__, []
        for _ in range(self._kind.shape[0]):
            row = new(DeviceArray)
            row._kind, row._owner, row.pointer = kind, owner, pointer
            arrays.append(row)
            pointer += step
        return arrays

    @staticmethod
    def of_rows(rows: Sequence[Any]) -> DeviceArray | None:
        """Return the array of which ``rows`` are neighbouring rows, in order; None if they are not. No copy.

        So the next reader takes the batch of another one as a whole, however it came by the rows.
        """
        first = rows[0]
        if type(first) is not DeviceArray or first._owner is None:
            return None
        kind, owner, pointer = first._kind, first._owner, first.pointer
        for row in rows:
            if type(row) is not DeviceArray or row._kind is not kind:
                return None
            if row._owner is not owner or row.pointer != pointer:
                return None
            pointer += kind.nbytes
        return kind.of_shape((len(rows), *kind.shape)).array(first.pointer, owner)

    def reshape(self, *shape: int) -> DeviceArray:
        """Return the same memory in another shape."""
        kind = self._kind.of_shape(tuple(shape))
        if kind.nbytes != self.nbytes:
            raise ValueError(f"{self!r} cannot be reshaped to {list(shape)}")
        return kind.array(self.pointer, self._owner)

    def get(self) -> NDArray[Any]:
        """Copy the array to the host, wait for the copy, and give it as a numpy array."""
        array = np.empty(self.shape, numpy_dtype(self.dtype))
        cuda, stream = self._kind.cuda, self._kind.stream
        with stream.lock:
            cuda.read(array, self.pointer, stream.handle, self.ordinal)
        return array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype in _EXTENDED:
            raise AttributeError(f"the CUDA array interface has no {self.dtype}; use DLPack")
        self._note_foreign()
        return {
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
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
        order = 1 if stream is None else stream
        if order != -1:
            self.order(order)
        self._note_foreign()
        device = (dlpack.CUDA, self.ordinal)
        return dlpack.export_capsule(self.pointer, self.shape, self.dtype, device, self._owner)

    def order(self, stream: int) -> None:
        """Make later work on ``stream`` wait for the array's values."""
        own = self._kind.stream
        with own.lock:
            if own.handle not in (0, stream):
                order_behind(stream, own.handle, self.ordinal)

    def _note_foreign(self) -> None:
        if hasattr(self._owner, "foreign"):
            self._owner.foreign = True


_FINISHED: Final = StreamRef(0)


def read_on_device(
    value: Any, cuda: Runtime, stream: int, ordinal: int, behind: set[str] | None = None
) -> DeviceArray | None:
    """Return an array of any library on a CUDA device, without a copy. None for a value that is none.

    ``stream``, one of the device ``ordinal``, then waits for the work that makes the array. The host does not.
    ``behind``, an empty set for each batch, lets the stream wait for torch once per batch.

    Raises:
        InputError: The array is on another device, not in the order of its axes, or cannot be read.
    """
    if type(value) is np.ndarray:
        return None
    if type(value) is DeviceArray and value.ordinal == ordinal:
        value.order(stream)
        return value
    try:
        view = view_of_torch(value, ordinal)
        if view is not None:
            kind = ArrayKind(cuda, _FINISHED, ordinal, view.dtype, view.shape)
            if not behind:
                order_behind_torch(stream, ordinal)
            if behind is not None:
                behind.add("torch")
            return kind.array(view.pointer, value)
        return _of_protocol(value, cuda, stream, ordinal)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"this array cannot be read ({type(error).__name__}: {error})",
            expected="an array with __dlpack__ or __cuda_array_interface__",
            got=type(value).__name__,
        ) from error


def _of_protocol(value: Any, cuda: Runtime, stream: int, ordinal: int) -> DeviceArray | None:
    owner, has_device = value, hasattr(value, "__dlpack_device__")
    if has_device:
        kind, number = value.__dlpack_device__()
        if int(kind) not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
            return None
        _refuse_elsewhere(number, ordinal)
    if has_device and hasattr(value, "__dlpack__"):
        capsule = value.__dlpack__(stream=stream)
        taken = dlpack.read_capsule(capsule)
        pointer, shape, dtype, owner = taken.pointer, taken.shape, taken.dtype, (value, capsule)
        in_order = taken.contiguous
    else:
        about = getattr(value, "__cuda_array_interface__", None)
        if about is None:
            return None
        pointer, shape = int(about["data"][0] or 0), tuple(int(n) for n in about["shape"])
        _refuse_elsewhere(device_of(pointer), ordinal)  # the interface does not say it
        dtype = np.dtype(about["typestr"]).name
        steps = about.get("strides")
        in_order = steps is None or tuple(steps) == _steps(shape, np.dtype(dtype).itemsize)
        if about.get("stream") not in (None, stream, PER_THREAD):
            order_behind(stream, int(about["stream"]), ordinal)
    if not in_order or not dtype:
        reason = "has a dtype that numpy lacks" if in_order else "is not contiguous"
        raise InputError(
            f"the array on the device {reason}",
            expected="memory in C order, of a dtype of numpy's",
            got=f"{dtype or type(value).__name__} {list(shape)}",
            hint="ContiguousTensor of headrace-torch puts it into that order.",
        )
    return ArrayKind(cuda, _FINISHED, ordinal, dtype, shape).array(pointer, owner)


def _refuse_elsewhere(number: int | None, ordinal: int) -> None:
    if number not in (None, ordinal):
        raise InputError(
            "the array is on another device",
            expected=f"cuda:{ordinal}",
            got=f"cuda:{number}",
            hint="GpuTensor of headrace-torch in front moves it. An engine before this node gives arrays of the "
            "host without output_device = 'device'.",
        )


def _steps(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    steps, step = [], itemsize
    for length in reversed(shape):
        steps.append(step)
        step *= length
    return tuple(reversed(steps))
