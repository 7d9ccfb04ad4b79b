"""Answers in parts: what ``pipe.stream`` and ``pipe.stream_async`` return, over ``on_part``.

A reader has room for some parts. Where they are not read, who gives the next one waits, if it may:
a generator, a thread of the backend's own, a process. A thread that others need may not: there the
request ends with a LimitError.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.requests.futures import LoopWaker, RequestFuture, entry_box, give_up, start_wait
from headrace._run.steps.box import post
from headrace._run.steps.threads import Signal
from headrace.errors import ClosedError, LimitError

if TYPE_CHECKING:
    import asyncio

NOTHING: Any = object()
"""What `Reader.take` gives while nothing has come."""

OVER: Any = object()
"""What `Reader.take` gives after the last part."""


class Reader(RequestFuture):
    """The parts of one request that were not read yet, and its outcome.

    It never refers to the iterator.

    Args:
        most: How many parts may wait.
        room: What ``pipe.stream`` takes as ``room``.
        wake: Wakes who reads: after every part in the thread that gives it, and at the end.

    Attributes:
        is_over: Whether the request has its outcome, or nobody reads any more.
        thread: The thread that reads.
    """

    def __init__(
        self, most: int, room: Callable[[Any], bool] | None, wake: Callable[[], object]
    ) -> None:
        if type(most) is not int or most < 1:
            raise ValueError(f"most is how many parts may wait, at least 1, got {most!r}")
        super().__init__()
        self.is_over = self._closes = False
        self.thread = get_ident()
        self._most, self._room, self._wake_reader = most, room, wake
        self._given: deque[Any] = deque()
        self._fits = True
        self._blocked: deque[Signal] = deque()

    def __call__(self, part: Any, waits: bool) -> None:
        """Take a part, in the thread that gives it: ``on_part`` of ``submit``."""
        waits = waits and self.thread != get_ident()
        while self._is_full():
            if not waits:
                many = str(self._most) if len(self._given) >= self._most else "many bytes in"
                message = f"the caller reads too slowly: {many} parts of the answer wait"
                wait = "as a generator, or with a thread of its own"
                hint = f"Read faster, raise `most`, or let the backend wait: {wait}."
                raise LimitError(message, limit=self._most, hint=hint)
            if self._closes:
                message = "the pipeline closes, and parts of the answer wait for who reads them"
                raise ClosedError(message)
            signal = Signal()
            self._blocked.append(signal)
            if self._is_full() and not self._closes:  # now that who reads sees the signal
                signal.sleep()
        if self.is_over:
            return
        if self._room is not None:
            self._fits = self._room(part)
        self._given.append(part)
        self._wake_reader()

    def _is_full(self) -> bool:
        many = len(self._given)
        return not self.is_over and (many >= self._most or (many > 0 and not self._fits))

    @property
    def has_news(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._given) or self.is_over

    def take(self) -> Any:
        """Return the next part, `OVER` after the last one, and `NOTHING` while neither has come."""
        is_over = self.is_over  # asked first: what came before the end is found
        try:
            part = self._given.popleft()
        except IndexError:
            return OVER if is_over else NOTHING
        # Not after every part, so that each does not cost two wake-ups.
        if self._blocked and len(self._given) <= (self._most // 2 if self._fits else 0):
            self._release()
        return part

    def _release(self) -> None:
        with suppress(IndexError):
            for _ in range(len(self._blocked)):  # not those who come back meanwhile
                self._blocked.popleft().wake()

    def end_wait(self) -> None:
        """Let nobody wait for room any more: the pipeline closes, and nothing will be read."""
        self._closes = True
        self._release()

    def _wake(self) -> None:
        super()._wake()
        self.is_over = True
        self._wake_reader()
        self._release()

    def leave(self) -> None:
        """Withdraw the request; where a backend runs on it, that is told that it is unwanted."""
        entry, self.is_over = self._entry, True
        self._given.clear()
        self._end_parts()
        self._release()
        if entry is not None and entry.node is not None and not self.done():
            entry.leave()
            post(entry_box(entry), give_up, [entry])


class _Stream:
    """What both iterators do."""

    _reader: Reader | None = None  # None once the last thing was read

    def _last(self) -> Any:
        """Return the finished dict, or raise the error of the request."""
        reader, self._reader = self._reader, None
        try:
            return reader.result(0)  # type: ignore[union-attr]
        finally:
            del reader  # see `Entry.take_error`

    def _leave(self) -> None:
        """Read no more: the request is cancelled unless it has ended."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.leave()

    def __del__(self) -> None:
        with suppress(Exception):
            self._leave()


class Stream(_Stream):
    """Gives the parts of one answer in order, then the finished dict.

    Leaving it cancels the request.

    Args:
        start: Lets the request run whose parts and outcome a `Reader` takes.
        most: See `Reader`.
        room: See `Reader`.
    """

    def __init__(self, start: Callable[[Reader], object], most: int, room: Any) -> None:
        self._signal = Signal()
        self._reader = Reader(most, room, self._signal.wake)
        start(self._reader)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        """Wait for the next part."""
        if self._reader is None:
            raise StopIteration
        self._reader.thread = get_ident()
        while (part := self._reader.take()) is NOTHING:
            entry = self._reader._entry
            if entry is not None and entry.node is not None and not self._reader.is_over:
                start_wait(entry)
            self._signal.sleep()
            if entry is not None:
                entry.awaited = 0
        return self._last() if part is OVER else part

    def close(self) -> None:
        """Read no more: the request is cancelled unless it has ended."""
        self._leave()


class AsyncStream(_Stream):
    """As `Stream`, for coroutines of one event loop."""

    def __init__(
        self, start: Callable[[Reader], object], most: int, room: Any, waker: LoopWaker
    ) -> None:
        self._loop = waker.loop
        self._arrivals: list[asyncio.Future[None]] = []  # what the coroutine awaits
        self._reader = Reader(most, room, partial(_wake, waker, self._arrivals))
        start(self._reader)

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Any:
        """Wait for the next part."""
        if self._reader is None:
            raise StopAsyncIteration
        while (part := self._reader.take()) is NOTHING:
            arrival = self._loop.create_future()
            self._arrivals[:] = [arrival]
            if not self._reader.has_news:  # else it may have come before it could wake anybody
                await arrival
        return self._last() if part is OVER else part

    async def aclose(self) -> None:
        """Read no more: the request is cancelled unless it has ended."""
        self._leave()


def _wake(waker: LoopWaker, arrivals: list[asyncio.Future[None]]) -> None:
    """Wake the coroutine that awaits an arrival; it is awake where there is none."""
    with suppress(IndexError):
        waker.wake(partial(_arrive, arrivals.pop()))


def _arrive(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)
