"""The queue of bodies that are decompressed, with shares for clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from headrace.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["UnpackingQueue"]

_AT_A_TIME = 4
"""The most bodies that are decompressed at a time. Each meanwhile takes the room of the largest body, so with more of
them other requests would be refused.
"""
_MOST_INSIDE = 64
"""The most bodies that wait or are decompressed. One client may have half of them, and all but one of those that run."""


class UnpackingQueue:
    """The queue of bodies that are decompressed."""

    def __init__(self) -> None:
        self._running = asyncio.Semaphore(_AT_A_TIME)
        self._of_client: dict[str, asyncio.Semaphore] = {}
        self._inside: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait until a body of a client may be decompressed, and hold its place until the block ends.

        Args:
            client: The name of its key, or its address.

        Raises:
            OverloadedError: Too many bodies wait, of all clients or of this one.
        """
        waiting = self._inside.total()
        if waiting >= _MOST_INSIDE or self._inside[client] >= _MOST_INSIDE // 2:
            problem = "too many compressed bodies wait"
            raise OverloadedError(problem, queue_size=_MOST_INSIDE, waiting=waiting)
        own = self._of_client.setdefault(client, asyncio.Semaphore(_AT_A_TIME - 1))
        self._inside[client] += 1
        try:
            async with own, self._running:
                yield
        finally:
            self._inside[client] -= 1
            if not self._inside[client]:
                del self._inside[client], self._of_client[client]
