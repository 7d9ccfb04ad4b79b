"""Reads arrays of callers and other plugins as tensors, without a copy if possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headrace.errors import InputError
from headrace_tensors import refuse_masked
from headrace_torch.requests.arrays import is_dense

if TYPE_CHECKING:
    from headrace_torch.devices.place import Place

__all__ = [
    "ARRAY",
    "as_tensor",
    "described",
    "dtype_name",
    "input_tensor",
    "plain_numbers",
    "refused",
]

ARRAY = "a tensor or an array (torch, DLPack, numpy or a buffer)"
"""A text for errors that says what is read as a tensor."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def described(value: Any) -> str:
    """Return a text that describes a value: dtype, shape and device of an array, else the type."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor) and value.is_nested:
        return f"a nested tensor of {dtype_name(value.dtype)}"  # one of strided layout has no shape
    try:
        dtype = str(value.dtype).removeprefix("torch.")
        text = f"{dtype} [{', '.join(map(str, value.shape))}]"
    except (AttributeError, TypeError):  # no array, or the class of arrays
        return type(value).__name__
    where = getattr(value, "device", None)
    return f"{text} on {where}" if isinstance(where, torch.device) else text


def refused(what: str, expected: str, got: Any, key: str = "data", **more: Any) -> InputError:
    """Return the InputError for a value ``got`` where ``expected`` was expected; ``what`` states the problem."""
    return InputError(what, key=key, expected=expected, got=described(got), **more)


def as_tensor(value: Any, key: str = "data", expected: str = ARRAY) -> torch.Tensor:
    """Return ``value`` as a tensor on the same memory, on any device.

    A copy is made only of arrays that torch cannot share: with a foreign byte order, or negative strides.

    Args:
        value: A dense tensor, or an array of numbers that numpy, DLPack or the buffer protocol can read. With
            DLPack, an array on a device orders torch's current stream behind its own stream.
        key: The key of the request with the value, for the error.
        expected: A text that says what is expected, for the error.

    Raises:
        InputError: ``value`` is no array, of a kind that torch does not have, or a tensor without data (meta).
    """
    tensor = _seen(value, key, expected)
    if tensor.is_meta:
        raise refused("this tensor holds no data", expected, tensor, key)
    return tensor


def plain_numbers(value: Any) -> list[Any] | None:
    """Convert numbers to Python's own. None if ``value`` is neither a list of numbers nor an array.

    Args:
        value: An array of any library, also on a device, or a list or tuple whose elements may be numpy scalars or
            tensors without axes, as in ``list(array)``.
    """
    if not isinstance(value, (list, tuple)):
        try:
            if not callable(getattr(value, "tolist", None)):
                if isinstance(value, (bytes, bytearray)):
                    return None
                value = as_tensor(value)
            value = value.tolist()
        except Exception:  # noqa: BLE001 - a foreign array may raise anything
            return None
    if not isinstance(value, (list, tuple)):
        return None
    kinds = (torch.Tensor, np.generic)
    return [n.item() if isinstance(n, kinds) and not n.ndim else n for n in value]


def _seen(value: Any, key: str, expected: str) -> torch.Tensor:
    """Return ``value`` as a tensor on the same memory; it may be a meta tensor, without data."""
    if isinstance(value, torch.Tensor):
        if not is_dense(value):
            raise refused("this is no dense tensor", expected, value, key)
        return value
    refuse_masked(value, key)
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            return torch.from_dlpack(value)
        array = _as_array(value)
        if array is not None:
            return torch.from_numpy(_readable(array))
    except Exception as error:  # noqa: BLE001 - a foreign array may raise anything
        problem = f"this is nothing torch can read ({error})"
        raise refused(problem, expected, value, key) from None
    raise refused("this is no array", expected, value, key)


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return ``value`` as a numpy array if it is one, has a numpy protocol or a buffer; else None."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__array__") or hasattr(type(value), "__array_interface__"):
        return np.asarray(value)
    return np.asarray(memoryview(value)) if _has_buffer(value) else None


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


class _Writable:
    """The memory of a read-only array, presented as writable.

    torch has no read-only tensors, and warns when it makes a tensor from a read-only array. No backend of this plugin
    writes into its inputs, so the warning would be wrong.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.owner = array
        about = dict(array.__array_interface__)
        about["data"] = (about["data"][0], False)
        self.__array_interface__ = about


def _readable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array that torch can read: with native byte order, without negative strides, writable."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(step < 0 for step in array.strides):
        array = (
            array.copy()
        )  # `ascontiguousarray` does not change the stride of an axis of length 1
    if not array.flags.writeable and array.dtype.kind in "biufc":
        array = np.asarray(_Writable(array))
    return array


def input_tensor(
    value: Any, place: Place, key: str = "data", expected: str = ARRAY, *, strict: bool = True
) -> torch.Tensor:
    """Return an input as a tensor on the instance's device. The stream is ordered behind the work that makes it.

    With ``strict`` False a tensor in the memory of the host is returned as it is.

    Raises:
        InputError: ``value`` is no array, or on another device than the instance.
    """
    tensor = _seen(value, key, expected)
    if not strict and tensor.device.type == "cpu":
        return tensor
    if tensor.device != place.device:
        device = place.device
        raise refused(
            f"the array is on {tensor.device}, this instance computes on {device}",
            f"{expected} on {device}",
            value if isinstance(value, torch.Tensor) else tensor,
            key,
            hint="GpuTensor, CpuTensor and FixTensor move arrays; a node's `device` says where it"
            " computes. Behind an engine write output_device = 'device'.",
        )
    if place.stream is not None:
        place.take_in(tensor)
        if not isinstance(value, torch.Tensor):
            place.keep(value)
    return tensor
