"""Reads arrays in device memory, of other libraries and of our own class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.errors import InputError
from headrace_tensors import DeviceArray, dlpack

if TYPE_CHECKING:
    from headrace_trt.cuda import Cuda

__all__ = ["DeviceArray", "Foreign", "read_foreign"]


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
        value.order(stream)
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
        cuda.order_behind(stream, int(about["stream"]), ordinal)
    return Foreign(int(about["data"][0]), shape, dtype.name, contiguous, value)


def _c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
