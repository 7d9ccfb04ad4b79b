"""Arrays on a CUDA device: those that requests bring, looked at where they are, and those they get."""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_ort import cuda
from headrace_ort.dlpack import read_capsule

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DeviceArray", "DeviceView", "is_on_device", "view_of", "view_of_torch"]

_DLPACK_CUDA = 2
_PER_THREAD = 2
"""The stream that DLPack and the array interface mean by this number."""


def is_on_device(value: Any) -> bool:
    """Tell whether ``value`` is an array on a CUDA device, of whatever library."""
    if isinstance(value, (np.ndarray, DeviceView)):
        return isinstance(value, DeviceView)
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor:
        return bool(value.is_cuda)
    where = getattr(value, "__dlpack_device__", None)
    if where is not None:
        return int(where()[0]) == _DLPACK_CUDA
    return hasattr(value, "__cuda_array_interface__")


class DeviceView:
    """Contiguous memory on a device, with the names that numpy's arrays have.

    Attributes:
        pointer: Address on the device.
        shape, dtype: As of a numpy array.
        owner: What keeps the memory alive.
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
        """Give it with an axis more in front."""
        return DeviceView(self.pointer, (1, *self.shape), self.dtype, self.owner)


def view_of(value: Any, ordinal: int, stream: int, key: str = "data") -> DeviceView:
    """Look at an array of another library on the device, in order behind what made it.

    Args:
        value: An array that `view_of_torch` does not know, with ``__cuda_array_interface__``, or with
            ``__dlpack__``, whose library orders streams.
        ordinal: The device of the model.
        stream: The stream that will read it.
        key: The key of the request it stands under, for the error.

    Raises:
        InputError: It is on another device, or not contiguous, or tells no dtype that numpy has.
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
            # Its library lets this stream wait for what made it.
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
        cuda.order_behind(stream, int(made_on))
    return DeviceView(int(about["data"][0] or 0), shape, dtype, value)


def view_of_torch(value: Any, ordinal: int, stream: int) -> DeviceView | None:
    """Look at a plain tensor of torch without its capsule, which costs ten times as much to make.

    The order is what its ``__dlpack__`` makes: behind torch's current stream of this thread. None for
    every other value, and for a tensor with something to refuse.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor or value.get_device() != ordinal:
        return None
    dtype = _torch_dtype(value.dtype)
    if dtype is None or value.layout is not torch.strided or value.requires_grad:
        return None
    if not value.is_contiguous() or value.is_conj() or value.is_neg():
        return None
    cuda.order_behind(stream, _torch_stream(torch)(ordinal))
    return DeviceView(value.data_ptr(), tuple(value.shape), dtype, value)


@functools.cache
def _torch_stream(torch: Any) -> Callable[[int], int]:
    """Give what tells torch's current stream on a device, without an object around it where it can."""
    raw: Callable[[int], int] | None = getattr(
        getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None
    )
    return raw or (lambda ordinal: int(torch.cuda.current_stream(ordinal).cuda_stream))


@functools.cache
def _torch_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Give numpy's dtype for one of torch's, None where it has none."""
    try:
        return np.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        return None


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


class DeviceArray:
    """A result on a CUDA device, for any library that reads DLPack or the CUDA array interface.

    It is finished at the end of the batch; earlier it is behind the stream, which ``__dlpack__``
    orders.

    Attributes:
        shape, dtype: As of a numpy array.
    """

    def __init__(
        self, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int, ordinal: int
    ) -> None:
        self._value, self.shape, self.dtype = value, shape, dtype
        self._stream, self._ordinal = stream, ordinal
        self.finished = False

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._value.data_ptr(), False),
            "strides": None,
            "version": 3,
            "stream": None if self.finished else self._stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CUDA, self._ordinal

    def __dlpack__(self, *, stream: int | None = None, **how: Any) -> Any:
        if not self.finished and stream not in (None, -1):
            cuda.order_behind(int(stream or 0), self._stream)
        return getattr(self._value, "_ortvalue", self._value).__dlpack__()

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype} {list(self.shape)} on cuda:{self._ordinal})"
