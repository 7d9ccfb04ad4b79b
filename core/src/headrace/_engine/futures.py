"""Outcomes of requests for which no thread waits: futures and coroutines."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import time
import weakref
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling.admission import endless_wait
from headrace._scheduling.calls import reentrant
from headrace._scheduling.entry import RUNNING, Entry
from headrace._scheduling.locks import Watchers, drained, took_token
from headrace._scheduling.process_threads import callbacks, errands
from headrace._scheduling.threads import cycle_of, noted

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from headrace._graph.request import GraphRequest
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

_log = logging.getLogger("headrace.callbacks")

_PENDING, _CANCELLED, _FINISHED = "PENDING", "CANCELLED_AND_NOTIFIED", "FINISHED"
"""The states of a future, by the names that `concurrent.futures` has for them."""


class _Waiters(list[Any]):
    """The waiters of a future, which `concurrent.futures.wait` and `as_completed` also take for its lock.

    Those two functions read the state of each future under its lock, and then append a waiter to all futures,
    those that are done included. This lock excludes no other thread: a thread that holds it just goes on
    seeing the state that the future had when the thread acquired it.

    A thread that has seen the future done counts it itself, and `append` adds no waiter for it. A thread that
    has not seen it done appends its waiter and then looks whether the future is done; the answering thread
    marks the future done and then pops all waiters. If the waiter comes first, the answering thread pops it;
    if the mark comes first, the waiting thread pops it. The thread that pops a waiter notifies it, so each is
    notified once, without a lock. A wait may be refused as in `RequestFuture.result`.

    Attributes:
        seen: Per thread the states that it sees, of which the last one counts; with none it sees the true state.
    """

    def __init__(self, future: RequestFuture) -> None:
        super().__init__()
        self._future: Callable[[], Any] = weakref.ref(future)
        self.seen: dict[int, list[str]] = {}

    def acquire(self) -> None:
        """Let the calling thread see the present state from now on, whatever comes."""
        self.seen.setdefault(get_ident(), []).append(self._future()._reached)

    def release(self, *_: object) -> None:
        """Let the calling thread see the true state again."""
        self.seen[get_ident()].pop()

    __enter__, __exit__ = acquire, release

    def append(self, waiter: Any) -> None:
        """Add a waiter, unless its thread would wait for ever; notify it if the future is done by now."""
        future = self._future()
        if future is None or future._state != _PENDING:
            return
        with noted(future):
            future.check_wait()
        super().append(waiter)
        if future.done():
            self.notify(future)

    def remove(self, waiter: Any) -> None:
        """Remove a waiter, unless it was notified."""
        with contextlib.suppress(ValueError):
            super().remove(waiter)

    def notify(self, future: RequestFuture) -> None:
        """Notify all waiters."""
        for waiter in drained(self.pop):
            if future.cancelled():
                waiter.add_cancelled(future)
            elif future._exception is not None:
                waiter.add_exception(future)
            else:
                waiter.add_result(future)


class NodeRequest:
    """A request of a pipeline with one scheduler, until it has its outcome; see `GraphRequest`."""

    __slots__ = ("_entry", "_scheduler")

    def __init__(self, scheduler: Scheduler, entry: Entry) -> None:
        self._scheduler, self._entry = scheduler, entry

    def begin(self, *, internal: bool = False) -> tuple[Scheduler, Sequence[Entry]]:
        """Give the scheduler at which the request enters, and its entries."""
        return self._scheduler, (self._entry,)

    def held_here(self) -> bool:
        """Tell whether the calling thread holds an instance that the request needs."""
        return self._scheduler.held_by_this_thread()

    @property
    def state(self) -> str:
        """The state of the entry."""
        return self._entry.state

    def places(self) -> Sequence[tuple[Node, object]]:
        """Give the node at which the request is."""
        return (self._scheduler.place(self._entry),)

    def cancel(self) -> bool:
        """Withdraw the request while it waits; False when a backend runs on it, or it is done."""
        return self._scheduler.cancel(self._entry)

    def give_up(self) -> bool:
        """Withdraw the request if it waits; give whether a backend still runs on it."""
        return not self.cancel() and self._scheduler.abandon(self._entry)


class RequestFuture(concurrent.futures.Future["dict[str, Any]"]):
    """The answer to one submitted request: its dict, or its error.

    ``cancel()`` is True only while the request waits; once a backend runs on it, it ends.

    Neither these methods nor the answering thread take a lock: a signal handler may interrupt any of the
    methods, and wait for the answer itself.

    Attributes:
        pending: Stands for the request while it has no outcome; None for a request that never entered.
    """

    _exception: BaseException | None
    _waiters: _Waiters
    _condition: Any
    pending: NodeRequest | GraphRequest | None = None

    def __init__(self) -> None:
        # `Future.__init__` is not called: it would make a condition with a lock that is not used here.
        self._result = self._exception = None
        self._reached = _PENDING
        self._waiters = self._condition = _Waiters(self)
        # The first outcome in here counts: it gets here in one step, which no exception tears.
        self._outcomes: list[tuple[Any, BaseException | None, str]] = []
        self._sleepers = Watchers()
        self._calls: deque[Callable[[Any], object]] = deque()

    # The attribute that functions of `concurrent.futures` read.

    @property
    def _state(self) -> str:  # type: ignore[override]
        seen = self._waiters.seen.get(get_ident())
        return seen[-1] if seen else self._reached

    # For threads that hold the future.

    def done(self) -> bool:
        """Tell whether the request has its outcome."""
        return self._reached != _PENDING

    def cancelled(self) -> bool:
        """Tell whether the request was withdrawn by `cancel`."""
        return self._reached == _CANCELLED

    def running(self) -> bool:
        """Tell whether a backend runs on the request."""
        return self.pending is not None and self.pending.state == RUNNING and not self.done()

    def cancel(self) -> bool:
        """Withdraw the request; False when a backend runs on it, or it is done.

        A destructor may call this in a thread that holds a lock of a scheduler: then the answer is False,
        and a helper thread withdraws the request a moment later.
        """
        if not self.done() and self._take_back():
            self._call_all()
        return self.cancelled()

    @reentrant(later=lambda future: errands.run(future.cancel))
    def _take_back(self) -> bool:
        return self.pending is not None and self.pending.cancel() and self._decide(_CANCELLED)

    def result(self, timeout: float | None = None) -> Request:
        """Wait for the dict.

        Raises:
            ContractError: The calling thread runs a backend that holds the instance for which the
                request waits.
        """
        error = self.exception(timeout)
        if error is None:
            return self._result  # type: ignore[return-value]
        try:
            raise error
        finally:
            del error, self  # the error keeps this frame, which must not keep the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; give its error, None for success. It raises ContractError as `result` does."""
        if not self.done():
            self._wait(timeout)
        if self.cancelled():
            raise concurrent.futures.CancelledError
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        with noted(self):
            self.check_wait()
            if not self._sleepers.wait(self.done, until):
                raise concurrent.futures.TimeoutError

    def check_wait(self) -> None:
        """Refuse the wait of this thread, which is noted as waiting, when it holds what the request needs.

        Raises:
            ContractError: The thread would wait for ever.
        """
        node = cycle_of(self)
        if node is not None:
            raise endless_wait(node)

    def places(self) -> Sequence[tuple[Node, object]]:
        """Give the nodes that the request needs; see `headrace._scheduling.threads`."""
        return () if self.done() or self.pending is None else self.pending.places()

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(self)`` in another thread when the outcome comes; at once if it is there."""
        # This thread adds the callback and then looks for the outcome; the answering thread sets the
        # outcome and then looks for callbacks. If the callback comes first, the answering thread finds
        # it; if the outcome comes first, this thread finds it.
        self._calls.append(fn)
        if self.done():
            self._call_all()

    # For the answering thread.

    def finished(self, entry: Entry) -> None:
        """Take the outcome of the entry; see `headrace._scheduling.entry.Owner`."""
        entry.give_back()
        self._decide(_FINISHED, entry.request, entry.error)
        entry.error = None  # see `Entry.take_error`
        if self._calls:
            # Callbacks are called in another thread: they may take any time, and the answering thread has
            # other requests to serve.
            try:
                callbacks.run(self._call_all)
            except RuntimeError:  # no more threads, or the interpreter ends
                self._call_all()

    def _decide(self, state: str, result: Any = None, error: BaseException | None = None) -> bool:
        """Give the future its one outcome; False when it has one already, and then whoever waits is woken once more."""
        outcome = (result, error, state)
        self._outcomes.append(outcome)
        self._result, self._exception, self._reached = first = self._outcomes[0]
        self._sleepers.wake()
        self._waiters.notify(self)
        return first is outcome

    def _call_all(self) -> None:
        """Call all callbacks; of two threads that do so at a time, the one that pops a callback calls it."""
        for call in drained(self._calls.popleft):
            try:
                call(self)
            except Exception as error:  # noqa: BLE001 - as concurrent.futures does
                _log.error("a callback of a future raised", exc_info=error)
            except BaseException:
                if self._calls:
                    callbacks.run(self._call_all)
                raise


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
        future: A future of the event loop, which is done when the entry is.
        pending: Stands for the request while it has no outcome.
    """

    __slots__ = ("_waker", "future", "pending")
    pending: NodeRequest | GraphRequest

    def __init__(self, waker: LoopWaker) -> None:
        self._waker = waker
        self.future: asyncio.Future[None] = waker.loop.create_future()

    def finished(self, entry: Entry) -> None:
        """Wake the coroutine; the outcome is in the entry."""
        self._waker.wake(self.future)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the coroutine, whose request could not begin."""
        self._waker.wake(self.future, error)


@reentrant()
def give_up_all(waiting: Sequence[AsyncOwner]) -> bool:
    """Withdraw all requests that wait; give whether a backend still runs on one of the others."""
    return sum([one.pending.give_up() for one in waiting]) > 0
