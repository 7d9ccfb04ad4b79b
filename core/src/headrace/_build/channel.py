"""What two processes send each other of requests, and the way that it takes: two pipes, and a file in memory.

A message is a pickle of plain values, which fits into what a pipe takes at once, so each is one write and one
read. What is larger, and every buffer, is put into a file that only these two processes know. It has no name, so
that nothing of it is left when they have gone, however that came, and its pages are used again by the next
message. What fits into the first of them is copied through a mapping of these, three times as quick as by the
system; what is larger by ``pwrite`` and ``preadv``, which leave the interpreter lock to others meanwhile.

Each message is answered before the next. So a message may lie where the one before it lay, which has been copied
out by then.

Of requests their values go, each by itself, so that one that cannot travel is known by its key; and what
has become of them.
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
"""A message of this size goes through a pipe whole, or not at all when the process that writes it is killed."""

_MAPPED_BYTES = 1 << 20
"""How much of the file is mapped. To copy so much takes some 25 µs, under the interpreter lock."""

_KEPT_BYTES = 1 << 26
"""A file that is larger is cut when messages have become smaller."""

_MOST_COPIED_BYTES = 1 << 30
"""What one call of the system is asked to copy."""

_ELSEWHERE = struct.Struct("<BQQ")
"""In place of a message that is in the file: 0, with which no pickle begins, and where, and its size."""

END = b"\0"
"""In place of a message: there will be none any more."""


class Channel:
    """One end, which one thread at a time uses.

    Args:
        source: Descriptor of the pipe from which messages of the other process are read.
        sink: That of the pipe into which its own are written.
        file: That of the file, which both share.

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
        """Forget what was put for a message, to put what belongs to the next one."""
        if self._size > _KEPT_BYTES and self._used < self._size // 4:
            os.ftruncate(self._file, _MAPPED_BYTES)
            self._size = _MAPPED_BYTES
        self._used = 0

    def put(self, buffer: Any, size: int) -> int:
        """Put the bytes of a contiguous buffer beside the next message; give their place.

        Raises:
            OSError: There is no memory for it.
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
        """Copy what the other process has put somewhere: as ``bytes``, or a ``bytearray`` to be changed."""
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
        """Send a message of plain values; what was put since `begin` belongs to it.

        Args:
            message: The message.
            awaits: Whether it has an answer.

        Raises:
            EOFError: The other process has gone.
            OSError: There is no memory for it; nothing was sent.
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
            EOFError: The other process has gone, or wants an end.
            TimeoutError: There was none within ``timeout_s`` seconds.
        """
        if timeout_s is not None:
            poll = select.poll()
            poll.register(self._source, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
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
        return pickle.loads(content)  # noqa: S301 - from the other of our two

    def end(self) -> None:
        """Let the other process see the end when it waits for a message."""
        with suppress(OSError):  # it has gone
            os.write(self._sink, END)

    def close(self) -> None:
        """Give all back to the system."""
        self._view.release()
        self._mapped.close()
        for file in (self._source, self._sink, self._file):
            os.close(file)


# Requests: their values.

LARGE_BYTES = 2048
"""From this size on a buffer is put beside the message."""

_PLAIN = frozenset({int, float, complex, bool, type(None), str, bytes})
"""Exact types whose values go as they are: nobody can change them, and every process knows them."""

_BYTES, _ARRAY, _PICKLE = range(3)
"""How a value goes that is packed."""

Packed = tuple[list[Any], list[dict[Any, int]]]
"""Values, each once; and per request which of them it holds, by key."""


def pack(
    requests: Iterable[Request], channel: Channel, keys: Container[str] | None = None
) -> tuple[Packed, dict[int, Exception]]:
    """Tell requests in plain values, and put their arrays, large ``bytes`` and other buffers into a channel.

    An array of numpy is not left to pickle, which takes longer for its type than for all the rest of a
    small request.

    Args:
        requests: The requests, or other values by their keys.
        channel: What the message goes through.
        keys: Those that go along; None for all.

    Returns:
        The requests, and what was wrong with the values that cannot be sent, by their numbers.
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
            except Exception as error:  # noqa: BLE001 - whatever a value raises
                bad[number] = error
                values.append(None)
        found.append(held)
    return (values, found), bad


def unpack(
    packed: Packed, channel: Channel
) -> tuple[list[dict[Any, Any]], list[dict[Any, Exception]]]:
    """Make requests again, and tell per request what was wrong with values that are not known here, by key."""
    values, bad = [], {}
    for number, value in enumerate(packed[0]):
        if type(value) is tuple:
            try:
                value = _made(value, channel)
            except Exception as error:  # noqa: BLE001 - whatever a class does, or one that is unknown
                bad[number], value = error, None
        values.append(value)
    requests = [{key: values[number] for key, number in held.items()} for held in packed[1]]
    return requests, faults(packed, bad) if bad else []


def faults(packed: Packed, bad: Mapping[int, Any]) -> list[dict[Any, Any]]:
    """Give per request what was wrong with its values, by key."""
    return [{key: bad[n] for key, n in held.items() if n in bad} for held in packed[1]]


def _pickled(value: Any, channel: Channel) -> tuple[bytes | None, list[tuple[int, int, bool]]]:
    places: list[tuple[int, int, bool]] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        places.append((channel.put(raw, raw.nbytes), raw.nbytes, not raw.readonly))
        return False  # not in the pickle

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
"""By the identity of a dtype, which is kept here: the bytes that stand for it."""

_MOST_KEPT = 256


@lru_cache(_MOST_KEPT)
def _made_by(maker: bytes) -> tuple[Any, Any]:
    """Give the class of arrays and the dtype that such bytes stand for."""
    cls, dtype = pickle.loads(maker)  # noqa: S301 - from the other of our two processes
    return cls, dtype


def _maker(array: Any) -> bytes | None:
    """Give bytes of which the other process learns how to make an array; None leaves that to pickle."""
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


# What has become of a request.


def changes(before: Request, after: Request) -> tuple[dict[str, str], Request, list[str]]:
    """Tell what has become of a request.

    Where there is a ``result``, nobody reads the ``data`` that `S` has left: it is the largest thing
    between two elements, and need not be one that can be copied.

    Returns:
        Keys that hold what another key held before and nobody can have changed, and which that is;
        keys with other values; keys that were taken out.
    """
    same, new = {}, {}
    for key, value in after.items():
        if (key in before and before[key] is value) or (key == "data" and "result" in after):
            continue
        # What could have been changed in place is sent back, also where it is an object that came.
        known = [k for k, v in before.items() if v is value] if type(value) in _PLAIN else None
        if known:
            same[key] = known[0]
        else:
            new[key] = value
    return same, new, [key for key in before if key not in after]


def apply(same: dict[str, str], new: Request, gone: list[str], request: Request) -> None:
    """Do to a request what has become of its copy."""
    kept = {key: request[source] for key, source in same.items()} if same else same
    for key in gone:
        request.pop(key, None)
    request.update(kept)
    request.update(new)
