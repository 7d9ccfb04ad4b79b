"""A connection of HTTP with bounds: on heads, on how long and how slowly a client may send and take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headrace_serve.exchange import CONNECTION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from headrace_serve.limits import Limits

__all__ = ["protocol_class"]

_JOINED_BYTES = 16 << 10
"""Answers up to here are joined; the copy is cheaper than a write of several pieces."""

_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")


def protocol_class(limits: Limits) -> type[HttpToolsProtocol]:
    """Give the class of connections with these limits."""

    class Protocol(_LimitedProtocol):
        _limits = limits

    return Protocol


class _LimitedProtocol(HttpToolsProtocol):
    """Adds to uvicorn's protocol what it has no setting for.

    One timer looks after receiving: from the first byte of a request to its last one, and before the first
    byte of a new connection. It ends what is late as a whole, or sends its body too slowly. Where a request
    was answered before its body had come, what comes of it till then is dropped, since a connection that is
    closed with unread bytes is reset, and a client that still sends would not see its answer.

    Another looks after sending, from where the buffer of the connection is full, or is not empty behind
    the last byte of an answer: a client that takes nothing would hold the buffer for ever.
    """

    _limits: Limits
    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None
    _ends = 0.0
    _header_bytes = 0
    _body_bytes = 0
    _in_body = False
    _was_in_body = False
    _refused = False
    _ignores = False
    _answered: RequestResponseCycle | None = None
    on_lost: Callable[[], None] | None = None
    """Called when the connection is lost; who answers a request sets it for that time."""

    _first: asyncio.Future[None] | None = None

    def first_request(self) -> asyncio.Future[None]:
        """Give what is done when a request has come, or the connection is lost."""
        self._first = self.loop.create_future()
        if self.cycle is not None or self.transport.is_closing():
            self._first.set_result(None)
        return self._first

    def _tell_first(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def connection_made(self, transport: Any) -> None:
        """Take a connection, or refuse it where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, "too many connections", "overloaded", retry=True)
            return
        self._start_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let a connection go."""
        self._stop_receiving()
        self._stop_sending()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True  # uvicorn tells the last request alone
            self._answered.message_event.set()
        super().connection_lost(exc)
        self._tell_first()
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        """Read on, unless an answer that ends the connection was sent, or is to be."""
        if not (self._refused or self._ignores):
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and close.

        Behind a request that was received whole it takes no answer away: it is ignored, and the
        connection ends with the answer to that request.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                cycle.keep_alive = False
                self._ignores = True
                return
            cycle.disconnected = True  # its body cannot be read to the end
            cycle.message_event.set()
        self._refuse(400, msg, "http")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        extended: Any = self.scope
        extended[CONNECTION] = self
        self._header_bytes = 0
        self._in_body = self._was_in_body = False
        self._stop_receiving()
        self._start_receiving()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_url(self, url: bytes) -> None:
        """Take a part of the path."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; drop it where the request was answered already."""
        self._in_body = True
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._stop_receiving()
        super().on_message_complete()
        self._tell_first()
        if self.cycle is not None:
            self.cycle.more_body = False

    def on_response_complete(self) -> None:
        """End an answer."""
        super().on_response_complete()
        if self._sending is None and self.transport.get_write_buffer_size():
            self._start_sending()

    def pause_writing(self) -> None:
        """Wait with sending: the buffer of the connection is full."""
        super().pause_writing()
        if self._sending is None:
            self._start_sending()

    def resume_writing(self) -> None:
        """Send on."""
        super().resume_writing()
        self._stop_sending()

    async def answer(
        self, status: int, headers: Mapping[str, str], parts: Sequence[bytes | memoryview]
    ) -> None:
        """Send the answer to the request that is answered now: its head and body in one write.

        A write of its own for the head would wake the client twice, and costs as much as the body's.
        Nothing is sent where the client went away.

        Args:
            status: The status of HTTP.
            headers: All headers of the answer, ``content-length`` among them; names in lower case.
            parts: The body; parts of a large one are not copied, and must not change any more.
        """
        cycle = self._answered
        if self.flow.write_paused and cycle is not None and not cycle.disconnected:
            await self.flow.drain()
        if cycle is None or cycle.disconnected:
            return
        if _CONTROL.search("".join(headers.values())):
            raise RuntimeError("the value of a header holds a control character")
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        close = "\r\n" if cycle.keep_alive else "connection: close\r\n\r\n"
        head = STATUS_LINE[status] + (lines + close).encode("latin-1")
        cycle.waiting_for_100_continue = False
        cycle.response_started = cycle.response_complete = True
        if cycle.scope["method"] == "HEAD":
            self.transport.write(head)
        elif int(headers["content-length"]) < _JOINED_BYTES:
            self.transport.write(b"".join([head, *parts]))
        else:
            self.transport.writelines([head, *parts])
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def give_up(self, scope: Any) -> None:
        """Note that a request gets no answer, since its client went away, before the loop tells so."""
        for cycle in (self.cycle, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and cycle.scope is scope:
                cycle.disconnected = True

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.max_header_bytes:
            text = f"the headers have more than {self._limits.max_header_bytes} bytes"
            self._refuse(431, text, "headers_too_large")

    def _start_receiving(self) -> None:
        self._ends = self.loop.time() + self._limits.receive_timeout_s
        self._look_later(self._limits.receive_timeout_s)

    def _look_later(self, left_s: float) -> None:
        self._body_bytes = 0
        looks_s = min(left_s, self._limits.rate_window_s)
        self._receiving = self.loop.call_later(looks_s, self._look_at_receiving)

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _look_at_receiving(self) -> None:
        """End a connection whose request is late, or whose body comes too slowly."""
        self._receiving = None
        if self.pipeline:  # it waits behind another request, and nothing of it is read meanwhile
            self._start_receiving()
            return
        left_s = self._ends - self.loop.time()
        least = self._limits.min_rate_bytes_s * self._limits.rate_window_s
        slow = self._was_in_body and self._body_bytes < least
        self._was_in_body = self._in_body
        if left_s > 0.001 and not slow:
            self._look_later(left_s)
            return
        cycle = self.cycle
        if cycle is not None and cycle.more_body and cycle.response_started:
            self.transport.abort()
            return
        text = f"the request was not received within {self._limits.receive_timeout_s:g} s"
        if left_s > 0.001:
            text = f"the body came slower than {self._limits.min_rate_bytes_s} bytes per second"
        self._refuse(408, text, "receive_timeout")

    def _start_sending(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._sending = self.loop.call_later(
            self._limits.rate_window_s, self._look_at_sending, size
        )

    def _stop_sending(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _look_at_sending(self, before: int) -> None:
        """End a connection whose client takes its answer too slowly."""
        self._sending = None
        size = self.transport.get_write_buffer_size()
        least = self._limits.min_rate_bytes_s * self._limits.rate_window_s
        if size and 0 <= before - size < min(before, least):
            self.transport.abort()
        elif size:
            self._start_sending()

    def _refuse(self, status: int, text: str, code: str, *, retry: bool = False) -> None:
        """Answer without the application, and close."""
        if self._refused:
            return
        self._refused = True
        self._stop_receiving()
        body = orjson.dumps({"error": text, "code": code, "node": None, "id": ""})
        reasons = {
            400: "Bad Request",
            408: "Request Timeout",
            431: "Request Header Fields Too Large",
        }
        head = (
            f"HTTP/1.1 {status} {reasons.get(status, 'Service Unavailable')}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{f'retry-after: 1{chr(13)}{chr(10)}' if retry else ''}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
