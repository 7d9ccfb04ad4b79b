"""The input buffers of one instance: puts rows from host and device below each other, or uses an array in place."""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_tensors import gather, numpy_dtype
from headrace_tensors.device_arrays import DeviceArray, item_bytes
from headrace_trt.running.memory import ALIGNMENT, Buffer, close_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from headrace_tensors import Signature
    from headrace_trt.engines.signature import Port
    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.running.grouping import Run
    from headrace_trt.running.memory import PinnedArena

__all__ = ["InputBuffers"]


class InputBuffers:
    """A device buffer per input, into which the rows of a run go.

    Args:
        cuda: The CUDA runtime.
        signature: Inputs and outputs of the engine.
        arena: Pinned memory for rows from the host.
        in_place: Whether an array on the device that already fits may be used without a copy.
        moved: Called when a buffer has got another address.

    Attributes:
        before_copies: Called before copies are queued, after the host has put the rows together.
    """

    def __init__(
        self,
        cuda: Cuda,
        signature: Signature,
        arena: PinnedArena,
        *,
        in_place: bool,
        moved: Callable[[], None],
    ) -> None:
        self._cuda = cuda
        self._signature = signature
        self._arena = arena
        self._in_place = in_place
        self._moved = moved
        self.before_copies: Callable[[], object] = bool
        self._buffers = {port.name: Buffer(cuda) for port in signature.inputs if not port.is_shape}
        self._values: dict[str, NDArray[Any]] = {}

    def place(self, run: Run, stream: int) -> dict[str, int]:
        """Put the tensors of a run into memory from which the engine reads them.

        Args:
            run: The run.
            stream: The stream on which copies are queued.

        Returns:
            The address for each input. For a shape input, an address on the host.

        Raises:
            CudaError: The device is out of memory, or a copy failed.
        """
        pointers = {}
        for port in self._signature.inputs:
            tensors = [item.tensors[port.name] for item in run.items]
            shape = run.shapes[port.name]
            if port.is_shape:
                values = np.ascontiguousarray(tensors[0])
                self._values[port.name] = values
                pointers[port.name] = values.ctypes.data
            elif self._usable(tensors, shape):
                pointers[port.name] = tensors[0].pointer
            else:
                chosen = tensors if port.batched else tensors[:1]
                pad_value = 0.0 if run.pads is None else run.pads[port.name]
                pointers[port.name] = self._copied(port, chosen, shape, pad_value, stream)
        return pointers

    def place_samples(self, port: Port, values: Sequence[Any], stream: int) -> int:
        """Put samples of one shape into consecutive rows. Give the address of the first row.

        Rows that are already consecutive in one array on the device may be used without a copy.

        Args:
            port: The input.
            values: The samples, at least one: all numpy arrays, or all `DeviceArray` on this device.
            stream: The stream on which copies are queued.

        Raises:
            CudaError: The device is out of memory, or a copy failed.
        """
        count, first = len(values), values[0]
        row_bytes = first.nbytes
        if isinstance(first, np.ndarray):
            target = self.pointer(port.name, count * row_bytes)
            pointer, view = self._arena.take(count * row_bytes)
            if row_bytes:
                if not gather(values, view, row_bytes):
                    np.stack(values, out=view.view(first.dtype).reshape((count, *first.shape)))
                self.before_copies()
                self._cuda.queue_copy(target, pointer, count * row_bytes, stream)
            return target
        together = count == 1 or DeviceArray.of_rows(values) is not None
        if self._in_place and together and first.pointer % ALIGNMENT == 0 < first.pointer:
            return int(first.pointer)
        target = self.pointer(port.name, count * row_bytes)
        self.before_copies()
        if row_bytes and together:
            self._cuda.queue_copy(target, first.pointer, count * row_bytes, stream)
        elif row_bytes:
            self._cuda.queue_gather(target, [value.pointer for value in values], row_bytes, stream)
        return target

    def warm_up(self, stream: int) -> None:
        """Make the driver load the kernel that gathers rows before any request waits for it.

        Raises:
            CudaError: A copy failed.
        """
        for buffer in self._buffers.values():
            if buffer.pointer:
                self._cuda.queue_gather(
                    buffer.pointer, [buffer.pointer] * 2, ALIGNMENT // 2, stream
                )

    @property
    def shape_values(self) -> tuple[bytes, ...]:
        """The values of the shape inputs of the run that was placed last."""
        return tuple(values.tobytes() for values in self._values.values())

    def _usable(self, tensors: Sequence[Any], shape: tuple[int, ...]) -> bool:
        first = tensors[0]
        return (
            self._in_place
            and len(tensors) == 1
            and type(first) is DeviceArray
            and first.shape == shape
            and first.pointer % ALIGNMENT == 0
            and first.pointer != 0
        )

    def pointer(self, name: str, nbytes: int) -> int:
        """Return the address of the buffer of an input, at least ``nbytes`` large."""
        buffer = self._buffers[name]
        if buffer.reserve(nbytes):
            self._moved()
        return buffer.pointer

    def _copied(
        self,
        port: Port,
        tensors: Sequence[Any],
        shape: tuple[int, ...],
        pad_value: float,
        stream: int,
    ) -> int:
        itemsize = item_bytes(port.dtype)
        row_bytes = itemsize
        for length in shape[1:] if port.batched else shape:
            row_bytes *= length
        rows = shape[0] if port.batched else 1
        target = self.pointer(port.name, rows * row_bytes)
        if row_bytes == 0 or rows == 0:
            return target
        first = 0
        for count, group in groupby(tensors, partial(_rows_on_device, batched=port.batched)):
            members = list(group)
            if not count:
                place = target + first * row_bytes
                first += self._from_host(port, members, shape, pad_value, place, stream)
                continue
            self.before_copies()
            sources = [tensor.pointer for tensor in members]
            place = target + first * row_bytes
            self._cuda.queue_gather(place, sources, count * row_bytes, stream)
            first += count * len(members)
        # Copies of the last row fill a batch up to the engine's smallest size; their results are dropped.
        last, missing = target + (first - 1) * row_bytes, rows - first
        self._cuda.queue_gather(last + row_bytes, [last] * missing, row_bytes, stream)
        return target

    def _from_host(
        self,
        port: Port,
        arrays: Sequence[NDArray[Any]],
        shape: tuple[int, ...],
        pad_value: float,
        target: int,
        stream: int,
    ) -> int:
        """Put arrays of the host together in pinned memory, copy them at once, and return how many rows they have."""
        count = sum(len(array) for array in arrays) if port.batched else 1
        whole_shape = (count, *shape[1:]) if port.batched else shape
        nbytes = item_bytes(port.dtype) * math.prod(whole_shape)
        pointer, view = self._arena.take(nbytes)
        whole = view.view(numpy_dtype(port.dtype)).reshape(whole_shape)
        if port.batched:
            self._fill(whole, arrays, pad_value)
        else:
            whole[...] = arrays[0]
        self.before_copies()
        self._cuda.queue_copy(target, pointer, nbytes, stream)
        return count

    def _fill(self, whole: NDArray[Any], arrays: Sequence[NDArray[Any]], pad_value: float) -> None:
        row = 0
        padded = any(array.shape[1:] != whole.shape[1:] for array in arrays)
        if padded:
            whole[...] = pad_value
        for array in arrays:
            stop = row + len(array)
            if padded:
                corner = (slice(row, stop), *map(slice, array.shape[1:]))
                whole[corner] = array
            else:
                whole[row:stop] = array
            row = stop

    def close(self) -> None:
        """Give the buffers back."""
        self._values = {}
        close_all(list(self._buffers.values()))


def _rows_on_device(tensor: Any, *, batched: bool) -> int:
    """Return how many rows a tensor in device memory has; 0 for one on the host."""
    if type(tensor) is not DeviceArray:
        return 0
    return tensor.shape[0] if batched else 1
