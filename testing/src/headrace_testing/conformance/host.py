"""Copying an array on a device to the host, by the means of its own library."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

_CPU = 1
_READABLE = (_CPU, 3, 11)
"""Device types of DLPack that a CPU can read: its own memory, and that pinned by CUDA and by ROCm."""

_DEVICES = ("cuda", "hip", "mps", "rocm", "xpu")
"""Prefixes of device names, for arrays that report their device in no other way."""

_METHODS = ("cpu", "get", "copy_to_host", "numpy", "__array__")
"""Methods that give a copy on the host: of torch, CuPy, Numba, and of arrays that numpy reads."""


@dataclass(frozen=True)
class ListedArray:
    """The content of an array that can be read only as lists.

    Attributes:
        dtype, shape: Those of the array.
        elements: The elements of the array, in nested lists.
    """

    dtype: str
    shape: tuple[int, ...]
    elements: Any

    def tolist(self) -> Any:
        """Return the elements, in nested lists."""
        return self.elements


class _Exporter:
    """A substitute for an array, for numpy: its DLPack capsule is that of a copy on the CPU.

    numpy cannot read the memory of a device, and only numpy 2.1 and newer can ask for a copy on the CPU.
    """

    def __init__(self, array: Any, how: dict[str, Any]) -> None:
        self._array, self._asked = array, how

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self._array.__dlpack__(**self._asked)


def is_on_device(value: Any) -> bool:
    """Return whether an array reports that a CPU cannot read its memory."""
    try:
        if callable(getattr(value, "__dlpack_device__", None)):
            return value.__dlpack_device__()[0] not in _READABLE
        device = str(getattr(value, "device", ""))
        return hasattr(value, "__cuda_array_interface__") or device.startswith(_DEVICES)
    except Exception:  # noqa: BLE001 - an attribute that raises tells of no device
        return False


def cuda_runtime() -> Any:
    """Return the CUDA runtime of cuda-python, if it is loaded and finds a driver; else None."""
    runtime = sys.modules.get("cuda.bindings.runtime") or sys.modules.get("cuda.cudart")
    try:
        return None if runtime is None or int(runtime.cudaGetDeviceCount()[0]) else runtime
    except RuntimeError:  # as versions before 12.9 report that there is no driver
        return None


def host_copy(array: Any) -> Any:
    """Return a copy of an array that the CPU can read. None when there is no way to make one.

    These ways are tried until one gives an array on the host: the methods of well-known libraries,
    DLPack through numpy where numpy is loaded, ``tolist()``.
    """
    for name in _METHODS:
        copy = _given_by(getattr(array, name, None))
        if copy is not None:
            return copy
    copy = _through_dlpack(array)
    if copy is None and callable(getattr(array, "tolist", None)):
        dtype, shape = getattr(array, "dtype", "unknown"), getattr(array, "shape", ())
        return ListedArray(str(dtype), tuple(shape), array.tolist())
    return copy


def _given_by(method: Any) -> Any:
    """Return the array on the host that a method gives. None when it gives none.

    In some libraries a method of that name means something else, or raises. It is then skipped.
    """
    if not callable(method):
        return None
    try:
        array = method()
    except Exception:  # noqa: BLE001 - a method that raises is no way
        return None
    return array if hasattr(array, "shape") and not is_on_device(array) else None


def _through_dlpack(array: Any) -> Any:
    """Read an array through ``__dlpack__`` with numpy. None when that is not possible.

    The array is asked for a copy on the CPU, then only for the CPU (``dl_device``), then without arguments, because
    older exporters know none of them.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not callable(getattr(array, "__dlpack__", None)):
        return None
    for how in ({"dl_device": (_CPU, 0), "copy": True}, {"dl_device": (_CPU, 0)}, {}):
        try:
            return numpy.from_dlpack(_Exporter(array, how)).copy()
        except Exception:  # noqa: BLE001, S112 - the array refuses the arguments, or is on a device
            continue
    return None
