"""Answers as Server-Sent Events: each as it comes, a comment while nothing comes, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from headrace_serve.errors import DisconnectedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from headrace_serve.errors import Refusal
    from headrace_serve.http.exchange import Exchange

__all__ = ["EVENTS", "event", "send_events"]

EVENTS = "text/event-stream"

SILENCE_S = 15.0
"""After so many seconds without an event a comment is sent, so that proxies keep the connection."""

_FIRST_PROBE_S = 0.05
"""How soon a comment is sent to a client that has ended its side of the connection; the next ones after twice as long each."""

_COMMENT = b":\n\n"

_ENDS = {end.encode(): b"\\u%04x" % ord(end) for end in "\x85\u2028\u2029"}


def event(data: bytes, name: str = "") -> bytes:
    """Return one event with ``data``, which is JSON without an end of a line; without a name it is a ``message``.

    Many clients split texts at ends of lines of Unicode as well, so these are written by their numbers.
    """
    for end, number in _ENDS.items():
        if end in data:
            data = data.replace(end, number)
    return b"%sdata: %s\n\n" % (b"event: %s\n" % name.encode() if name else b"", data)


async def send_events(
    exchange: Exchange, events: AsyncGenerator[bytes], failed: Callable[[Refusal], bytes]
) -> None:
    """Answer a request with events. The status is sent with the first of them, or with the first comment.

    So an error before that raises, and is answered with its status as that of every other request. One that comes
    later is the last event. A client that goes away closes ``events``.

    Args:
        exchange: The request.
        events: Gives the events.
        failed: Makes the event of an error.

    Raises:
        DisconnectedError: The client went away.
    """
    sender = _Sender(exchange)
    try:
        await exchange.while_connected(_send_all(sender, events))
    except DisconnectedError:
        exchange.status = ""
        raise
    except (Exception, asyncio.CancelledError) as error:
        if not sender.begun:
            raise
        await sender.send(failed(exchange.refused(error)))
    await sender.end()


async def _send_all(sender: _Sender, events: AsyncGenerator[bytes]) -> None:
    comments = asyncio.create_task(sender.comment())
    try:
        async with contextlib.aclosing(events) as each:
            async for sent in each:
                await sender.send(sent)
        if not sender.begun:
            await sender.send(b"")
    finally:
        comments.cancel()


class _Sender:
    """Writes the answer.

    Attributes:
        begun: Whether the status is sent.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()
        self._ended = asyncio.Event()
        self.begun = False

    async def send(self, data: bytes) -> None:
        """Send events; the first time the head before them."""
        exchange = self._exchange
        async with self._turn:
            self._last_s = self._loop.time()
            if not self.begun:
                self.begun = True
                exchange.is_in_parts = True
                exchange.answered("200")
                await exchange.send_head(200, f"{EVENTS}; charset=utf-8", {})
                exchange.on_ended = self._ended.set
                if exchange.has_ended:
                    self._ended.set()
            if data:
                exchange.sent_bytes += len(data)
                await exchange.write(data, more=True)

    async def comment(self) -> None:
        """Send a comment whenever nothing was sent for `SILENCE_S` seconds, until this is cancelled.

        They come sooner once the client has ended its side of the connection. The system of a client that has gone
        resets the connection at the first, which the next one finds out.
        """
        probe_s = _FIRST_PROBE_S
        while True:
            has_ended = self._ended.is_set()
            silence_s = min(probe_s, SILENCE_S) if has_ended else SILENCE_S
            left_s = self._last_s + silence_s - self._loop.time()
            if left_s <= 0:
                await self.send(_COMMENT)
                probe_s *= 2 if has_ended else 1
            elif has_ended:
                await asyncio.sleep(left_s)
            else:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), left_s)

    async def end(self) -> None:
        """End the answer."""
        async with self._turn:
            await self._exchange.write(b"", more=False)
