"""Who watches the health of server and models is told when it may have changed."""

from __future__ import annotations

import asyncio

__all__ = ["Changes"]


class Changes:
    """Wakes all that wait when something has changed; used by one event loop.

    What the server does itself (reload, load, unload, drain) is told at once, and so is the loss of an
    instance that a request has met. A pipeline does not tell when it recovers, so whoever waits looks
    again after ``look_s`` seconds; nobody looks where nobody waits.
    """

    def __init__(self, look_s: float = 1.0) -> None:
        self._look_s = look_s
        self._next: asyncio.Event | None = None

    def tell(self) -> None:
        """Wake all that wait."""
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        """Wait until something may have changed."""
        if self._next is None:
            self._next = asyncio.Event()
        try:
            await asyncio.wait_for(self._next.wait(), self._look_s)
        except asyncio.TimeoutError:
            return
