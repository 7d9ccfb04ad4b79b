"""Reads and makes DLPack capsules with ctypes, so that libraries share arrays on a device without a copy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["CPU", "CUDA", "CUDA_HOST", "Tensor", "export_capsule", "read_capsule"]

CPU: Final = 1
CUDA: Final = 2
CUDA_HOST: Final = 3
CUDA_MANAGED: Final = 13

_CODES: Final = {
    (0, 8): "int8",
    (0, 16): "int16",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 16): "uint16",
    (1, 32): "uint32",
    (1, 64): "uint64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
}
_NAMES: Final = {name: code for code, name in _CODES.items()}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """``DLManagedTensor``."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (
    ("tensor", _Tensor),
    ("manager", ctypes.c_void_p),
    ("deleter", _Deleter),
)

# The function is taken from a library object of this module, since argtypes and restype that another library sets
# on the functions of `ctypes.pythonapi` would hold here too.
_get_pointer = ctypes.PyDLL("python", handle=ctypes.pythonapi._handle).PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)

_NAME = b"dltensor"


@dataclass(frozen=True)
class Tensor:
    """The array in a capsule.

    Attributes:
        pointer: Address of the first element.
        shape: Lengths of its axes.
        dtype: Name of its type. ``""`` for a type that is not in `_CODES`.
        device: Type and number of the device.
        contiguous: Whether its elements lie one after the other in C order.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    device: tuple[int, int]
    contiguous: bool


def read_capsule(capsule: Any) -> Tensor:
    """Read a capsule without consuming it: it still owns the memory, and must be kept while the memory is used."""
    managed = ctypes.cast(_get_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents
    tensor = managed.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    contiguous = True
    if tensor.strides:
        step = 1
        for i in reversed(range(tensor.ndim)):
            if shape[i] != 1 and tensor.strides[i] != step:
                contiguous = False
            step *= shape[i]
    kind = (tensor.dtype.code, tensor.dtype.bits)
    name = _CODES.get(kind, "") if tensor.dtype.lanes == 1 else ""
    return Tensor(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        name,
        (tensor.device.type, tensor.device.id),
        contiguous or 0 in shape,
    )


class _Borrowed:
    """The description of the array for numpy. It keeps ``owner`` alive, because numpy keeps this alive."""

    def __init__(self, pointer: int, shape: tuple[int, ...], bits: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": f"=u{bits // 8}",
            "data": (pointer, False),
        }


def export_capsule(
    pointer: int, shape: tuple[int, ...], dtype: str, device: tuple[int, int], owner: Any
) -> Any:
    """Make a capsule of an array in C order. ``owner`` is kept alive until the consumer releases the array.

    numpy makes the capsule, of unused whole numbers on the host, and place and type are corrected in it. So numpy's
    functions release it: a capsule may be dropped while an error is raised, and code in Python would replace the error.
    """
    import numpy as np

    code, bits = _NAMES[dtype]
    # An array without elements may have no address, which not every version of numpy takes.
    capsule = np.asarray(_Borrowed(pointer or 1, shape, bits, owner)).__dlpack__()
    managed = ctypes.cast(_get_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents
    managed.tensor.data = pointer
    managed.tensor.device = _Device(*device)
    managed.tensor.dtype = _Type(code, bits, 1)
    return capsule
