"""A way for messages between two processes: a socket, and a file in memory for what is large.

Messages are pickled with protocol 5. The buffers of arrays, large ``bytes`` and large texts go through a
file that only these two processes know, one for each direction. It has no name, so that nothing of it
is left when they have gone, however that came, and its pages are used again by the next message. What fits
into the first of them is copied through a mapping of these, three times as quick as by the system; what is
larger by ``pwritev`` and ``preadv``, which leave the interpreter lock to others meanwhile.

Each message is answered before the next, so that nobody writes what the other still reads.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    Content = tuple[bytes, list[memoryview]]
    """A pickle, and the buffers that are not in it."""

LARGE_BYTES = 8192
"""From this size on a buffer is copied by itself; a smaller one is part of the pickle."""

_MOST_INLINE_BYTES = 32768
"""Up to this size a pickle goes through the socket."""

_MAPPED_BYTES = 1 << 20
"""How much of each file is mapped. To copy so much takes some 25 µs, under the interpreter lock."""

_KEPT_BYTES = 1 << 26
"""A file that is larger is cut when messages have become smaller."""

_MOST_AT_ONCE_BYTES = 1 << 30
_MOST_PARTS = 1024
"""What one call of the system takes."""

_HEAD = "<QII%dQ"
"""The length of the pickle, the count of the buffers, whether the pickle follows; the size of each buffer,
twice, and one more for one that cannot be changed. `struct` keeps what it has made of such a text."""
_HEAD_BYTES = struct.calcsize(_HEAD % 0)


class UnreadableError(Exception):
    """What the other process has sent cannot be made again here."""


def pickled(message: Any) -> Content:
    """Pickle a message, without its large buffers."""
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        buffers.append(raw)
        return False

    return pickle.dumps(message, 5, buffer_callback=keep), buffers


class Channel:
    """One end, which one thread at a time uses.

    Args:
        connection: A stream socket, connected with that of the other process.
        out: Descriptor of the file that this process writes.
        into: That of the file that the other one writes.

    Attributes:
        awaits: Whether a message was sent whose answer has not been read from the socket.
    """

    def __init__(self, connection: socket.socket, out: int, into: int) -> None:
        self._socket = connection
        self._out = out
        self._into = into
        self._out_bytes = _MAPPED_BYTES
        os.ftruncate(out, max(os.fstat(out).st_size, _MAPPED_BYTES))
        os.ftruncate(into, max(os.fstat(into).st_size, _MAPPED_BYTES))
        self._maps = mmap.mmap(out, _MAPPED_BYTES), mmap.mmap(into, _MAPPED_BYTES)
        self._to, self._from = memoryview(self._maps[0]), memoryview(self._maps[1])
        self.awaits = False

    def send(self, content: Content, *, awaits: bool = False) -> None:
        """Send what `pickled` gave.

        Args:
            content: The message.
            awaits: Whether it has an answer.

        Raises:
            EOFError: The other process has gone.
            OSError: There is no memory for it; nothing was sent.
        """
        pickle_bytes, buffers = content
        inline = len(pickle_bytes) <= _MOST_INLINE_BYTES
        parts = buffers if inline else [*buffers, memoryview(pickle_bytes)]
        if parts:
            self._write(parts)
        sizes = [one.nbytes << 1 | one.readonly for one in buffers]
        head = struct.pack(_HEAD % len(sizes), len(pickle_bytes), len(sizes), inline, *sizes)
        self.awaits = awaits
        try:
            self._socket.sendall(head + pickle_bytes if inline else head)
        except OSError as error:
            raise EOFError from error

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for a message.

        Raises:
            EOFError: The other process has gone.
            TimeoutError: There was none within ``timeout_s`` seconds.
            UnreadableError: It cannot be made again here; `pickle` says why.
        """
        if timeout_s is not None:
            self._socket.settimeout(timeout_s)
        got = self._more(b"", _HEAD_BYTES)
        if timeout_s is not None:
            self._socket.settimeout(None)
        length, count, inline = struct.unpack_from(_HEAD % 0, got)
        start = _HEAD_BYTES + 8 * count
        if len(got) < start + length * inline:
            got = self._more(got, start + length * inline)
        self.awaits = False
        sizes = struct.unpack_from(_HEAD % count, got)[3:]
        at, buffers = 0, []
        total = sum([size >> 1 for size in sizes]) + (0 if inline else length)
        for size in sizes:
            buffers.append(self._read(size >> 1, at, total, bytes if size & 1 else bytearray))
            at += size >> 1
        content = memoryview(got)[start:] if inline else self._read(length, at, total, bytes)
        try:
            return pickle.loads(content, buffers=buffers)  # noqa: S301 - from the other of our two
        except Exception as error:
            raise UnreadableError(f"{type(error).__name__}: {error}") from error

    def shutdown(self) -> None:
        """Let both ends see the end, in whichever thread they wait."""
        with suppress(OSError):  # it is there already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give all back to the system."""
        self._socket.close()
        for one in (self._to, self._from):
            one.release()
        for mapped in self._maps:
            mapped.close()
        os.close(self._out)
        os.close(self._into)

    def _more(self, got: bytes, wanted: int) -> bytes:
        while len(got) < wanted:
            try:
                part = self._socket.recv(65536)
            except TimeoutError:
                raise
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            got += part
        return got

    def _write(self, parts: Sequence[memoryview]) -> None:
        total, at = sum([part.nbytes for part in parts]), 0
        if self._out_bytes > _KEPT_BYTES and total < self._out_bytes // 4:
            os.ftruncate(self._out, _MAPPED_BYTES)
            self._out_bytes = _MAPPED_BYTES
        if total <= _MAPPED_BYTES:
            for part in parts:
                self._to[at : at + part.nbytes] = part
                at += part.nbytes
            return
        left = [part for part in parts if part.nbytes]
        while left:
            wrote = os.pwritev(self._out, left[:_MOST_PARTS], at)
            at += wrote
            while left and wrote >= left[0].nbytes:
                wrote -= left.pop(0).nbytes
            if wrote:
                left[0] = left[0][wrote:]
        self._out_bytes = max(self._out_bytes, at)

    def _read(self, size: int, at: int, total: int, kind: type[Any]) -> Any:
        """Copy a buffer out of the file: ``bytes``, or a ``bytearray`` where it may be changed."""
        if total <= _MAPPED_BYTES:
            return kind(self._from[at : at + size])
        made = bytearray(size) if kind is bytearray else None
        left, parts = memoryview(made or b""), []
        while size:
            if made is None:
                parts.append(os.pread(self._into, min(size, _MOST_AT_ONCE_BYTES), at))
                got = len(parts[-1])
            else:
                got = os.preadv(self._into, [left], at)
                left = left[got:]
            if not got:
                raise EOFError
            at += got
            size -= got
        if made is not None:
            return made
        return parts[0] if len(parts) == 1 else b"".join(parts)
