"""A connection of HTTP that is closed when a request does not arrive in time, or is too large in its head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace_serve.exchange import CONNECTION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace_serve.limits import Limits

__all__ = ["protocol_class"]


def protocol_class(limits: Limits) -> type[HttpToolsProtocol]:
    """Give the class of connections with these limits."""

    class Protocol(_LimitedProtocol):
        _limits = limits

    return Protocol


class _LimitedProtocol(HttpToolsProtocol):
    """Adds to uvicorn's protocol what it has no setting for.

    A timer runs from the first byte of a request to its last one, and before the first byte of a new
    connection. It stops where a request has been answered before its body was received.
    """

    _limits: Limits
    _timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _refused = False
    on_lost: Callable[[], None] | None = None
    """Called when the connection is lost; who answers a request sets it for that time."""

    def connection_made(self, transport: Any) -> None:
        """Take a connection, or refuse it where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, "too many connections", "overloaded", retry=True)
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let a connection go."""
        self._stop_timer()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        """Read on, unless an answer that ends the connection was sent."""
        if not self._refused:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        extended: Any = self.scope
        extended[CONNECTION] = self
        self._header_bytes = 0
        self._stop_timer()
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        """Take a part of the path."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_message_complete(self) -> None:
        """End a request."""
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """End an answer."""
        super().on_response_complete()
        if self.cycle is None or not self.cycle.more_body:
            return
        self._stop_timer()  # answered before its body was received

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.max_header_bytes:
            text = f"the headers have more than {self._limits.max_header_bytes} bytes"
            self._refuse(431, text, "headers_too_large")

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._limits.receive_timeout_s, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """End a connection whose request has not arrived in time."""
        self._timer = None
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()
            return
        text = f"the request was not received within {self._limits.receive_timeout_s:g} s"
        self._refuse(408, text, "receive_timeout")

    def _refuse(self, status: int, text: str, code: str, *, retry: bool = False) -> None:
        """Answer without the application, and close."""
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        body = orjson.dumps({"error": text, "code": code, "node": None, "id": ""})
        reasons = {408: "Request Timeout", 431: "Request Header Fields Too Large"}
        head = (
            f"HTTP/1.1 {status} {reasons.get(status, 'Service Unavailable')}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{f'retry-after: 1{chr(13)}{chr(10)}' if retry else ''}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
