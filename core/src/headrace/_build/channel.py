"""How two processes send each other batches: through two pipes and a file in memory.

A message is a pickle of plain values. It is at most as large as a pipe takes at once, so a message is one
write and one read. A larger pickle, and every large buffer, is put into a file that only these two
processes have open. The file has no name, so nothing of it is left when both processes have ended, in
whatever way, and its pages are used again by the next message. The first megabyte of the file is mapped: a
copy through the mapping is three times as fast as by a system call. What lies behind it is copied by
``pwrite`` and ``preadv``, which release the interpreter lock meanwhile.

Each message is answered before the next one is sent. So a message may overwrite the one before it in the
file: the other process has copied that out by then.

A request is sent as its values, each packed by itself, so that an error can name the key whose value cannot
be sent. Back come only the changes of the request.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import struct
import sys
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from headrace.keys import Request


_MOST_AT_ONCE_BYTES = getattr(select, "PIPE_BUF", 512)
"""The kernel writes so many bytes to a pipe whole, or not at all when the writing process is killed."""

_MAPPED_BYTES = 1 << 20
"""How much of the file is mapped. To copy this much takes some 25 µs, with the interpreter lock held."""

_KEPT_BYTES = 1 << 26
"""A larger file is truncated once a message uses less than a quarter of it, to give the memory back."""

_MOST_COPIED_BYTES = 1 << 30
"""How much one system call is asked to copy: Linux copies at most 2 GiB at a time."""

_ELSEWHERE = struct.Struct("<BQQ")
"""Stands for a message in the file: a 0, with which no pickle begins, its place, its size in bytes."""

END = b"\0"
"""Written in place of a message when no other message will come."""


class Channel:
    """One end of the way between two processes; one thread at a time uses it.

    Args:
        source: Descriptor of the pipe from which messages of the other process are read.
        sink: Descriptor of the pipe into which messages to the other process are written.
        file: Descriptor of the file that both processes share.

    Attributes:
        awaits: Whether a message was sent whose answer has not been read.
    """

    def __init__(self, source: int, sink: int, file: int) -> None:
        self._source, self._sink, self._file = source, sink, file
        os.ftruncate(file, max(os.fstat(file).st_size, _MAPPED_BYTES))
        self._mapped = mmap.mmap(file, _MAPPED_BYTES)
        self._view = memoryview(self._mapped)
        self._used = 0
        self._size = _MAPPED_BYTES
        self.awaits = False

    def begin(self) -> None:
        """Begin the buffers of the next message, over those of the one before."""
        if self._size > _KEPT_BYTES and self._used < self._size // 4:
            os.ftruncate(self._file, _MAPPED_BYTES)
            self._size = _MAPPED_BYTES
        self._used = 0

    def put(self, buffer: Any, size: int) -> int:
        """Write the bytes of a contiguous buffer into the file, for the next message; give their place.

        Raises:
            OSError: There is no memory for the bytes.
        """
        at = self._used
        self._used = end = at + size
        if end <= _MAPPED_BYTES:
            self._mapped[at:end] = buffer
            return at
        left, to = pickle.PickleBuffer(buffer).raw(), at
        while left.nbytes:
            wrote = os.pwrite(self._file, left[:_MOST_COPIED_BYTES], to)
            left, to = left[wrote:], to + wrote
        self._size = max(self._size, end)
        return at

    def take(self, at: int, size: int, kind: type[Any]) -> Any:
        """Copy what the other process has put into the file, as ``kind``: ``bytes`` or ``bytearray``."""
        if at + size <= _MAPPED_BYTES:
            return kind(self._view[at : at + size])
        if kind is bytes and size <= _MOST_COPIED_BYTES:
            return os.pread(self._file, size, at)
        made = bytearray(size)
        left = memoryview(made)
        while left.nbytes:
            got = os.preadv(self._file, [left[:_MOST_COPIED_BYTES]], at)
            left, at = left[got:], at + got
        return made if kind is bytearray else bytes(made)

    def send(self, message: Any, *, awaits: bool = False) -> None:
        """Send a message of plain values, to which all buffers put since `begin` belong.

        Args:
            message: The message.
            awaits: Whether the other process answers it.

        Raises:
            EOFError: The other process has ended.
            OSError: There is no memory for the message; nothing was sent.
        """
        content = pickle.dumps(message, 5)
        if len(content) > _MOST_AT_ONCE_BYTES:
            size = len(content)
            content = _ELSEWHERE.pack(0, self.put(content, size), size)
        self.awaits = awaits
        try:
            os.write(self._sink, content)
        except OSError as error:
            raise EOFError from error

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for a message.

        Raises:
            EOFError: The other process has ended, or has called `end`.
            TimeoutError: No message came within ``timeout_s`` seconds.
        """
        if timeout_s is not None:
            poll = select.poll()
            poll.register(self._source, select.POLLIN)
            if not poll.poll(min(timeout_s * 1000, 2**31 - 1)):  # the most it takes
                raise TimeoutError
        try:
            content = os.read(self._source, _MOST_AT_ONCE_BYTES)
        except OSError as error:
            raise EOFError from error
        self.awaits = False
        if content in (b"", END):
            raise EOFError
        if content[0] == 0:
            _, at, size = _ELSEWHERE.unpack_from(content)
            content = self.take(at, size, bytes)
        return pickle.loads(content)  # noqa: S301 - the other process is ours as well

    def end(self) -> None:
        """Tell the other process that no message will come any more."""
        with suppress(OSError):  # the other process has ended
            os.write(self._sink, END)

    def close(self) -> None:
        """Close the mapping and the descriptors."""
        self._view.release()
        self._mapped.close()
        for file in (self._source, self._sink, self._file):
            os.close(file)


