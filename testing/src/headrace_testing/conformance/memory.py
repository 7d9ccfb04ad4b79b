"""Which memory a value stands on, to see whether two values share some."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from headrace_testing.conformance.values import is_array

_POINTERS = ("__cuda_array_interface__", "data_ptr")
_MUTABLE = (list, dict, set, bytearray)


def _places(value: Any) -> Iterator[tuple[int, int]]:
    """Give the places in memory of whatever in a value can be changed, as (begin, end)."""
    if is_array(value) or any(hasattr(value, name) for name in _POINTERS):
        place = _of_array(value)
        if place is not None:
            yield place
        return
    if isinstance(value, _MUTABLE):
        yield id(value), id(value) + 1
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _places(part)


def _of_array(array: Any) -> tuple[int, int] | None:
    """Give where an array begins and ends; None when it does not tell, or is only read.

    One on a device tells through ``__cuda_array_interface__`` or ``data_ptr()``.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.generic):
        return None  # one number: it cannot be changed, and tells of memory that is gone already
    try:
        interface = getattr(array, "__cuda_array_interface__", None)
        size = _size(array, interface)
        if interface is not None:
            begin, read_only = interface["data"]
        elif callable(getattr(array, "data_ptr", None)):
            begin, read_only = array.data_ptr(), False
        else:
            begin, read_only = array.__array_interface__["data"]
    except Exception:  # noqa: BLE001 - arrays of foreign libraries, on devices
        return None
    return None if read_only or not size else (begin, begin + size)


def _size(array: Any, interface: Any) -> int:
    """Give the size of an array in bytes, from whatever tells it."""
    size = getattr(array, "nbytes", None)
    if size is not None:
        return int(size)
    if interface is not None:
        itemsize = int(interface["typestr"][2:])
        return itemsize * int(math.prod(interface["shape"]))
    if callable(getattr(array, "numel", None)):
        return int(array.numel() * array.element_size())
    return 1  # as much as is known: where it begins


def shares_memory(one: Any, other: Any, *, but: Any = ()) -> bool:
    """Tell whether two values share memory that can be changed, other than that of ``but``.

    Arrays count from their first to their last byte where they are contiguous; a strided one may
    reach further than it tells.
    """
    excepted = list(_places(but))

    def own(value: Any) -> list[tuple[int, int]]:
        return [place for place in _places(value) if not any(_meet(place, e) for e in excepted)]

    return any(_meet(a, b) for a in own(one) for b in own(other))


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]
