"""One request on a connection of HTTP: its body as it comes, its answer in one write, its client's going away."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from headrace_serve.errors import DisconnectedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from uvicorn._types import HTTPScope
    from uvicorn.protocols.http.flow_control import FlowControl

__all__ = ["Cycle"]

T = TypeVar("T")

_JOINED_BYTES = 16 << 10
"""Answers up to here are joined; the copy is cheaper than a write of several pieces."""


class Cycle(RequestResponseCycle):
    """A request and its answer; its connection fills it, and whoever answers the request takes from it.

    Our application uses it beside ASGI: `receive_more`, in the place of ``receive``, gives the body in the pieces that
    the parser made, and `answer` writes head and body at once.

    Attributes:
        pieces: What has come of the body and was not taken yet.
        unread: The bytes of these.
        event: Set when more has come, or the client went away; None where nobody has waited for that yet, as for most
            bodies, which one read brings whole.
        task: Answers the request.

    Args:
        scope: That of ASGI.
        transport, flow: Of the connection.
        keep_alive: Whether the connection stays open after the answer.
        expects_100: Whether the client waits to be told that it may send the body.
        on_response: Called once the answer is sent.
    """

    logger = access_logger = logging.getLogger("uvicorn.error")
    access_log = disconnected = response_started = response_complete = False
    default_headers: list[tuple[bytes, bytes]] = []  # noqa: RUF012 - nobody adds to it
    chunked_encoding: bool | None = None
    expected_content_length = unread = 0
    more_body = True
    event: asyncio.Event | None = None
    task: asyncio.Task[None]
    _room = HIGH_WATER_LIMIT
    _cancels = _gone = False

    def __init__(  # not that of uvicorn, which sets three times as much for each request
        self,
        scope: HTTPScope,
        transport: asyncio.Transport,
        flow: FlowControl,
        *,
        keep_alive: bool,
        expects_100: bool,
        on_response: Callable[[], None],
    ) -> None:
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expects_100
        self.on_response = on_response
        self.pieces: list[bytes] = []

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        """The event under the name that uvicorn has for it."""
        if self.event is None:
            self.event = asyncio.Event()
        return self.event

    def _tell(self) -> None:
        if self.event is not None:
            self.event.set()

    @property
    def is_lost(self) -> bool:
        """Whether nobody takes an answer any more."""
        return self.disconnected or self.transport.is_closing()

    def lose(self) -> None:
        """Note that the connection is lost, and tell who answers the request."""
        if not self.response_complete:
            self.disconnected = True
            self._tell()
        if self._cancels:
            self._gone = True
            self.task.cancel()

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the task of the request; if the client goes away it is cancelled at once.

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
        """Let the client wait where more than there is room for has come, and not yet all.

        It is called once a read has been parsed: a body that one read brought whole waits for nothing, and to stop
        and start reading costs four system calls.
        """
        if self.unread > self._room and self.more_body and not self.response_complete:
            self.flow.pause_reading()
            self._tell()

    async def receive_more(self, room: int = HIGH_WATER_LIMIT) -> tuple[Sequence[bytes], bool]:
        """Give what has come of the body, once it is whole or is more than ``room`` further bytes.

        Returns:
            The pieces since the last call, and whether more follows.

        Raises:
            DisconnectedError: The client went away.
        """
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        self._room = room
        if self.flow.read_paused:  # resumed also without a wait: else the client's end goes unseen
            self.flow.resume_reading()
        while self.more_body and self.unread <= room and not self.disconnected:
            self.message_event.clear()
            await self.message_event.wait()
        if self.disconnected:
            raise DisconnectedError
        pieces, self.pieces, self.unread = self.pieces, [], 0
        return pieces, self.more_body

    async def answer(
        self,
        status: int,
        headers: Mapping[str, str],
        parts: Sequence[bytes | memoryview],
        length: int,
    ) -> None:
        """Send the answer, head and body in one write; nothing where the client went away.

        A write of its own for the head would wake the client twice, and costs as much as the body's.

        Args:
            status: The status of HTTP.
            headers: All headers of the answer, ``content-length`` among them; names in lower case.
            parts: The body; parts of a large one are not copied, and must not change any more.
            length: The bytes of the body.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
            raise RuntimeError("the value of a header holds the end of a line")
        close = "\r\n" if self.keep_alive else "connection: close\r\n\r\n"
        head = STATUS_LINE[status] + (lines + close).encode("latin-1")
        self.waiting_for_100_continue = False
        self.response_started = self.response_complete = True
        if self.scope["method"] == "HEAD":
            self.transport.write(head)
        elif length < _JOINED_BYTES:
            self.transport.write(b"".join([head, *parts]))
        else:
            self.transport.writelines([head, *parts])
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
