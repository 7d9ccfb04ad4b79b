"""Outcomes of requests for which no thread waits: futures and coroutines."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace._scheduling.cycles import cycle_of, noted
from headrace._scheduling.entry import RUNNING, Entry
from headrace._scheduling.refusals import endless_wait
from headrace._scheduling.threads import helpers, reentrant, took_token

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from headrace._graph.request import GraphRequest
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request


_log = logging.getLogger("headrace.callbacks")


class NodeRequest:
    """A request of a pipeline with one scheduler, until it has its outcome; see `GraphRequest`."""

    __slots__ = ("_entry", "_scheduler")

    def __init__(self, scheduler: Scheduler, entry: Entry) -> None:
        self._scheduler, self._entry = scheduler, entry

    def begin(self, *, internal: bool = False) -> tuple[Scheduler, Sequence[Entry]]:
        """Return the scheduler at which the request enters, and its entries."""
        return self._scheduler, (self._entry,)

    def held_here(self) -> bool:
        """Tell whether the calling thread holds an instance that the request needs."""
        return self._scheduler.held_by_this_thread()

    @property
    def state(self) -> str:
        """The state of the entry."""
        return self._entry.state

    def places(self) -> Sequence[tuple[Node, object]]:
        """Return the node at which the request is."""
        return ((self._scheduler.node, self._entry),)

    def cancel(self) -> bool:
        """Withdraw the request while it waits; False when a backend runs on it, or it is done."""
        return self._scheduler.cancel(self._entry)

    def give_up(self) -> bool:
        """Withdraw the request if it waits; give whether a backend still runs on it."""
        return not self.cancel() and self._scheduler.abandon(self._entry)

    def stop(self, error: BaseException) -> None:
        """End the request with an error, unless it has its outcome."""
        self._scheduler.end(self._entry, error)


class _Waiters(list[Any]):
    """What `concurrent.futures.wait` and `as_completed` leave in a future; a thread that would wait for itself is refused."""

    def __init__(self, future: RequestFuture) -> None:
        super().__init__()
        self._future = weakref.ref(future)

    def append(self, waiter: Any) -> None:
        """Add a waiter, unless its thread would wait for ever."""
        future = self._future()
        if future is not None and not future.done():
            with noted(future):
                future.check_wait()
        super().append(waiter)


class RequestFuture(concurrent.futures.Future["dict[str, Any]"]):
    """The answer to one submitted request: its dict, or its error.

    ``cancel()`` is True only while the request waits. No thread of a scheduler waits for the lock of a future: the
    main thread may hold it while a signal handler, which has interrupted it there, waits for that very thread.

    Attributes:
        pending: Stands for the request while it has no outcome; None for a request that never entered.
    """

    _condition: Any
    _done_callbacks: list[Any]
    _is_cancelled = False
    pending: NodeRequest | GraphRequest | None = None

    def __init__(self) -> None:
        super().__init__()
        self._waiters = _Waiters(self)

    def running(self) -> bool:
        """Tell whether a backend runs on the request."""
        return self.pending is not None and self.pending.state == RUNNING and not self.done()

    def cancel(self) -> bool:
        """Withdraw the request; False when a backend runs on it, or it is done.

        In a destructor whose thread is in a section of a scheduler the answer is False, and the request is withdrawn a moment
        later if it waits then.
        """
        if not self.done() and self._take_back():
            self._is_cancelled = True
            if super().cancel():
                self.set_running_or_notify_cancel()
        return self.cancelled()

    @reentrant(later=lambda future: helpers.run(future.cancel))
    def _take_back(self) -> bool:
        return self.pending is not None and self.pending.cancel()

    def result(self, timeout: float | None = None) -> Request:
        """Wait for the dict; ContractError where this thread holds the instance for which the request waits."""
        try:
            return self._wait(super().result, timeout)  # type: ignore[no-any-return]
        finally:
            del self  # see `Entry.take_error`

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; give its error, None for success. It raises ContractError as `result` does."""
        return self._wait(super().exception, timeout)  # type: ignore[no-any-return]

    def _wait(self, read: Callable[[float | None], Any], timeout: float | None) -> Any:
        try:
            if self.done():
                return read(timeout)
            with noted(self):
                self.check_wait()
                return read(timeout)
        finally:
            del self, read  # see `Entry.take_error`

    def check_wait(self) -> None:
        """Raise ContractError where the calling thread, noted as one that waits for this future, would wait for ever."""
        node = cycle_of(self)
        if node is not None:
            raise endless_wait(node)

    def places(self) -> Sequence[tuple[Node, object]]:
        """Return the nodes that the request needs; see `headrace._scheduling.cycles`."""
        return () if self.done() or self.pending is None else self.pending.places()

    def finished(self, entry: Entry) -> None:
        """Take the outcome of the entry; see `headrace._scheduling.entry.Owner`."""
        entry.give_back()
        error, entry.error = entry.error, None  # see `Entry.take_error`
        if not self._condition.acquire(blocking=False):
            helpers.run(self._finish, entry.request, error)
            return
        try:
            self._finish(entry.request, error)
        finally:
            self._condition.release()

    def _finish(self, request: Request, error: BaseException | None) -> None:
        # It may have been cancelled a moment ago.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if error is None:
                self.set_result(request)
            else:
                self.set_exception(error)

    def _invoke_callbacks(self) -> None:
        if self._is_cancelled:  # by this thread
            self._call_all()
        elif self._done_callbacks:
            # They may take any time, and the answering thread has other requests to serve.
            helpers.run(self._call_all)

    def _call_all(self) -> None:
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException as error:  # noqa: BLE001 - the others are called all the same
                _log.error("a callback raised", exc_info=error)


