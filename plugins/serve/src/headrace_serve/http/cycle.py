"""One request on an HTTP connection, its answer as bytes, and the answers that the connection gives itself."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace_formats.page import guarded
from headrace_serve.errors import error_json
from headrace_serve.http.exchange import Exchange
from headrace_serve.http.replies import head_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_serve.http.plans import Head

__all__ = ["Cycle", "date", "date_line", "refusal_bytes"]


_BEGINS = b"HTTP/1.1 "


def date() -> str:
    """Return the value of the header ``Date`` for an answer of now."""
    return _date_of(time.time_ns() // 1_000_000_000)


@lru_cache(maxsize=1)
def _date_of(second: int) -> str:
    return formatdate(second, usegmt=True)


_line: tuple[int, bytes] = (0, b"")


def date_line() -> bytes:
    """Return the last lines of a head: ``Date``, and the blank one."""
    global _line
    second = time.time_ns() // 1_000_000_000
    if _line[0] != second:
        _line = second, b"date: " + _date_of(second).encode() + b"\r\n\r\n"
    return _line[1]


def refusal_bytes(status: int, text: str, code: str) -> tuple[bytes, bytes]:
    """Return head and body of an answer that ends its connection: of an error that no application has seen."""
    body = error_json(text, code)
    headers = {"date": date(), "content-type": "application/json", "connection": "close"}
    if status == 503:
        headers["retry-after"] = "1"
    lines = guarded({**headers, "content-length": str(len(body))}).items()
    return STATUS_LINE[status] + "".join(f"{k}: {v}\r\n" for k, v in lines).encode() + b"\r\n", body


class Cycle(Exchange):
    """A request on a connection, and its answer. A connection that ends with the answer stays open while the client sends the rest of a body.

    To close it with unread bytes would reset it, and the client would lose the answer.

    Attributes:
        keep_alive: Whether the connection goes on after the answer.
        waiting_for_100_continue: Whether the client sends the body once it is told to.
        response_started, response_complete: Whether the answer has begun, and whether it has ended.
        call: What runs in the pipeline for it. None for nothing, or where a task awaits it.
    """

    response_started = response_complete = False
    call: Any = None
    _is_chunked = _stays = False
    _sent = 0
    _waiter: asyncio.Future[None] | None = None

    def __init__(self, connection: Any, head: Head, *, keep_alive: bool, expects: bool) -> None:
        self.service, self.plan, self.varying = connection.service, head.plan, head.varying
        self.connection, self.peer = connection, connection.client
        self.keep_alive, self.waiting_for_100_continue = keep_alive, expects
        self.pieces = []

    @property
    def message_event(self) -> Cycle:
        """What uvicorn's protocol sets where the connection has ended."""
        return self

    def set(self) -> None:
        """Wake who waits for the body, as uvicorn's event would."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take(self, piece: bytes) -> None:
        """Take a piece of the body; pause reading where nobody wants it yet."""
        self.pieces.append(piece)
        self.size += len(piece)
        if not self.wanted and self.size > HIGH_WATER_LIMIT:
            self.connection.flow.pause_reading()
        if self._waiter is not None and self.size >= self.wanted:
            self.set()

    async def more(self) -> None:
        """Wait for what is wanted of the body, or its end; see `disconnected`."""
        transport = self.connection.transport
        if self.waiting_for_100_continue and not transport.is_closing():
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        least = max(1, self.wanted)
        while (
            self.more_body
            and self.size < least
            and not (self.disconnected or self.response_complete)
        ):
            self.connection.flow.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def lost(self) -> None:
        """Note that the connection has ended before its answer has."""
        self.disconnected = True
        self.set()
        if self.is_watched:
            (self if self.task is None else self.task).cancel()

    def cancel(self) -> None:
        """Give up what runs in the pipeline: the client has gone, or the server ends."""
        call, self.call = self.call, None
        if call is not None:
            error = asyncio.CancelledError()
            error.abandoned = call.cancel()  # type: ignore[attr-defined]
            self.plan.route.fail(self, error)

    def abort(self) -> None:
        """End the connection, because the answer cannot be sent."""
        self.connection.transport.abort()

    def answer(self, head: bytes, parts: Sequence[bytes | memoryview]) -> bool:
        """Send a whole answer at once, on a connection that goes on; see `Exchange.answer`."""
        plain = self.keep_alive and not (self.response_started or self.more_body or self._sent)
        if not plain or self.disconnected or self.connection.flow.write_paused:
            return False
        if not self.plan.is_plain:
            return False
        self.response_started = self.response_complete = True
        line = _line[1] if _line[0] == time.time_ns() // 1_000_000_000 else date_line()
        self.connection.transport.write(b"".join([head, line, *parts]))
        self.connection.on_response_complete()
        return True

    def probe(self, wait_s: float = 0.05) -> None:
        """Find out whether a client that has ended its side of the connection has gone, until the answer begins.

        All answers begin with the same bytes. Each that is sent before makes the system of a client that has gone reset
        the connection, which the next one finds out. A client that still waits gets an answer as any other.
        """
        self.has_ended = True
        if self.on_ended is not None:
            self.on_ended()
        if self.response_started or self.disconnected or self._sent == len(_BEGINS):
            return
        self.waiting_for_100_continue = False
        self.connection.transport.write(_BEGINS[self._sent : self._sent + 1])
        self._sent += 1
        asyncio.get_running_loop().call_later(wait_s, self.probe, 2 * wait_s)

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send the head of an answer.

        Raises:
            ValueError: A header cannot be sent.
        """
        if not await self._is_writable():
            return
        self._stays = self.more_body and not self.waiting_for_100_continue
        self.response_started, self.waiting_for_100_continue = True, False
        lines = {"date": date(), **headers}
        if not self.keep_alive:
            lines["connection"] = "close"
        if "content-length" not in headers and self.plan.is_plain and status not in (204, 304):
            self._is_chunked = True
            lines["transfer-encoding"] = "chunked"
        text = head_text(lines)
        if text is None:
            raise ValueError(f"a header of {headers} cannot be sent")
        head = STATUS_LINE[status] + text + b"\r\n"
        self.connection.transport.write(head[self._sent :])

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body, which closes the connection behind the last where that is all."""
        if not await self._is_writable():
            return
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data += b"" if more else b"0\r\n\r\n"
        transport = self.connection.transport
        if data and self.scope["method"] != "HEAD":
            transport.write(data)
        if more:
            return
        self.response_complete = True
        self.set()
        if not self.keep_alive and not (self._stays and self.more_body):
            transport.close()
        self.connection.on_response_complete()

    async def _is_writable(self) -> bool:
        """Wait until the client has room for more. False where it has gone."""
        flow = self.connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        return not self.disconnected
