"""One request on an HTTP connection, as uvicorn has it, and the answers that the connection gives itself."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from headrace_formats.page import guarded
from headrace_serve.errors import error_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn._types import ASGISendEvent

    from headrace_serve.inference.steps import Steps

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


class _Rest:
    """The connection of an answer whose first bytes are sent: it leaves them out of the next ones."""

    def __init__(self, cycle: Cycle, sent: int) -> None:
        self._cycle, self._transport, self._sent = cycle, cycle.transport, sent

    def write(self, data: bytes) -> None:
        self._cycle.transport = self._transport
        self._transport.write(data[self._sent :])


class Cycle(RequestResponseCycle):
    """A request on a connection, and its answer. A connection that ends with the answer stays open while the client sends the rest of a body.

    To close it with unread bytes would reset it, and the client would lose the answer.

    Attributes:
        plan, varying: What its head means, and the headers beside that.
        peer: The address of the client.
        pieces: What has come of its body, and was not taken.
        size: How many bytes these have.
        more_body: Whether more of the body is to come.
        wanted: So many bytes of the body who answers has room for, and waits for. 0: for any.
        task: What answers it.
        has_ended: Whether the client has ended its side of the connection. It may still wait for the answer.
        on_ended: Called then.
        is_in_parts: Whether the answer comes in parts, which the account of memory counts by themselves.
        is_watched: Whether the task is cancelled when the client goes away.
        refusal: Status, code and bytes of an answer that the connection has given itself. None for none.
    """

    access_log = response_started = response_complete = disconnected = is_watched = False
    has_ended = is_in_parts = False
    on_ended: Callable[[], object] | None = None
    task: Steps | None = None
    access_logger: Any = None
    more_body = True
    chunked_encoding = None
    expected_content_length = size = wanted = 0
    refusal: tuple[str, str, int] | None = None
    _sends = False
    _sent = 0
    _waiter: asyncio.Future[None] | None = None

    def __init__(  # no call of uvicorn's, which would make an event and more
        self,
        connection: Any,
        plan: Any,
        varying: dict[bytes, bytes],
        *,
        keep_alive: bool,
        expects: bool,
    ) -> None:
        self.plan, self.varying, self.peer = plan, varying, connection.client
        self.scope, self.transport, self.flow = plan.scope, connection.transport, connection.flow
        self.logger, self.on_response = connection.logger, connection.on_response_complete
        self.keep_alive, self.waiting_for_100_continue = keep_alive, expects
        self.pieces: list[bytes] = []

    @property
    def message_event(self) -> Any:  # type: ignore[override]
        """What uvicorn sets where something has come, or the answer has ended."""
        return self

    @property
    def default_headers(self) -> Any:  # type: ignore[override]
        """The headers that every answer has."""
        return [(b"date", date().encode())]

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
            self.flow.pause_reading()
        if self._waiter is not None and self.size >= self.wanted:
            self.set()

    async def more(self) -> None:
        """Wait for what is wanted of the body, or its end; see `disconnected`."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        least = max(1, self.wanted)
        while (
            self.more_body
            and self.size < least
            and not (self.disconnected or self.response_complete)
        ):
            self.flow.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def lost(self) -> None:
        """Note that the connection has ended before its answer has."""
        self.disconnected = True
        self.set()
        if self.is_watched and self.task is not None:
            self.task.cancel()

    def abort(self) -> None:
        """End the connection, because the answer cannot be sent."""
        self.transport.abort()

    def answer(self, head: bytes, parts: list[bytes | memoryview]) -> bool:
        """Send a whole answer at once. False where the messages of `send` are needed, which know more cases.

        Args:
            head: Status line and headers, with the length of the body, but those that every answer has.
            parts: The body.
        """
        plain = self.keep_alive and not (self.response_started or self.more_body or self._sent)
        if not plain or self.disconnected or self.flow.write_paused:
            return False
        if self.scope["http_version"] != "1.1" or self.scope["method"] == "HEAD":
            return False
        self.response_started = self.response_complete = True
        line = _line[1] if _line[0] == time.time_ns() // 1_000_000_000 else date_line()
        self.transport.write(b"".join([head, line, *parts]))
        self.on_response()
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
        self.transport.write(_BEGINS[self._sent : self._sent + 1])
        self._sent += 1
        asyncio.get_running_loop().call_later(wait_s, self.probe, 2 * wait_s)

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of the application."""
        if self.scope["http_version"] == "1.0":  # has no chunks: it ends with the connection
            self.chunked_encoding = False
            self.expected_content_length = len(cast("Any", message.get("body", b"")))
        if not self.response_started:
            if self._sent:
                self.transport = cast("Any", _Rest(self, self._sent))
            self._sends = self.more_body and not self.waiting_for_100_continue
        if not self.response_started or self.keep_alive or not (self._sends and self.more_body):
            await super().send(message)
            return
        self.keep_alive = True  # else uvicorn closes
        try:
            await super().send(message)
        finally:
            self.keep_alive = False
        if self.response_complete and not self.more_body:  # the rest came meanwhile
            self.transport.close()
