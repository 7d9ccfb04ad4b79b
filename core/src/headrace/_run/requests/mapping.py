"""Many requests of one iterator, some of them at a time: ``pipe.map`` and ``pipe.amap``."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace.errors import ClosedError, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator


class Flight:
    """The requests of an iterator that were begun, and whose answers its reader does not have.

    Args:
        ahead: How many there are at most.
        ordered: Whether the next answer is that of the oldest one, else of any that has ended.
        on_error: ``"raise"`` or ``"give"``.

    Attributes:
        running: For the future of each, what cancels it where the future does not.
        ordered: See above.
    """

    def __init__(self, ahead: int, ordered: bool, on_error: str) -> None:
        if type(ahead) is not int or ahead < 1:
            raise ValueError(f"ahead is how many requests run or wait, at least 1, got {ahead!r}")
        if on_error not in {"raise", "give"}:
            raise ValueError(f"on_error is 'raise' or 'give', got {on_error!r}")
        self.running: dict[Any, Any] = {}
        self.ordered, self._ahead, self._gives = ordered, ahead, on_error == "give"

    def is_next(self, ended: Any) -> bool:
        """Tell whether an answer is given before one more request is drawn."""
        is_done = next(iter(self.running)).done() if self.ordered else not ended.empty()
        return is_done or len(self.running) >= self._ahead

    def answer(self, error: BaseException | None, request: Any) -> Any:
        """Return what stands in the place of an answer; raise what does not stand there."""
        if error is not None and (not self._gives or isinstance(error, ClosedError)):
            raise error
        return error or request


def map_requests(
    flight: Flight, begin: Callable[[Any], Any], requests: Iterable[Any]
) -> Iterator[Any]:
    """Give the answers; see `headrace.Pipeline.map`."""
    ended: SimpleQueue[Any] = SimpleQueue()
    running = flight.running

    def take() -> Any:
        future = next(iter(running)) if flight.ordered else ended.get()
        error = future.exception()  # while it is one of those to withdraw
        del running[future]
        return flight.answer(error, None if error else future.result())

    try:
        for request in requests:
            future = begin(request)
            running[future] = None
            if not flight.ordered:
                future.note_waiting(get_ident())
                future.add_done_callback(ended.put)
            while running and flight.is_next(ended):
                yield take()
        while running:
            yield take()
    finally:
        for future in running:
            future.cancel()


async def amap_requests(
    flight: Flight, begin: Callable[[Any, Any], Any], requests: AsyncIterable[Any]
) -> AsyncIterator[Any]:
    """Give the answers; see `headrace.Pipeline.amap`."""
    import asyncio  # as in `Pipeline.call_async`

    ended: asyncio.Queue[Any] = asyncio.Queue()
    running = flight.running

    async def take() -> Any:
        future = next(iter(running)) if flight.ordered else await ended.get()
        error = await future
        return flight.answer(error, getattr(running.pop(future), "request", None))

    try:
        async for request in requests:
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(ended.put_nowait)
            running[future] = None
            try:
                running[future] = begin(request, partial(_note, future))
            except RequestError as error:
                future.set_result(error)
            while running and flight.is_next(ended):
                yield await take()
        while running:
            yield await take()
    finally:
        for call in running.values():
            if call is not None:
                call.cancel()


def _note(future: Any, call: Any) -> None:
    if not future.done():  # its reader has not left
        future.set_result(call.error)


async def each(requests: Iterable[Any]) -> AsyncIterator[Any]:
    """Give the elements to ``async for``."""
    for request in requests:
        yield request
