"""Whatever callers and other plugins send as arrays, as tensors; nothing is copied on the way in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace_torch.place import Place

__all__ = ["ARRAY", "as_tensor", "described", "dtype_name", "input_tensor", "refused"]

ARRAY = "a tensor or an array (torch, DLPack, numpy or a buffer)"
"""What is read as a tensor, in the words of the errors."""


def dtype_name(dtype: torch.dtype) -> str:
    """Give ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def described(value: Any) -> str:
    """Say in words what ``value`` is, by dtype, shape and device when it is an array."""
    if value is None:
        return "None"
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return type(value).__name__
    dtype = str(value.dtype).removeprefix("torch.")
    text = f"{dtype} [{', '.join(map(str, value.shape))}]"
    where = getattr(value, "device", None)
    return f"{text} on {where}" if isinstance(where, torch.device) else text


def refused(what: str, expected: str, got: Any, key: str = "data", **more: Any) -> InputError:
    """Give the InputError for a value that is not what it should be."""
    return InputError(what, key=key, expected=expected, got=described(got), **more)


def as_tensor(value: Any, key: str = "data", expected: str = ARRAY) -> torch.Tensor:
    """Give ``value`` as a tensor on the memory it has, on whatever device that is.

    Args:
        value: A dense tensor, or what numpy, DLPack or the buffer protocol can read as numbers. An
            array on a device orders torch's current stream behind its own when it is taken.
        key: The key of the request it stands under, for the error.
        expected: What should stand there, for the error.

    Raises:
        InputError: It is no array, one of a kind that torch does not have, or one without data.
    """
    tensor = _seen(value, key, expected)
    if tensor.is_meta:
        raise refused("this tensor holds no data", expected, tensor, key)
    return tensor


def _seen(value: Any, key: str, expected: str) -> torch.Tensor:
    """Give ``value`` as `as_tensor` does, wherever it is."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise refused("this is no dense tensor", expected, value, key)
        return value
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            return torch.from_dlpack(value)
        array = _as_array(value)
        if array is not None:
            return torch.from_numpy(_readable(array))
    except Exception as error:  # noqa: BLE001 - a foreign array may raise anything
        what = f"this is nothing torch can read ({error})"
        raise refused(what, expected, value, key) from None
    raise refused("this is no array", expected, value, key)


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Give what numpy can look at without a copy as an array, else None."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__array__"):
        return np.asarray(value)
    return np.asarray(memoryview(value)) if _has_buffer(value) else None


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


class _Writable:
    """The memory of an array that is only to be read, under an interface that torch accepts.

    torch has no tensors that cannot be written to, and warns of each such array once; no backend of
    this plugin writes into what it reads.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.owner = array
        about = dict(array.__array_interface__)
        about["data"] = (about["data"][0], False)
        self.__array_interface__ = about


def _readable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give an array that torch reads: native byte order, no steps backwards, writable."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(step < 0 for step in array.strides):
        array = np.ascontiguousarray(array)
    if not array.flags.writeable and array.dtype.kind in "biufc":
        array = np.asarray(_Writable(array))
    return array


def input_tensor(
    value: Any, place: Place, key: str = "data", expected: str = ARRAY
) -> torch.Tensor:
    """Give an input of an instance as a tensor on its device, ordered behind what made it.

    Raises:
        InputError: It is no array, or lies on another device than the instance's.
    """
    tensor = _seen(value, key, expected)
    if tensor.device != place.device:
        device = place.device
        raise refused(
            f"the array is on {tensor.device}, this instance computes on {device}",
            f"{expected} on {device}",
            value if isinstance(value, torch.Tensor) else tensor,
            key,
            hint="GpuTensor, CpuTensor and FixTensor move arrays; a node's `device` says where it"
            " computes.",
        )
    if place.stream is not None:
        place.take_in(tensor)
        if not isinstance(value, torch.Tensor):
            place.keep(value)
    return tensor