# Requests as packed values.

LARGE_BYTES = 2048
"""A buffer of this size or more is put into the file; a smaller one stays in the message."""

_PLAIN = frozenset({int, float, complex, bool, type(None), str, bytes})
"""Exact types whose values go into the message as they are: immutable, and known in every process."""

_BYTES, _ARRAY, _PICKLE = range(3)
"""The first item of a packed value says how it is packed."""

Packed = tuple[list[Any], list[dict[Any, int]]]
"""The values, each once; and per request, by key, the number of its value."""


def pack(
    requests: Iterable[Request], channel: Channel, keys: Container[str] | None = None
) -> tuple[Packed, dict[int, Exception]]:
    """Pack requests as plain values, and put their arrays, large ``bytes`` and other buffers into a channel.

    A numpy array is not left to pickle, which spends more time on the array's type than on all the rest of a
    small request.

    Args:
        requests: The requests, or other dicts.
        channel: The channel through which the message will go.
        keys: The keys that are sent; None for all.

    Returns:
        The packed requests, and the errors of the values that cannot be sent, by the numbers of the values.
    """
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    values: list[Any] = []
    found: list[dict[Any, int]] = []
    numbers: dict[int, int] = {}
    bad: dict[int, Exception] = {}
    channel.begin()
    for request in requests:
        held: dict[Any, int] = {}
        for key, value in request.items():
            if keys is not None and key not in keys:
                continue
            held[key] = number = numbers.setdefault(id(value), len(values))
            if number < len(values):
                continue
            cls = type(value)
            if cls in _PLAIN and (cls is not bytes or len(value) < LARGE_BYTES):
                values.append(value)
                continue
            try:
                if cls is bytes or cls is bytearray:
                    size = len(value)
                    values.append((_BYTES, channel.put(value, size), size, cls is bytearray))
                elif cls is kind and (maker := _maker(value)) is not None:
                    at, size = channel.put(value, value.nbytes), value.nbytes
                    values.append((_ARRAY, at, size, value.flags.writeable, maker, value.shape))
                else:
                    values.append((_PICKLE, *_pickled(value, channel)))
            except Exception as error:  # noqa: BLE001 - a user's class may raise anything in pickle
                bad[number] = error
                values.append(None)
        found.append(held)
    return (values, found), bad


def unpack(packed: Packed, channel: Channel) -> tuple[list[dict[Any, Any]], list[dict[Any, Any]]]:
    """Make requests of packed ones; give also, per request and by key, errors of values unknown here.

    The second list is empty where there was no error.
    """
    values, bad = [], {}
    for number, value in enumerate(packed[0]):
        if type(value) is tuple:
            try:
                value = _made(value, channel)
            except Exception as error:  # noqa: BLE001 - a class may be unknown, and may raise anything
                bad[number], value = error, None
        values.append(value)
    requests = [{key: values[number] for key, number in held.items()} for held in packed[1]]
    return requests, faults(packed, bad) if bad else []


def faults(packed: Packed, bad: Mapping[int, Any]) -> list[dict[Any, Any]]:
    """Return per request the errors of its values, by key."""
    return [{key: bad[n] for key, n in held.items() if n in bad} for held in packed[1]]


def _pickled(value: Any, channel: Channel) -> tuple[bytes | None, list[tuple[int, int, bool]]]:
    places: list[tuple[int, int, bool]] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        places.append((channel.put(raw, raw.nbytes), raw.nbytes, not raw.readonly))
        return False  # pickle leaves this buffer out

    content = pickle.dumps(value, 5, buffer_callback=keep)
    if len(content) < LARGE_BYTES:
        return content, places
    places.append((channel.put(content, len(content)), len(content), False))
    return None, places


def _made(packed: tuple[Any, ...], channel: Channel) -> Any:
    if packed[0] == _PICKLE:
        _, content, places = packed
        kinds = [(at, size, bytearray if changes else bytes) for at, size, changes in places]
        buffers = [channel.take(*one) for one in kinds]
        content = buffers.pop() if content is None else content
        return pickle.loads(content, buffers=buffers)  # noqa: S301 - from the other of our two processes
    buffer = channel.take(packed[1], packed[2], bytearray if packed[3] else bytes)
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
        Keys whose immutable value another key held before, with that key; keys with new values, or with
        values that may have been changed in place; keys that were taken out.
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
    kept = {key: request[source] for key, source in same.items()} if same else same
    for key in gone:
        request.pop(key, None)
    request.update(kept)
    request.update(new)
