"""Device memory: concatenates the rows of requests in it, or uses them in place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnxruntime as ort

from headrace.errors import BackendError
from headrace_ort import cuda
from headrace_tensors import DeviceArray, concatenate, joined, numpy_dtype
from headrace_tensors.device_copies import is_one_allocation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_tensors import Crop, Item, Port, Signature

__all__ = ["Cut", "DeviceMemory", "in_place", "pad_items"]


class DeviceMemory:
    """An instance's memory for inputs on a device, and its pinned memory for copies to and from the device.

    Args:
        signature: Inputs and outputs of the session.
        ordinal: The number of the device.
        stream: The handle of the stream on which copies are started.
        owners: Gets the objects that must live until the stream has done its work.
        kind: ONNX Runtime's name of the kind of device.

    Attributes:
        pinned: A buffer per input and output, by name.
    """

    def __init__(
        self, signature: Signature, ordinal: int, stream: int, owners: list[Any], kind: str
    ) -> None:
        self._ordinal, self._stream, self._kind, self._kept = ordinal, stream, kind, owners
        ports = (*signature.inputs, *signature.outputs)
        self.pinned = {port.name: cuda.PinnedBuffer(ordinal) for port in ports}
        self._staged: dict[str, tuple[tuple[int, ...], Any]] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return new memory as an ``OrtValue``."""
        return ort.OrtValue.ortvalue_from_shape_and_type(
            list(shape), dtype, self._kind, self._ordinal
        )

    def staged(self, port: Port, shape: tuple[int, ...]) -> Any:
        """Return memory for an input: that of the previous batch, if it has the same shape, else new memory."""
        staged = self._staged.get(port.name)
        if staged is None or staged[0] != shape:
            if staged is not None:
                self._kept.append(staged[1])  # another run of this batch may still read it
            staged = self._staged[port.name] = shape, self.empty(shape, numpy_dtype(port.dtype))
        return staged[1]

    def fill(self, value: Any, arrays: Sequence[Any], port: Port, rows: int) -> None:
        """Copy rows into memory on the device; missing rows are filled with copies of the last one."""
        target = value.data_ptr()
        dtype = numpy_dtype(port.dtype)
        on_cpu = [array for array in arrays if not isinstance(array, DeviceArray)]
        sample = math.prod(arrays[0].shape[1:]) * dtype.itemsize
        if sample and not on_cpu and all(len(array) == 1 for array in arrays):
            sources = [array.pointer for array in arrays]
            sources += sources[-1:] * (rows - len(sources))
            cuda.gather_within_device(target, sources, sample, self._stream)
            self._kept.extend(arrays)
            return
        staged = self.pinned[port.name]
        if on_cpu:
            shape = (sum(map(len, on_cpu)), *arrays[0].shape[1:])
            host = joined(on_cpu, staged.view(shape, dtype))
        start, at = 0, 0
        for array in arrays:
            place = target + start * sample
            if isinstance(array, DeviceArray):
                cuda.copy_within_device(place, array.pointer, array.nbytes, self._stream)
                self._kept.append(array)
            else:
                if len(on_cpu) < len(arrays):
                    cuda.copy_to_device(place, host[at : at + len(array)], self._stream)
                at += len(array)
            start += len(array)
        if on_cpu and len(on_cpu) == len(arrays):
            cuda.copy_to_device(target, host, self._stream)
        staged.sent(self._stream)
        for missing in range(start, rows):
            last = target + (start - 1) * sample
            cuda.copy_within_device(target + missing * sample, last, sample, self._stream)

    def warm_up(self) -> None:
        """Make the driver load the kernel that gathers rows before any request waits for it."""
        value = self.empty((2,), np.dtype("float32"))
        self._kept.append(value)
        cuda.gather_within_device(value.data_ptr(), [value.data_ptr()] * 2, 4, self._stream)

    def passed(self) -> None:
        """Record that the stream is synchronised, so that no copy uses the pinned memory any more."""
        for buffer in self.pinned.values():
            buffer.passed()

    def close(self) -> None:
        """Give the memory back."""
        self._staged.clear()
        for buffer in self.pinned.values():
            buffer.close()


def in_place(arrays: Sequence[Any], rows: int) -> bool:
    """Return whether arrays are one array on the device, and have ``rows`` rows together."""
    first = arrays[0]
    end = first.pointer if type(first) is DeviceArray else 0
    for array in arrays:
        if (
            type(array) is not DeviceArray
            or array.pointer != end
            or array.shape[1:] != first.shape[1:]
        ):
            return False
        end += array.nbytes
    if sum(map(len, arrays)) != rows:
        return False
    return len(arrays) == 1 or is_one_allocation(first.pointer, end - first.pointer)


def pad_items(
    items: Sequence[Item], ports: Sequence[Port], values: Mapping[str, float], multiple: int
) -> list[Item]:
    """Return the items with their arrays padded to one shape. Only arrays on the CPU can be padded.

    Raises:
        BackendError: An array on a device would have to be padded.
    """
    padded: list[dict[str, Any]] = [dict(item.tensors) for item in items]
    for port in ports:
        if not port.batched or port.name not in items[0].tensors:
            continue
        arrays = [item.tensors[port.name] for item in items]
        if len({array.shape[1:] for array in arrays}) == 1 and multiple == 1:
            continue
        if not all(isinstance(array, np.ndarray) for array in arrays):
            raise BackendError(
                f"input {port.name!r}: arrays on the device cannot be padded",
                hint="ragged = 'group' runs those of one shape together.",
            )
        whole = concatenate(arrays, port, pad_value=values[port.name], pad_multiple=multiple)
        start = 0
        for item, own in zip(items, padded, strict=True):
            own[port.name] = whole[start : start + item.rows]
            start += item.rows
    return [item._replace(tensors=own) for item, own in zip(items, padded, strict=True)]


class Cut(NamedTuple):
    """The padding to cut off the outputs of a batch: the crops, the padded shapes, and the items before padding."""

    crops: Mapping[str, Sequence[Crop]]
    padded: Mapping[str, Sequence[int]]
    items: Sequence[Item]

    def lengths(self, output: str, shape: Sequence[int]) -> list[int]:
        """Return for each item how long the first axis of its samples is; nothing if it is not cut."""
        crops = self.crops.get(output, ())
        for crop in crops:
            if len(shape) > 1 and shape[1] == crop.whole(self.padded):
                return [crop.length(item) for item in self.items]
        return []
