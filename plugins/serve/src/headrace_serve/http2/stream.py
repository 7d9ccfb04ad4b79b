"""A stream: one request and its answer, as the protocol above HTTP/2 sees it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_serve.http2.connection import Connection
    from headrace_serve.http2.heads import Head

__all__ = ["RECEIVED_BYTES", "Stream"]

RECEIVED_BYTES = 1 << 20
"""So many bytes may come on a stream before `Stream.allow` lets more come."""


class Stream:
    """One request and its answer. The protocol above overrides `begin`, `receive`, `end`, `sent` and `lost`.

    Attributes:
        connection: The connection.
        number: The number of the stream.
        head: The headers of the request.
        window: The bytes that the client takes now.
        left_bytes: The bytes that may come still.
        body_bytes: The bytes that have come.
        is_received: Whether the request is whole.
        is_answered: Whether the answer is whole, and given to the connection's socket.
        is_closed: Whether nothing more is received or sent.
        queue: What the client's window, or the socket, did not take yet.
        last_block: The block of headers behind it. None: more is to come.
    """

    __slots__ = (
        "_allowed", "body_bytes", "connection", "head", "is_answered", "is_closed", "is_received",
        "last_block", "left_bytes", "number", "queue", "window",
    )  # fmt: skip

    def __init__(self, connection: Connection, number: int, head: Head, window: int) -> None:
        self.connection, self.number, self.head, self.window = connection, number, head, window
        self.left_bytes, self.body_bytes, self._allowed = RECEIVED_BYTES, 0, 0
        self.is_received = self.is_answered = self.is_closed = False
        self.queue: deque[memoryview] = deque()
        self.last_block: bytes | None = None

    def begin(self) -> None:
        """Begin to answer: all that has come with the headers was given to `receive` and `end` before."""

    def receive(self, data: bytes) -> None:
        """Take bytes of the body. The protocol calls `allow` for them once it wants as many more."""

    def end(self) -> None:
        """Note that the request is whole."""

    def sent(self, size: int) -> None:
        """Note that the socket has got ``size`` bytes of the body of the answer."""

    def lost(self) -> None:
        """Note that the client has ended the stream, or is gone: no answer is sent any more."""

    def allow(self, size: int) -> None:
        """Let the client send ``size`` bytes more."""
        self._allowed += size
        if self._allowed >= RECEIVED_BYTES // 2 and not self.is_received:
            more, self._allowed = self._allowed, 0
            self.left_bytes += more
            self.connection.send_window(self.number, more)
