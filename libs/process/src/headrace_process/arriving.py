"""The answer to a batch that an event loop has sent: the loop goes on, and reads it when it comes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from headrace_process.packing import size_of
from headrace_process.places import await_message

if TYPE_CHECKING:
    import asyncio

    from headrace_process.exchange import Exchange, Sent

__all__ = ["MOST_BYTES", "Listener"]

MOST_BYTES = 1 << 22
"""An event loop copies at most so much for one batch, which takes it about a millisecond. A thread copies more."""


class Listener:
    """Reads answers of one link in one event loop.

    It looks at a descriptor of its own: that of the link may be closed before the loop forgets it. The loop looks from the first
    batch that it sends until a message comes that a thread reads.

    Args:
        loop: The event loop.
        source: The descriptor from which the link reads.

    Attributes:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, source: int) -> None:
        self.loop = loop
        self._source = os.dup(source)
        self._looks = False
        self._sent: Sent | None = None
        self._turn: Any = None
        self._late: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Begin to look; in the loop, before a batch is sent. It raises what ``add_reader`` of the loop raises."""
        if not self._looks:
            self.loop.add_reader(self._source, self._come)
            self._looks = True

    def expect(self, exchange: Exchange, sent: Sent, turn: Any) -> None:
        """Read the answer to a batch that was sent. Tell its ``turn``, see `headrace.isolation`; in the loop."""
        self._sent, self._turn = sent, turn
        patience_s = exchange.patience_s(sent.running)
        if patience_s is not None:
            self._late = self.loop.call_later(patience_s, self._give_up)

    def close(self) -> None:
        """Give back what is open; any thread may call it."""
        try:
            self.loop.call_soon_threadsafe(self._close)
        except RuntimeError:  # the loop is closed
            os.close(self._source)

    def _close(self) -> None:
        self._stop()
        os.close(self._source)

    def _stop(self) -> None:
        if self._looks:
            self._looks = False
            self.loop.remove_reader(self._source)

    def _claimed(self) -> tuple[Sent | None, Any]:
        """Return the batch whose answer this loop reads, and its turn. None where a thread reads."""
        sent, turn, self._sent, self._turn = self._sent, self._turn, None, None
        if self._late is not None:
            self._late.cancel()
            self._late = None
        return (sent, turn) if turn is not None and turn.claim() else (None, None)

    def _give_up(self) -> None:
        """Let a thread wait for what has not come in time."""
        sent, turn = self._claimed()
        if sent is not None:
            turn.end(waits=True)

    def _come(self) -> None:
        """Read what has come, unless a thread does. What takes long, a thread does."""
        try:
            await_message(self._source, 0.0)
        except TimeoutError:  # a thread has read it since the loop has seen it
            return
        sent, turn = self._claimed()
        if sent is None:
            self._stop()
            return
        waits = True
        try:
            sent.answer = answer = sent.child.link.receive()
            if answer[0] == sent.child.sent:
                waits = sent.child.reported < answer[1] or size_of(answer[2]) > MOST_BYTES
            else:  # it came once more, to an earlier batch
                sent.answer = None
        except Exception as error:  # noqa: BLE001 - `Exchange.receive` raises it
            sent.answer = error
        if waits:
            self._stop()
        turn.end(waits=waits)
