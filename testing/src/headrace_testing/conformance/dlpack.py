"""Copying an array to where the CPU can read it, through DLPack without any array library.

The layout is that of ``dlpack.h``, version 1: https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
import sys
from dataclasses import dataclass
from typing import Any

__all__ = ["HostArray", "host_copy", "is_on_device"]

_CPU = 1
_READABLE = (_CPU, 3, 11)
"""Device types that a CPU can read: its own memory, and that pinned by CUDA and by ROCm."""

_DEVICES = ("cuda", "hip", "mps", "rocm", "xpu")
"""How the names of devices begin, of arrays that tell no other way."""

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_FORMATS = {"float16": "e", "float32": "f", "float64": "d", "complex64": "f", "complex128": "d"}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


@dataclass(frozen=True)
class HostArray:
    """What an array held when it was read.

    Attributes:
        dtype: Kind and bits, such as ``float16``.
        shape: The length of each axis.
        data: Its elements, the last axis fastest.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def tolist(self) -> list[Any]:
        """Give its elements one after the other: numbers with fractions as such, others as bytes."""
        if self.dtype == "bfloat16":  # the upper half of a float32
            halves = struct.unpack(f"={len(self.data) // 2}H", self.data)
            wide = struct.pack(f"={len(halves)}I", *(half << 16 for half in halves))
            return list(struct.unpack(f"={len(halves)}f", wide))
        form = _FORMATS.get(self.dtype)
        if form is None:
            return [self.data]
        return [number for (number,) in struct.iter_unpack("=" + form, self.data)]

    def numpy(self) -> Any:
        """Give it as an array of numpy; None where numpy is not loaded or has no such dtype."""
        numpy = sys.modules.get("numpy")
        if numpy is None or self.dtype == "bfloat16":
            return None
        try:
            return numpy.frombuffer(self.data, self.dtype).reshape(self.shape)
        except Exception:  # noqa: BLE001 - a dtype of another library
            return None


@dataclass(frozen=True)
class ListedArray:
    """What an array held that tells it in no other way than as lists.

    Attributes:
        dtype, shape: As the array says.
        elements: Its elements, in nested lists.
    """

    dtype: str
    shape: tuple[int, ...]
    elements: Any

    def tolist(self) -> Any:
        """Give its elements."""
        return self.elements


def is_on_device(value: Any) -> bool:
    """Tell whether an array says that it stands where a CPU cannot read it."""
    try:
        if callable(getattr(value, "__dlpack_device__", None)):
            return value.__dlpack_device__()[0] not in _READABLE
        device = str(getattr(value, "device", ""))
        return hasattr(value, "__cuda_array_interface__") or device.startswith(_DEVICES)
    except Exception:  # noqa: BLE001 - foreign objects may raise anything
        return False


def host_copy(array: Any) -> Any:
    """Give a copy of an array that the CPU can read; None when there is no way to one.

    Whatever it has for that is tried: ``cpu()`` as in torch, ``get()`` as in CuPy, ``copy_to_host()``
    as in Numba, ``numpy()``, DLPack, ``tolist()``.
    """
    for name in ("cpu", "get", "copy_to_host", "numpy"):
        method = getattr(array, name, None)
        if callable(method):
            try:
                found = method()
            except Exception:  # noqa: BLE001, S112 - a method of another meaning
                continue
            if hasattr(found, "shape") and not is_on_device(found):
                return found
    found = _through_dlpack(array)
    if found is None and callable(getattr(array, "tolist", None)):
        dtype, shape = getattr(array, "dtype", "unknown"), getattr(array, "shape", ())
        return ListedArray(str(dtype), tuple(shape), array.tolist())
    return found


def _through_dlpack(value: Any) -> HostArray | None:
    """Read an array through ``__dlpack__``; None when it cannot be read so.

    One on a device is asked for a copy on the CPU (``dl_device``).
    """
    export = getattr(value, "__dlpack__", None)
    if not callable(export):
        return None
    for asked in ({"dl_device": (_CPU, 0), "copy": True}, {"dl_device": (_CPU, 0)}, {}):
        try:
            found = _read(export(**asked))
        except Exception:  # noqa: BLE001, S112 - an exporter that knows no such argument, or refuses
            continue
        if found is not None:
            return found
    return None


def _read(capsule: Any) -> HostArray | None:
    """Copy what a capsule holds; the capsule itself is not consumed, and frees what it holds."""
    tensor = _tensor_of(capsule)
    if tensor is None or tensor.device.type not in _READABLE:
        return None
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    kind = _KINDS.get(tensor.dtype.code, f"kind{tensor.dtype.code}_")
    bits = tensor.dtype.bits * tensor.dtype.lanes
    dtype = "bool" if kind == "bool" else f"{kind}{bits}"
    count = math.prod(shape)
    if not count:
        return HostArray(dtype, shape, b"")
    begin = tensor.data + tensor.byte_offset
    strides = _strides(tensor, shape)
    if strides == _packed(shape):
        return HostArray(dtype, shape, ctypes.string_at(begin, (count * bits + 7) // 8))
    size = bits // 8
    places = (
        sum(index * stride for index, stride in zip(at, strides, strict=True)) * size
        for at in itertools.product(*map(range, shape))
    )
    return HostArray(dtype, shape, b"".join(ctypes.string_at(begin + p, size) for p in places))


def _tensor_of(capsule: Any) -> _Tensor | None:
    # A library object of its own: what is set on the functions of `ctypes.pythonapi` holds for all.
    api = ctypes.PyDLL("python", handle=ctypes.pythonapi._handle)
    valid, pointer = api.PyCapsule_IsValid, api.PyCapsule_GetPointer
    valid.argtypes, valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    if valid(capsule, b"dltensor"):
        return _Tensor.from_address(pointer(capsule, b"dltensor"))
    if valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
        tensor: _Tensor = versioned.tensor
        return tensor
    return None


def _strides(tensor: _Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Give the steps between elements of each axis; those of an axis of one do not matter."""
    if not tensor.strides:
        return _packed(shape)
    packed = _packed(shape)
    return tuple(
        packed[axis] if shape[axis] == 1 else tensor.strides[axis] for axis in range(len(shape))
    )


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
