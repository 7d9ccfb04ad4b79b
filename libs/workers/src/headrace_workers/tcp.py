"""How two machines send each other batches: through a TCP connection, with or without TLS.

A message is a head of a fixed length, the sizes of its buffers, a pickle of plain values, and the buffers. It
leaves in one gathered write, straight out of the arrays that it holds, and each buffer is read straight into the
object that it becomes. Sizes are checked before memory is taken for them.
"""

from __future__ import annotations

import pickle
import select
import socket
import ssl
import struct
from contextlib import suppress
from typing import Any

__all__ = ["TcpLink", "keep_alive", "read_exactly"]

_HEAD = struct.Struct("<4sQI")
"""The first bytes of a message, the size of its pickle in bytes (0: no message will come), the count of its buffers."""

_MAGIC = b"hrm1"
_CHANGES = 1 << 63
"""In the size of a buffer: it becomes a ``bytearray``, not ``bytes``."""

MOST_BYTES = 1 << 34
"""A message of more is refused before memory is taken for it."""

_MOST_BUFFERS = 1 << 20
_MOST_GATHERED = 512
"""How many buffers one system call is given; Linux takes 1024."""

_MOST_AT_ONCE_BYTES = 1 << 30

_TOGETHER_BYTES = 1 << 12
"""Buffers of no more than this in all are copied beside the head: one piece is sent faster than several."""

_AHEAD_BYTES = 1 << 15
"""How much is read at once where little is asked for: most messages, with what is beside them."""


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Read so many bytes.

    Raises:
        EOFError: The connection has ended before.
        OSError: The connection is broken, or its time limit has passed.
    """
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def keep_alive(connection: socket.socket, within_s: float) -> None:
    """Let the system send small messages at once, and end a connection whose other machine is gone.

    Args:
        connection: The connection.
        within_s: About so long after the last sign of life (seconds).
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause_s = max(1, round(within_s / 3))
    # Where the system has no such option its own limit stands, which is hours.
    options = {"TCP_KEEPIDLE": pause_s, "TCP_KEEPINTVL": pause_s, "TCP_KEEPCNT": 3}
    options["TCP_USER_TIMEOUT"] = round(within_s * 1000)
    for name, value in options.items():
        with suppress(AttributeError, OSError):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class TcpLink:
    """One end of a connection between two machines; see `headrace.isolation.Link`.

    Args:
        connection: The connection, which blocks.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._tls = isinstance(connection, ssl.SSLSocket)
        self.begin()
        self._found: list[Any] = []
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._first = self._last = 0  # what of it was read, and not asked for yet
        self.awaits = False

    def begin(self) -> None:
        """Begin the buffers of the next message."""
        self._buffers: list[memoryview] = []
        self._sizes: list[int] = []
        self._held_bytes = 0

    def put(self, buffer: Any, size: int, kind: type[Any]) -> int:
        """Add a contiguous buffer to the next message; return its place."""
        self._buffers.append(pickle.PickleBuffer(buffer).raw())
        self._sizes.append(size | _CHANGES if kind is bytearray else size)
        self._held_bytes += size
        return len(self._sizes) - 1

    def take(self, at: int, size: int, kind: type[Any]) -> Any:
        """Return a buffer of the message that was received; once, since the link keeps it no longer."""
        found, self._found[at] = self._found[at], None
        if type(found) is not kind or len(found) != size:
            raise EOFError("a message does not fit its buffers")
        return found

    def send(self, message: Any, *, awaits: bool = False) -> None:
        """Send a message of plain values, with all buffers put since `begin`.

        Raises:
            EOFError: The other side has ended.
        """
        content, sizes = pickle.dumps(message, 5), self._sizes
        count = len(sizes)
        head = _HEAD.pack(_MAGIC, len(content), count) + struct.pack(f"<{count}Q", *sizes) + content
        self.awaits = awaits
        try:
            if self._held_bytes <= _TOGETHER_BYTES:
                self._socket.sendall(b"".join([head, *self._buffers]))
            else:
                self._send([memoryview(head), *self._buffers])
        except (OSError, ValueError) as error:
            raise EOFError from error
        finally:
            self.begin()

    def _send(self, left: list[memoryview]) -> None:
        if self._tls:
            for one in left:
                self._socket.sendall(one)
            return
        at = 0
        while at < len(left):
            sent = self._socket.sendmsg(left[at : at + _MOST_GATHERED])
            while at < len(left) and sent >= left[at].nbytes:
                sent -= left[at].nbytes
                at += 1
            if sent:
                left[at] = left[at][sent:]

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for a message.

        Raises:
            EOFError: The other side has ended, has called `end`, or has sent what is no message.
            TimeoutError: No message came within ``timeout_s`` seconds.
        """
        if timeout_s is not None and not self._comes(timeout_s):
            raise TimeoutError
        try:
            magic, size, count = _HEAD.unpack(self._read(_HEAD.size))
            if magic != _MAGIC or not 0 < size <= MOST_BYTES or count > _MOST_BUFFERS:
                raise EOFError
            content = memoryview(self._read(8 * count + size))
            sizes = struct.unpack_from(f"<{count}Q", content)
            if size + sum([one & ~_CHANGES for one in sizes]) > MOST_BYTES:
                raise EOFError
            self._found = [self._read(one & ~_CHANGES, changes=one >= _CHANGES) for one in sizes]
        except (OSError, ValueError) as error:
            raise EOFError from error
        self.awaits = False
        return pickle.loads(content[8 * count :])  # noqa: S301 - the other side has proved the secret

    def _comes(self, timeout_s: float) -> bool:
        if self._first < self._last or (
            isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        ):
            return True
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(min(timeout_s * 1000, 2**31 - 1)))  # the most it takes
        except (OSError, ValueError) as error:
            raise EOFError from error

    def _read(self, size: int, *, changes: bool = False) -> Any:
        """Read so many bytes, as ``bytes``, or as a ``bytearray`` where the receiver may change it."""
        kind = bytearray if changes else bytes
        first, last = self._first, self._last
        if first == last and 0 < size <= _AHEAD_BYTES:  # all of a small message is read by one call
            first, last = 0, self._socket.recv_into(self._ahead)
        if size <= last - first:
            self._first, self._last = first + size, last
            return kind(self._ahead[first : first + size])
        made = bytearray(size)
        left = memoryview(made)
        left[: last - first] = self._ahead[first:last]
        left = left[last - first :]
        self._first = self._last = 0
        flags = 0 if self._tls else socket.MSG_WAITALL
        while left.nbytes:
            got = self._socket.recv_into(left, min(left.nbytes, _MOST_AT_ONCE_BYTES), flags)
            if not got:
                raise EOFError
            left = left[got:]
        return made if changes else kind(made)

    def end(self) -> None:
        """Tell the other side that no message will come any more."""
        with suppress(OSError, ValueError):  # the other side has ended
            self._socket.sendall(_HEAD.pack(_MAGIC, 0, 0))

    def cut(self) -> None:
        """Let a thread in `receive` or `send`, now or later, meet EOFError."""
        with suppress(OSError):
            # Not that of an SSLSocket, which takes the TLS object from under the other thread.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
