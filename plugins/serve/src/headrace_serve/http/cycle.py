"""One request on an HTTP connection, as uvicorn has it, and the answers that the connection gives itself."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from headrace_page import guarded
from headrace_serve.errors import error_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn._types import ASGISendEvent

__all__ = ["Cycle", "date", "refusal_bytes"]


_BEGINS = b"HTTP/1.1 "


def date() -> str:
    """Return the value of the header ``Date`` for an answer of now."""
    return _date_of(time.time_ns() // 1_000_000_000)


@lru_cache(maxsize=1)
def _date_of(second: int) -> str:
    return formatdate(second, usegmt=True)


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
    """A request and its answer. A connection that ends with the answer stays open while the client sends the rest of a body.

    To close it with unread bytes would reset it, and the client would lose the answer.
    """

    _sends = False
    _sent = 0
    _gone: Callable[[], object] | None = None

    def watch(self, gone: Callable[[], object] | None) -> None:
        """Call ``gone`` once the client goes away, or has gone. None: nothing any more."""
        self._gone = gone
        if self.disconnected and gone is not None:
            gone()

    def lost(self) -> None:
        """Note that the connection has ended before its answer has."""
        self.disconnected = True
        self.message_event.set()
        if self._gone is not None:
            self._gone()

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
        self.waiting_for_100_continue = False
        self.response_started = self.response_complete = True
        every = b"".join([b"%b: %b\r\n" % one for one in self.default_headers])
        self.transport.write(b"".join([head, every, b"\r\n", *parts]))
        self.message_event.set()
        self.on_response()
        return True

    def probe(self, wait_s: float = 0.05) -> None:
        """Find out whether a client that has ended its side of the connection has gone, until the answer begins.

        All answers begin with the same bytes. Each that is sent before makes the system of a client that has gone reset
        the connection, which the next one finds out. A client that still waits gets an answer as any other.
        """
        if self.response_started or self.disconnected or self._sent == len(_BEGINS):
            return
        self.waiting_for_100_continue = False
        self.transport.write(_BEGINS[self._sent : self._sent + 1])
        self._sent += 1
        asyncio.get_running_loop().call_later(wait_s, self.probe, 2 * wait_s)

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of the application."""
        if (
            self.scope["http_version"] == "1.0"
        ):  # without chunks: the connection's end is the answer's
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
