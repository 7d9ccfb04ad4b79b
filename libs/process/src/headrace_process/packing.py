"""Requests as packed values, and the changes that a batch has made to a request.

A request is sent as its values, each packed by itself, so that an error can name the key whose value cannot
be sent. Back come only the changes of the request.
"""

from __future__ import annotations

import pickle
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from headrace.keys import Request
    from headrace_process.places import Link


LARGE_BYTES = 2048
"""A buffer of this size or more is put beside the message; a smaller one stays in the message."""

_PLAIN = frozenset({int, float, complex, bool, type(None), str, bytes})
"""Exact types whose values go into the message as they are: immutable, and known in every process."""

_BYTES, _ARRAY, _PICKLE, _TABLE = range(4)
"""The first item of a packed value says how it is packed."""

Packed = tuple[list[Any], list[dict[Any, int]]]
"""The values, each once; and per request, by key, the number of its value."""


def pack(
    requests: Iterable[Request], link: Link, keys: Container[str] | None = None
) -> tuple[Packed, dict[int, Exception]]:
    """Pack requests as plain values, and put their arrays, large ``bytes`` and other buffers into a link.

    A numpy array is not left to pickle, which spends more time on the array's type than on all the rest of a
    small request.

    Args:
        requests: The requests, or other dicts.
        link: The link through which the message will go.
        keys: The keys that are sent. None for all.

    Returns:
        The packed requests, and the errors of the values that cannot be sent, by the numbers of the values.
    """
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    values: list[Any] = []
    tables: list[dict[Any, int]] = []
    numbers: dict[int, int] = {}
    bad: dict[int, Exception] = {}
    link.begin()
    for request in requests:
        table: dict[Any, int] = {}
        for key, value in request.items():
            if keys is not None and key not in keys:
                continue
            table[key] = number = numbers.setdefault(id(value), len(values))
            if number < len(values):
                continue
            try:
                values.append(_packed(value, link, kind))
            except Exception as error:  # noqa: BLE001 - a user's class may raise anything in pickle
                bad[number] = error
                values.append(None)
        tables.append(table)
    return (values, tables), bad


def _packed(value: Any, link: Link, kind: Any) -> Any:
    """Return a value of a message: itself, or a tuple that says where its bytes are. ``kind`` is numpy's array, or None."""
    cls = type(value)
    if cls in _PLAIN and (cls is not bytes or len(value) < LARGE_BYTES):
        return value
    if cls is bytes or cls is bytearray:
        size = len(value)
        return _BYTES, link.put(value, size, cls), size, cls is bytearray
    if cls is kind and (maker := _maker(value)) is not None:
        size, changes = value.nbytes, value.flags.writeable
        at = link.put(value, size, bytearray if changes else bytes)
        return _ARRAY, at, size, changes, maker, value.shape
    if cls is dict and kind is not None and _is_table(value, kind):
        return _TABLE, [*value], [_packed(inner, link, kind) for inner in value.values()]
    return _PICKLE, *_pickled(value, link), cls is kind and not value.flags.writeable


def _is_table(value: dict[Any, Any], kind: Any) -> bool:
    """Return whether a dict holds arrays by texts, none of them twice, and beside them what is immutable."""
    arrays = [id(inner) for inner in value.values() if type(inner) is kind]
    others = len(value) - len(arrays)
    if not arrays or len({*arrays}) < len(arrays) or any(type(key) is not str for key in value):
        return False
    return not others or sum(type(inner) in _PLAIN for inner in value.values()) == others


def size_of(packed: Packed) -> int:
    """Return about how many bytes `unpack` copies out of the link."""
    return sum([_copied(value) for value in packed[0] if type(value) is tuple])


def _copied(value: tuple[Any, ...]) -> int:
    if value[0] == _TABLE:
        return sum([_copied(inner) for inner in value[2] if type(inner) is tuple])
    if value[0] == _PICKLE:
        return sum([size for _, size, _ in value[2]])
    size: int = value[2]
    return size


def unpack(packed: Packed, link: Link) -> tuple[list[dict[Any, Any]], list[dict[Any, Any]]]:
    """Make requests of packed ones. Give also, per request and by key, errors of values unknown here.

    The second list is empty where there was no error.
    """
    values, bad = [], {}
    for number, value in enumerate(packed[0]):
        if type(value) is tuple:
            try:
                value = _made(value, link)
            except Exception as error:  # noqa: BLE001 - a class may be unknown, and may raise anything
                bad[number], value = error, None
        values.append(value)
    requests = [{key: values[number] for key, number in table.items()} for table in packed[1]]
    return requests, faults(packed, bad) if bad else []


