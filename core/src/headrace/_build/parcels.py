"""What two processes tell each other, as bytes: elements, and what has become of requests."""

from __future__ import annotations

import io
import pickle
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace._build.channel import LARGE_BYTES
from headrace._registry.backends import FunctionBackend, as_backend, of_function, source_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from headrace.keys import Request


# Elements. A class that was made of another one, or of a function, is sent as what it was made of.


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{obj.__qualname__} is part of the program itself, __main__"
            )
        if not isinstance(obj, type) or not issubclass(obj, Backend):
            return None
        source = source_of(obj)
        if source is obj:
            return None
        return source, obj.batched if issubclass(obj, FunctionBackend) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        source, batched = pid
        return as_backend(source) if batched is None else of_function(source, batched=batched)


def packed(value: Any) -> bytes:
    """Give elements, with their classes and options, as bytes."""
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def unpacked(content: bytes) -> Any:
    """Give what `packed` was given; imports what its classes are part of."""
    return _Unpickler(io.BytesIO(content)).load()


# Requests.


Parcel = tuple["Request", "dict[str, tuple[bytes, Any, Any]]"]
"""The values of a request, and beside them its arrays: how each is made, its shape, and its buffer."""


def parcels(requests: Iterable[Request], keys: Container[str] | None = None) -> list[Parcel]:
    """Give requests as they are pickled: large ``bytes`` and arrays as buffers, which no pickle copies.

    An array of numpy is not left to pickle, which takes longer for its type than for all the rest of a
    small request. One that stands there several times is sent once.

    Args:
        requests: The requests, or other values by their keys.
        keys: Those that go along; None for all.
    """
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    found = []
    known: dict[int, tuple[bytes, Any, Any]] = {}
    for request in requests:
        values, arrays = {}, {}
        for key, value in request.items():
            if keys is not None and key not in keys:
                continue
            cls = type(value)
            if cls is kind and (maker := _maker(value)) is not None:
                one = known.get(id(value))
                if one is None:
                    one = known[id(value)] = maker, value.shape, pickle.PickleBuffer(value)
                arrays[key] = one
            elif cls is bytes and len(value) >= LARGE_BYTES:
                values[key] = pickle.PickleBuffer(value)
            else:
                values[key] = value
        found.append((values, arrays))
    return found


def unpack(parcel: Parcel) -> Request:
    """Give the values of a parcel again."""
    values, arrays = parcel
    for key, (maker, shape, buffer) in arrays.items():
        made = _made.get(maker)
        if made is None:
            if len(_made) >= _MOST_KEPT:
                _made.clear()
            made = _made[maker] = pickle.loads(maker)  # noqa: S301 - from the other of our two processes
        values[key] = made[0](buffer, made[1], shape, "C")
    return values


_makers: dict[int, tuple[Any, bytes | None]] = {}
"""By the identity of a dtype, which is kept here: the bytes that stand for it."""

_made: dict[bytes, tuple[Any, Any]] = {}
"""By such bytes: the function that makes an array of a buffer, and the dtype."""

_MOST_KEPT = 256


def _maker(array: Any) -> bytes | None:
    """Give bytes of which the other process learns how to make an array; None leaves that to pickle."""
    if not array.flags.c_contiguous:
        return None
    dtype = array.dtype
    known = _makers.get(id(dtype))
    if known is None:
        function, args = array.__reduce_ex__(5)[:2]
        by_buffer = len(args) == 4 and isinstance(args[0], pickle.PickleBuffer)
        if len(_makers) >= _MOST_KEPT:
            _makers.clear()
        maker = pickle.dumps((function, dtype), 5) if by_buffer and args[3] == "C" else None
        known = _makers[id(dtype)] = dtype, maker
    return known[1]


def apart(values: dict[str, Any]) -> tuple[dict[str, bytes], dict[str, Exception]]:
    """Pickle each value by itself; give those that can be pickled, and what was wrong with others."""
    good: dict[str, bytes] = {}
    bad: dict[str, Exception] = {}
    for key, value in values.items():
        try:
            good[key] = pickle.dumps(value, 5)
        except Exception as error:  # noqa: BLE001 - whatever a value raises
            bad[key] = error
    return good, bad


def together(parts: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, Exception]]:
    """Make the values again that `apart` gave; give what was wrong with those that cannot be made."""
    good: dict[str, Any] = {}
    bad: dict[str, Exception] = {}
    for key, part in parts.items():
        try:
            good[key] = pickle.loads(part)  # noqa: S301 - from the other of our two processes
        except Exception as error:  # noqa: BLE001 - whatever a class does, or one that is unknown
            bad[key] = error
    return good, bad


Changes = tuple[dict[str, str], Parcel, list[str]]
"""What a backend has made of a request: keys that hold what another key held before and nobody can have
changed, and which that is; keys with other values; keys that were taken out."""


def changes(before: Request, after: Request) -> tuple[dict[str, str], Request, list[str]]:
    """Tell what has become of a request, as `Changes` do before the values are put into a parcel.

    Where there is a ``result``, nobody reads the ``data`` that `S` has left: it is the largest thing
    between two elements, and need not be one that can be copied.
    """
    same, new = {}, {}
    for key, value in after.items():
        if (key in before and before[key] is value) or (key == "data" and "result" in after):
            continue
        # What could have been changed in place is sent back, also where it is an object that came.
        known = [k for k, v in before.items() if v is value] if type(value) in _UNCHANGING else None
        if known:
            same[key] = known[0]
        else:
            new[key] = value
    return same, new, [key for key in before if key not in after]


_UNCHANGING = frozenset({bytes, str, int, float, complex, bool, type(None)})


def apply(found: Changes, request: Request) -> None:
    """Do to a request what has become of its copy."""
    same, new, gone = found
    kept = {key: request[source] for key, source in same.items()} if same else same
    for key in gone:
        request.pop(key, None)
    request.update(kept)
    request.update(unpack(new))
