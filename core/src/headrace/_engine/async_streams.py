"""Answers in parts for coroutines; asyncio is imported by the first of them, since that takes long."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace._engine.streams import Reading

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from headrace._engine.entrance import Entrance
    from headrace._engine.futures import AsyncOwner


class _AsyncReading(Reading):
    """Wakes a coroutine.

    Attributes:
        arrival: A future of the event loop, for which the coroutine waits; None while it is awake.
        owner: Gives the outcome to the coroutine; None for a request that never entered.
    """

    arrival: asyncio.Future[None] | None = None
    owner: AsyncOwner | None = None

    def wake(self) -> None:
        """Wake the coroutine."""
        arrival, self.arrival = self.arrival, None
        if arrival is not None and self.owner is not None:
            self.owner.waker.wake(arrival)


class AsyncStream:
    """As `headrace._engine.streams.Stream`, for coroutines of one event loop."""

    _reading: _AsyncReading | None = None

    def __init__(self, entrance: Entrance, admitted: Sequence[Any]) -> None:
        import asyncio

        ((self._entry, _),) = admitted
        self._loop = asyncio.get_running_loop()
        waiting: list[AsyncOwner] = []
        reading = _AsyncReading(self._entry)
        entrance.begin(self._loop, [*admitted], waiting)
        for owner in waiting:
            reading.owner, reading.pending = owner, owner.pending
        self._reading = reading

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Any:
        """Wait for the next part."""
        reading = self._reading
        if reading is None:
            raise StopAsyncIteration
        over = None if reading.owner is None else reading.owner.future
        while not reading.waiting:
            reading.arrival = arrival = self._loop.create_future()
            if reading.waiting:  # it has come in between
                break
            if over is None or over.done():
                self._reading = reading.owner = None
                if over is not None:
                    over.result()  # it raises where the request could not begin
                reading.finished(self._entry)
                return reading.last()
            from asyncio import FIRST_COMPLETED, wait

            await wait({arrival, over}, return_when=FIRST_COMPLETED)
        return reading.waiting.popleft()

    async def aclose(self) -> None:
        """Read no more: the request is cancelled unless it has ended."""
        self._close()

    def _close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()

    def __del__(self) -> None:
        with suppress(Exception):
            self._close()
