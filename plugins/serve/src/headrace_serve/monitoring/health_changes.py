"""Wakes the coroutines that watch the health of server and models when the health may have changed."""

from __future__ import annotations

import asyncio

__all__ = ["HealthChanges"]


class HealthChanges:
    """Wakes all coroutines that wait for a change of health. Used by one event loop.

    The server calls `notify` at each of its own changes (reload, load, unload, drain), and when a request
    fails because its instance is lost. A pipeline does not report that it has recovered, so `wait` also
    returns after ``look_s`` seconds, and its caller looks at the health again. No timer runs while nobody waits.
    """

    def __init__(self, look_s: float = 1.0) -> None:
        self._look_s = look_s
        self._next: asyncio.Event | None = None

    def notify(self) -> None:
        """Wake all coroutines that wait."""
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        """Wait until `notify` is called, at most ``look_s`` seconds."""
        if self._next is None:
            self._next = asyncio.Event()
        try:
            await asyncio.wait_for(self._next.wait(), self._look_s)
        except asyncio.TimeoutError:
            return
