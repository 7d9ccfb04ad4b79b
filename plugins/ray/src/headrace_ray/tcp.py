"""How two machines send each other batches: through a TCP connection, with or without TLS.

A message is a head of a fixed length, the sizes of its buffers, a pickle of plain values, and the buffers. Each buffer
leaves straight out of the array that holds it, and is read straight into the object that it becomes.
"""

from __future__ import annotations

import pickle
import socket
import ssl
import struct
from contextlib import suppress
from typing import Any

from headrace_process.places import await_message

__all__ = ["TcpLink", "keep_alive"]

_HEAD = struct.Struct("<QQ")
"""The first bytes of a message: the size of its pickle in bytes (0: no message will come), the count of its buffers."""

_CHANGES = 1 << 63
"""In the size of a buffer: it becomes a ``bytearray``, not ``bytes``."""

_MOST_GATHERED = 512
"""How many buffers one system call is given; Linux takes 1024."""

_TOGETHER_BYTES = 1 << 12
"""Buffers of no more than this in all are copied beside the head: one piece is sent faster than several."""

_AHEAD_BYTES = 1 << 15
"""How much is read at once where little is asked for: most messages, with what is beside them."""


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
    """One end of a connection between two machines. See `headrace_process.places.Link`.

    Args:
        connection: The connection, which blocks.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader: Any = connection.makefile("rb", _AHEAD_BYTES)
        self._found: list[Any] = []
        self.awaits = False
        self.begin()

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
        buffer, self._found[at] = self._found[at], None
        return buffer

    def send(self, message: Any, *, awaits: bool = False) -> None:
        """Send a message of plain values, with all buffers put since `begin`.

        Raises:
            EOFError: The other side has ended.
        """
        content, sizes = pickle.dumps(message, 5), self._sizes
        head = _HEAD.pack(len(content), len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
        pieces = [memoryview(head + content), *self._buffers]
        if self._held_bytes <= _TOGETHER_BYTES:
            pieces = [memoryview(b"".join(pieces))]
        self.awaits = awaits
        try:
            self._send(pieces)
        except (OSError, ValueError) as error:
            raise EOFError from error
        finally:
            self.begin()

    def _send(self, left: list[memoryview]) -> None:
        if isinstance(self._socket, ssl.SSLSocket):  # it has no call for several pieces
            for piece in left:
                self._socket.sendall(piece)
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
        """Wait for a message. See `Link.receive`."""
        # The reader holds nothing: before a question the caller has read all earlier answers.
        await_message(self._socket, timeout_s)
        try:
            size, count = _HEAD.unpack(self._read(_HEAD.size))
            if size == 0:
                raise EOFError
            sizes = struct.unpack(f"<{count}Q", self._read(8 * count))
            content = self._read(size)
            self._found = [self._read(n & ~_CHANGES, changes=n >= _CHANGES) for n in sizes]
        except (OSError, ValueError) as error:
            raise EOFError from error
        self.awaits = False
        return pickle.loads(content)  # noqa: S301 - the other side has proved the secret

    def _read(self, size: int, *, changes: bool = False) -> Any:
        """Read so many bytes, as ``bytes``, or as a ``bytearray`` where the receiver may change it."""
        content: Any = bytearray(size) if changes else self._reader.read(size)
        if (self._reader.readinto(content) if changes else len(content)) < size:
            raise EOFError
        return content

    def end(self) -> None:
        """Tell the other side that no message will come any more."""
        with suppress(OSError, ValueError):  # the other side has ended
            self._socket.sendall(_HEAD.pack(0, 0))

    def cut(self) -> None:
        """Let a thread in `receive` or `send`, now or later, meet EOFError."""
        with suppress(OSError):
            # Not that of an SSLSocket, which takes the TLS object from under the other thread.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
        self._socket.close()