def faults(packed: Packed, bad: Mapping[int, Any]) -> list[dict[Any, Any]]:
    """Return per request the errors of its values, by key."""
    return [{key: bad[n] for key, n in table.items() if n in bad} for table in packed[1]]


def _pickled(value: Any, link: Link) -> tuple[bytes | None, list[tuple[int, int, bool]]]:
    places: list[tuple[int, int, bool]] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        kind = bytes if raw.readonly else bytearray
        places.append((link.put(raw, raw.nbytes, kind), raw.nbytes, not raw.readonly))
        return False  # pickle leaves this buffer out

    content = pickle.dumps(value, 5, buffer_callback=keep)
    if len(content) < LARGE_BYTES:
        return content, places
    places.append((link.put(content, len(content), bytes), len(content), False))
    return None, places


def _made(packed: tuple[Any, ...], link: Link) -> Any:
    if packed[0] == _PICKLE:
        _, content, places, frozen = packed
        kinds = [(at, size, bytearray if changes else bytes) for at, size, changes in places]
        buffers = [link.take(*place) for place in kinds]
        content = buffers.pop() if content is None else content
        value = pickle.loads(content, buffers=buffers)  # noqa: S301 - from the other of our two processes
        if frozen:  # an array of objects, say, which pickle makes writable
            value.flags.writeable = False
        return value
    if packed[0] == _TABLE:
        each = zip(packed[1], packed[2], strict=True)
        return {key: _made(inner, link) if type(inner) is tuple else inner for key, inner in each}
    buffer = link.take(packed[1], packed[2], bytearray if packed[3] else bytes)
    if packed[0] == _BYTES:
        return buffer
    maker, shape = packed[4:]
    cls, dtype = _made_by(maker)
    return cls(shape, dtype, buffer)


_makers: dict[int, tuple[Any, bytes | None]] = {}
"""By the identity of a dtype: the dtype, so that its identity is not given to another one, and its bytes."""

_MOST_KEPT = 256


@lru_cache(_MOST_KEPT)
def _made_by(maker: bytes) -> tuple[Any, Any]:
    """Return the array class and the dtype for bytes that `_maker` has made."""
    cls, dtype = pickle.loads(maker)  # noqa: S301 - from the other of our two processes
    return cls, dtype


def _maker(array: Any) -> bytes | None:
    """Return bytes that tell the other process the array's class and dtype; None leaves the array to pickle."""
    if not array.flags.c_contiguous:
        return None
    dtype = array.dtype
    known = _makers.get(id(dtype))
    if known is None:
        by_buffer = isinstance(array.__reduce_ex__(5)[1][0], pickle.PickleBuffer)
        if len(_makers) >= _MOST_KEPT:
            _makers.clear()
        maker = pickle.dumps((type(array), dtype), 5) if by_buffer else None
        known = _makers[id(dtype)] = dtype, maker
    return known[1]


# The changes that a batch has made to a request.


def changes(before: Request, after: Request) -> tuple[dict[str, str], Request, list[str]]:
    """Compare a request with its copy from before the batch.

    The ``data`` of a request that has a ``result`` is left out: nobody reads it any more. It is what `S`
    passed to its last element, often the largest value of all, and pickle need not take it.

    Returns:
        Keys whose immutable value another key held before, with that key. Keys with new values, or with
        values that may have been changed in place. Keys that were taken out.
    """
    same, new = {}, {}
    for key, value in after.items():
        if (key in before and before[key] is value) or (key == "data" and "result" in after):
            continue
        # Only an immutable value is known to be unchanged: an object that came with the request under
        # another key may have been changed in place, so it is sent back.
        known = [k for k, v in before.items() if v is value] if type(value) in _PLAIN else None
        if known:
            same[key] = known[0]
        else:
            new[key] = value
    return same, new, [key for key in before if key not in after]


def apply(same: dict[str, str], new: Request, gone: list[str], request: Request) -> None:
    """Make the changes of a copy, as `changes` gives them, in the request itself."""
    values = {key: request[source] for key, source in same.items()} if same else same
    for key in gone:
        request.pop(key, None)
    request.update(values)
    request.update(new)
