"""One request on an HTTP connection: receives its body, writes its answer at once, notices a client that goes away."""

from __future__ import annotations

import asyncio
import logging
import time
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from headrace_serve.errors import DisconnectedError, error_json

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from uvicorn._types import HTTPScope
    from uvicorn.protocols.http.flow_control import FlowControl

__all__ = ["Cycle", "refusal_bytes"]

T = TypeVar("T")

_JOINED_BYTES = 16 << 10
"""Answers of fewer bytes are joined before they are written: the copy is cheaper than a write of several pieces."""


_MANY = 64
"""So many pieces of a body are joined: chunks of a few bytes would take many times the memory of their bytes."""


def _nothing() -> None:
    return


def _date() -> str:
    return _date_of(time.time_ns() // 1_000_000_000)


@lru_cache(maxsize=1)
def _date_of(second: int) -> str:
    return formatdate(second, usegmt=True)


def refusal_bytes(status: int, text: str, code: str, *, retry: bool) -> tuple[bytes, bytes]:
    """Return head and body of an answer that ends its connection: of an error that no application has seen."""
    body = error_json(text, code)
    lines = (
        f"date: {_date()}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n"
    )
    more = "retry-after: 1\r\n" if retry else ""
    return STATUS_LINE[status] + f"{lines}{more}\r\n".encode(), body


class Cycle(RequestResponseCycle):
    """A request and its answer; the connection puts the body in, and the task that answers takes it out.

    Our application goes past ASGI here: it calls `receive_more` instead of ``receive``, which gives the body in the
    pieces that the parser made, and `answer` instead of ``send``, which writes head and body in one write.

    Attributes:
        pieces: The pieces of the body that have come and that `receive_more` has not given yet.
        unread: The number of bytes in ``pieces``.
        headers: The headers of the request, names in lower case.
        event: Set when more of the body has come, or the client went away. It is made at the first wait, so it is None
            for most requests, whose body one read of the connection brings whole.
        task: The task that answers the request.
        refused: Status, code and number of bytes of the body of the answer that the connection has given itself, since the rest
            of the body came too late or cannot be parsed; None if it has given none.

    Args:
        scope: The scope of ASGI.
        transport, flow: Those of the connection.
        headers: The headers of the request, names in lower case; of several with one name the last.
        tasks: The tasks that answer requests; that of this request is taken away at its end.
        keep_alive: Whether the connection stays open after the answer.
        expects_100: Whether the client waits to be told that it may send the body.
        on_response: Called once the answer is sent.
    """

    logger = access_logger = logging.getLogger("uvicorn.error")
    access_log = disconnected = response_started = response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = unread = 0
    more_body = True
    event: asyncio.Event | None = None
    task: asyncio.Task[None]
    refused: tuple[str, str, int] | None = None
    _room = HIGH_WATER_LIMIT
    _cancels = _gone = False

    def __init__(  # not that of uvicorn, which sets three times as much for each request
        self,
        scope: HTTPScope,
        transport: asyncio.Transport,
        flow: FlowControl,
        headers: dict[bytes, bytes],
        tasks: set[asyncio.Task[None]],
        *,
        keep_alive: bool,
        expects_100: bool,
        on_response: Callable[[], None],
    ) -> None:
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.headers = headers
        self._tasks = tasks
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expects_100
        self.on_response = on_response
        self.pieces: list[bytes] = []

    async def run_asgi(self, app: Any) -> None:
        """Have our application answer, as it does unless the client is gone; what it raises all the same becomes 500.

        The task is taken out of the set here: a callback at its end would cost one more turn of the loop.
        """
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException:  # also a cancellation
            self.logger.exception("a request failed in the server")
            if self.response_started:
                self.transport.close()
            else:
                await self.send_500_response()
        finally:
            # The connection refers to this object, and so does the scope, under a key of ours. A cycle of references
            # would keep the request until the garbage collector runs, and have it run once in seventy requests.
            self.on_response = _nothing
            del self.scope
            self._tasks.discard(self.task)

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:  # type: ignore[override]
        """The headers that uvicorn adds to an answer by ASGI."""
        return [(b"date", _date().encode())]

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        """`event`, made if need be, under the name that uvicorn uses."""
        if self.event is None:
            self.event = asyncio.Event()
        return self.event

    def _wake(self) -> None:
        if self.event is not None:
            self.event.set()

    def lose(self) -> None:
        """Note that the connection is lost; wake or cancel the task that answers the request."""
        if not self.response_complete:
            self.disconnected = True
            self._wake()
        if self._cancels:
            self._gone = True
            self.task.cancel()

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the task of the request; if the client goes away, cancel that task at once.

        Raises:
            DisconnectedError: The client went away.
        """
        if self.disconnected or self.transport.is_closing():
            work.close()
            raise DisconnectedError
        self._cancels = True
        try:
            found = await work
        except asyncio.CancelledError:
            if self._gone:
                raise DisconnectedError from None
            raise
        finally:
            self._cancels = False
        if self.disconnected or self.transport.is_closing():
            raise DisconnectedError
        return found

    def taken(self) -> None:
        """Stop reading from the connection if more of the body waits here than there is room for.

        The connection calls this after it has parsed all that one read brought. A body that came whole in that read
        needs no pause, and to stop and start reading costs four system calls.
        """
        if self.unread > self._room and self.more_body and not self.response_complete:
            self.flow.pause_reading()
            self._wake()

    async def receive_more(self, room: int = HIGH_WATER_LIMIT) -> tuple[Sequence[bytes], bool]:
        """Wait until the rest of the body, or more than ``room`` bytes of it, has come, and give these pieces.

        Returns:
            The pieces since the last call, and whether more of the body follows.

        Raises:
            DisconnectedError: The client went away.
        """
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        self._room = room
        # Reading goes on even if there is nothing to wait for: while it is paused, nobody sees the client go away.
        if self.flow.read_paused:
            self.flow.resume_reading()
        while self.more_body and self.unread <= room and not self.disconnected:
            self.message_event.clear()
            await self.message_event.wait()
        if self.disconnected:
            raise DisconnectedError
        return self._take(), self.more_body

    def receive_rest(self) -> list[bytes]:
        """Return the rest of a body that has come whole, without waiting.

        Raises:
            DisconnectedError: The client went away.
        """
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.disconnected:
            raise DisconnectedError
        return self._take()

    def _take(self) -> list[bytes]:
        pieces, self.pieces, self.unread = self.pieces, [], 0
        return pieces if len(pieces) < _MANY else [b"".join(pieces)]

    async def answer(
        self,
        status: int,
        kind: str,
        headers: Mapping[str, str],
        parts: Sequence[bytes | memoryview],
        length: int,
    ) -> None:
        """Send the answer, head and body in one write; send nothing if the client went away.

        A separate write for the head would wake the client twice, and cost as much as the write of the body.

        Args:
            status: The HTTP status.
            kind: The header ``content-type``, which holds no end of a line.
            headers: The other headers of the answer, without ``content-length``; names in lower case.
            parts: The body. The parts of a large body are not copied, so they must not change any more.
            length: The number of bytes of the body.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        lines = f"date: {_date()}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n"
        if headers:
            more = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
            if more.count("\n") != len(headers) or more.count("\r") != len(headers):
                raise RuntimeError("the value of a header holds the end of a line")
            lines = more + lines
        close = "\r\n" if self.keep_alive else "connection: close\r\n\r\n"
        head = STATUS_LINE[status] + (lines + close).encode("latin-1")
        sends = self.more_body and not self.waiting_for_100_continue
        self.waiting_for_100_continue = False
        self.response_started = self.response_complete = True
        if self.scope["method"] == "HEAD":
            self.transport.write(head)
        elif length < _JOINED_BYTES:
            self.transport.write(b"".join([head, *parts]))
        else:
            self.transport.writelines([head, *parts])
        if (
            not self.keep_alive and not sends
        ):  # else the connection closes once the client has sent the rest
            self.transport.close()
        self.on_response()
