"""How two processes send each other batches: through two pipes and a file in memory.

A message is a pickle of plain values. It is at most as large as a pipe takes at once, so a message is one
write and one read. A larger pickle, and every large buffer, is put into a file that only these two
processes have open. The file has no name, so nothing of it is left when both processes have ended, in
whatever way, and its pages are used again by the next message. The first megabyte of the file is mapped: a
copy through the mapping is three times as fast as by a system call. What lies behind it is copied by
``pwrite`` and ``preadv``, which release the interpreter lock meanwhile.

Each message is answered before the next one is sent. So a message may overwrite the one before it in the
file: the other process has copied that out by then.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import struct
from contextlib import suppress
from math import inf
from typing import Any

from headrace_process.places import await_message

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


class PipeLink:
    """One end of the way between two processes, a `headrace_process.places.Link`. One thread at a time uses it.

    Args:
        source: Descriptor of the pipe for messages of the other process.
        sink: Descriptor of the pipe for messages to the other process.
        file: Descriptor of the shared file.
        held: Descriptors of the far ends of both pipes, kept open by the process that started the other. Without them
            a write after the death of the other process would meet a broken pipe, and `cut` could not end a `receive`
            here.

    Attributes:
        awaits: Whether a message was sent whose answer has not been read.
    """

    def __init__(self, source: int, sink: int, file: int, held: tuple[int, ...] = ()) -> None:
        self._source, self._sink, self._file, self._held = source, sink, file, held
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

    def put(self, buffer: Any, size: int, kind: type[Any] = bytes) -> int:
        """Write the bytes of a contiguous buffer into the file, for the next message. Return their place.

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
        content = bytearray(size)
        left = memoryview(content)
        while left.nbytes:
            got = os.preadv(self._file, [left[:_MOST_COPIED_BYTES]], at)
            left, at = left[got:], at + got
        return content if kind is bytearray else bytes(content)

    def send(self, message: Any, *, awaits: bool = False) -> None:
        """Send a message of plain values: in the pipe, or where it is large in the file; see `Link.send`."""
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
        """Wait for a message; see `Link.receive`."""
        await_message(self._source, timeout_s)
        content = None
        while content is None:
            try:
                content = os.read(self._source, _MOST_AT_ONCE_BYTES)
            except (
                BlockingIOError
            ):  # a loop of uvloop has looked at it: from then on a read does not wait
                await_message(self._source, inf)
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

    def cut(self) -> None:
        """Let a thread in `receive` meet EOFError: it meets no end of file, since the far end is open here."""
        os.write(self._held[1], END)

    def close(self) -> None:
        """Close the mapping and the descriptors."""
        self._view.release()
        self._mapped.close()
        for file in (self._source, self._sink, self._file, *self._held):
            os.close(file)
