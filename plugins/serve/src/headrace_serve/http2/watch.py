"""What a connection does by the clock: waits for its first bytes, asks whether its client is there, counts its pings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace_serve.http2 import frames
from headrace_serve.http2.frames import ConnectionFaultError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["ALIVE", "Watch"]

ALIVE: Final = b"alive?\0\0"
"""What a ping says that asks whether a client is there."""

_PINGS: Final = 2
"""So many pings may come too early, as in gRPC."""


class Watch:
    """The timers of a connection.

    Args:
        loop: The event loop.
        least_ping_s: The least seconds between the pings of a client.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, least_ping_s: float) -> None:
        self._loop, self._least_ping_s = loop, least_ping_s
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._pings, self._pinged_s = 0, -1e9
        self.heard_s = 0.0

    def after(self, name: str, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Call something later, in the place of what has the same name."""
        self.stop(name)
        self._timers[name] = self._loop.call_later(seconds, call, *args)

    def stop(self, name: str) -> None:
        """Call that no more."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def stop_all(self) -> None:
        """Call nothing more."""
        for name in list(self._timers):
            self.stop(name)

    def note_sent(self) -> None:
        """Note that the client gets an answer: it may ping again."""
        self._pings, self._pinged_s = 0, -1e9

    def note_heard(self) -> None:
        """Note that bytes have come."""
        self.heard_s = self._loop.time()

    def check_ping(self) -> None:
        """Check that a ping does not come too early.

        Raises:
            ConnectionFaultError: It does, as some before it.
        """
        now_s = self._loop.time()
        if now_s - self._pinged_s < self._least_ping_s:
            self._pings += 1
            if self._pings > _PINGS:
                raise ConnectionFaultError(frames.ENHANCE_YOUR_CALM, "too_many_pings")
        self._pinged_s = now_s

    def ask(
        self, every_s: float, timeout_s: float, ping: Callable[[], None], lost: Callable[[], None]
    ) -> None:
        """Ask a client that is silent whether it is there.

        Args:
            every_s: Seconds without a byte after which it is asked.
            timeout_s: Seconds for it to answer.
            ping: Asks.
            lost: Called if it does not answer.
        """
        left_s = every_s - (self._loop.time() - self.heard_s)
        again = (every_s, timeout_s, ping, lost)
        if left_s > 0:
            self.after("alive", left_s, self.ask, *again)
            return
        ping()
        heard_s = self.heard_s

        def look() -> None:
            if self.heard_s == heard_s:
                lost()
            else:
                self.ask(*again)

        self.after("alive", timeout_s, look)