_LATE_S = 1.0
"""After this time a scheduled wake-up of the event loop may have been lost to an interrupt."""


class LoopWaker:
    """Wakes coroutines of one event loop from other threads: one call into the loop wakes all that are due.

    A thread adds a future to those that are due first, and then tries to take the token; the loop gives the
    token back first, and then looks for futures that are due. Either the thread takes the token and schedules
    the loop; or the loop is scheduled, has not given the token back yet, and finds the future.

    Ctrl-C may hit the loop just before it gives the token back, and the program may let the loop run on. So
    the token counts for `_LATE_S` only: a thread that comes later schedules the loop once more.

    Args:
        loop: The event loop.
        clock: Gives seconds.
    """

    __slots__ = ("_clock", "_due", "_late", "_token", "loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.loop = loop
        self._clock = clock
        self._late = 0.0
        self._due: deque[tuple[asyncio.Future[None], BaseException | None]] = deque()
        self._token = [None]

    def wake(self, future: asyncio.Future[None], error: BaseException | None = None) -> None:
        """Let the coroutine that awaits a future of the loop go on, or raise an error in it."""
        self._due.append((future, error))
        self.attend()

    def attend(self) -> None:
        """Schedule the loop if a future is due, unless it was scheduled a moment ago."""
        if not self._due:
            return
        if (self._token and took_token(self._token)) or self._clock() > self._late:
            self._late = self._clock() + _LATE_S
            with contextlib.suppress(RuntimeError):  # a closed loop has no waiting coroutines
                self.loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        self._token[:] = [None]
        while self._due:
            future, error = self._due.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class AsyncOwner:
    """Gives the outcome to a coroutine in its event loop.

    Attributes:
        waker: Wakes the event loop.
        future: A future of the event loop, which is done when the entry is.
        pending: Stands for the request while it has no outcome.
    """

    __slots__ = ("future", "pending", "waker")
    pending: NodeRequest | GraphRequest

    def __init__(self, waker: LoopWaker) -> None:
        self.waker = waker
        self.future: asyncio.Future[None] = waker.loop.create_future()

    def finished(self, entry: Entry) -> None:
        """Wake the coroutine; the outcome is in the entry."""
        self.waker.wake(self.future)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the coroutine, whose request could not begin."""
        self.waker.wake(self.future, error)


@reentrant()
def give_up_all(waiting: Sequence[AsyncOwner]) -> bool:
    """Withdraw all requests that wait; give whether a backend still runs on one of the others."""
    return sum([one.pending.give_up() for one in waiting]) > 0
