"""Views of the arrays on a CUDA device that requests bring."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_ort import cuda
from headrace_tensors import host_array, text_of
from headrace_tensors.dlpack import read_capsule

if TYPE_CHECKING:
    from headrace_tensors import Port

__all__ = ["DeviceView", "is_on_device", "read_value", "view_of"]

_DLPACK_CUDA = 2
_PER_THREAD = 2
"""The number of the per-thread default stream in DLPack and the CUDA array interface."""


def is_on_device(value: Any) -> bool:
    """Return whether ``value`` is an array of any library on a CUDA device."""
    if isinstance(value, (np.ndarray, DeviceView)):
        return isinstance(value, DeviceView)
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor:
        return bool(value.is_cuda)
    try:
        where = getattr(value, "__dlpack_device__", None)
        if where is not None:
            return int(where()[0]) == _DLPACK_CUDA
        return hasattr(value, "__cuda_array_interface__")
    except Exception:  # noqa: BLE001 - a foreign array may raise anything
        return False


class DeviceView:
    """Contiguous memory on a device, with the attribute names of numpy arrays.

    Attributes:
        pointer: Address on the device.
        shape, dtype: As in a numpy array.
        owner: The object that keeps the memory alive.
    """

    __slots__ = ("dtype", "owner", "pointer", "shape")

    def __init__(
        self, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any
    ) -> None:
        self.pointer, self.shape, self.dtype, self.owner = pointer, shape, dtype, owner

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: None) -> DeviceView:
        """Give the view with one more axis in front."""
        return DeviceView(self.pointer, (1, *self.shape), self.dtype, self.owner)


def read_value(value: Any, port: Port, key: str = "data") -> Any:
    """Return ``value`` as an array of the port's dtype, see `headrace_tensors.host_array`. A `DeviceView` as it is.

    Raises:
        InputError: ``value`` is no array, is on a device that the session does not use, has another dtype, or its
            numbers do not fit the port's dtype, or it is on the device, and the input has no batch axis.
    """
    if isinstance(value, DeviceView):
        if not port.batched:
            raise InputError(
                "an input without batch axis is read on the CPU",
                key=key,
                expected=f"{port.accepts()} on the CPU",
                got=f"{text_of(value)} on the device",
                hint="CpuTensor before it moves it.",
            )
        if str(value.dtype) != port.dtype:
            raise InputError("wrong dtype", key=key, expected=port.accepts(), got=text_of(value))
        return value
    try:
        return host_array(value, port, key)
    except InputError as error:
        if not is_on_device(value):
            raise
        where = getattr(value, "__dlpack_device__", None)
        device = f"cuda:{where()[1]}" if where is not None else "a CUDA device"
        raise InputError(
            "the array lies on another device than the session",
            key=key,
            expected=f"{port.accepts()} on the CPU",
            got=f"{type(value).__name__} on {device}",
            hint="CpuTensor before it moves it, or `device` lets the session compute there.",
        ) from error.__cause__


def view_of(value: Any, ordinal: int, stream: int, key: str = "data") -> DeviceView:
    """Return a view of another library's array on the device. ``stream`` is ordered behind the work that makes it.

    Args:
        value: An array that `headrace_tensors.view_of_torch` does not take, with ``__cuda_array_interface__`` or ``__dlpack__``,
            with the latter its library orders the streams.
        ordinal: The number of the model's device.
        stream: The handle of the stream that will read the array.
        key: The key of the request with the array, for the error.

    Raises:
        InputError: The array is on another device, not contiguous, or of a dtype that numpy does not have.
    """
    where = getattr(value, "__dlpack_device__", None)
    if where is not None and int(where()[1]) != ordinal:
        raise InputError(
            f"the array is on cuda:{int(where()[1])}, this instance computes on cuda:{ordinal}",
            key=key,
            expected=f"an array on cuda:{ordinal} or on the CPU",
            got=f"an array on cuda:{int(where()[1])}",
        )
    try:
        if hasattr(value, "__dlpack__"):
            # This call makes our stream wait for the work that makes the array.
            capsule = value.__dlpack__(stream=stream)
            if not hasattr(value, "__cuda_array_interface__"):
                return _view_of_capsule(capsule, value, key)
        about = value.__cuda_array_interface__
        dtype, shape = np.dtype(about["typestr"]), tuple(about["shape"])
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - a foreign array may raise anything
        raise InputError(
            f"this is no array that can be read on the device ({error})",
            key=key,
            expected="an array with __cuda_array_interface__ or __dlpack__",
            got=type(value).__name__,
        ) from None
    steps = about.get("strides")
    if steps is not None and tuple(steps) != _steps(shape, dtype.itemsize):
        raise InputError(
            "the array is not contiguous",
            key=key,
            expected="memory in the order of its axes",
            got=f"{dtype} {list(shape)} with steps of {list(steps)} bytes",
            hint="ContiguousTensor of headrace-torch puts it into that order.",
        )
    made_on = about.get("stream")
    if made_on not in (None, _PER_THREAD) and not hasattr(value, "__dlpack__"):
        cuda.order_behind(stream, int(made_on), ordinal)
    return DeviceView(int(about["data"][0] or 0), shape, dtype, value)


def _view_of_capsule(capsule: Any, value: Any, key: str) -> DeviceView:
    found = read_capsule(capsule)
    if not found.dtype or not found.contiguous:
        what = "is not contiguous" if found.dtype else "has a dtype that numpy lacks"
        raise InputError(
            f"the array {what}",
            key=key,
            expected="memory in the order of its axes, of a dtype of numpy's",
            got=f"{found.dtype or type(value).__name__} {list(found.shape)}",
            hint="ContiguousTensor of headrace-torch puts it into that order.",
        )
    return DeviceView(found.pointer, found.shape, np.dtype(found.dtype), (value, capsule))


def _steps(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    steps, step = [], itemsize
    for length in reversed(shape):
        steps.append(step)
        step *= length
    return tuple(reversed(steps))
