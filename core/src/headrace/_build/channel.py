"""A way for messages between two processes: two pipes, and a file in memory for what is large.

A message is a pickle of plain values, which fits into what a pipe takes at once, so each is one write and one
read. What is larger, and every buffer, is put into a file that only these two processes know. It has no name, so
that nothing of it is left when they have gone, however that came, and its pages are used again by the next
message. What fits into the first of them is copied through a mapping of these, three times as quick as by the
system; what is larger by ``pwrite`` and ``preadv``, which leave the interpreter lock to others meanwhile.

Each message is answered before the next. So a message may lie where the one before it lay, which has been copied
out by then.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import struct
from contextlib import suppress
from typing import Any

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
