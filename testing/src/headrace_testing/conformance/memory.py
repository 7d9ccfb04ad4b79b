"""The memory of a value, to see whether two values share some."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from headrace_testing.conformance.values import is_array

_POINTERS = ("__cuda_array_interface__", "data_ptr")
_MUTABLE = (list, dict, set, bytearray)


def _places(value: Any, around: tuple[int, ...] = ()) -> Iterator[tuple[int, int]]:
    """Return the places in memory, as (begin, end), of all parts of a value that can be changed."""
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
            if id(part) not in around:  # a list may hold itself
                yield from _places(part, (*around, id(part)))


def _of_array(array: Any) -> tuple[int, int] | None:
    """Return where the memory of an array begins and ends. None when that is unknown, or it is read-only.

    An array on a device reports it through ``__cuda_array_interface__`` or ``data_ptr()``.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.generic):
        return None  # a numpy scalar cannot be changed, and names memory that is released already
    try:
        interface = getattr(array, "__cuda_array_interface__", None)
        size = _size(array, interface)
        if interface is not None:
            begin, read_only = interface["data"]
        elif callable(getattr(array, "data_ptr", None)):
            begin, read_only = array.data_ptr(), False
        else:
            begin, read_only = array.__array_interface__["data"]
    except Exception:  # noqa: BLE001 - arrays of other libraries may raise anything
        return None
    return None if read_only or not size else (begin, begin + size)


def _size(array: Any, interface: Any) -> int:
    """Return the size of an array in bytes, from the first attribute that has it."""
    size = getattr(array, "nbytes", None)
    if size is not None:
        return int(size)
    if interface is not None:
        itemsize = int(interface["typestr"][2:])
        return itemsize * int(math.prod(interface["shape"]))
    if callable(getattr(array, "numel", None)):
        return int(array.numel() * array.element_size())
    return 1  # only the beginning of the memory is known


def same_memory(array: Any, other: Any, *, but: Any = ()) -> bool:
    """Return whether two values hold one and the same memory that can be changed, apart from that of ``but``.

    Unlike `shares_memory` it does not count parts of one array, which may be interleaved.
    """
    return bool({*_places(array)} & {*_places(other)} - {*_places(but)})


def shares_memory(array: Any, other: Any, *, but: Any = ()) -> bool:
    """Return whether two values share memory that can be changed, apart from the memory of ``but``.

    An array counts from its first byte on with the size of its elements: a strided one may reach further.
    """
    excepted = list(_places(but))

    def own(value: Any) -> list[tuple[int, int]]:
        return [place for place in _places(value) if not any(_meet(place, e) for e in excepted)]

    return any(_meet(a, b) for a in own(array) for b in own(other))


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]
