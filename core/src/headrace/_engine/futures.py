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

from headrace._scheduling.admission import inside
from headrace._scheduling.calls import reentrant
from headrace._scheduling.entry import RUNNING, Entry
from headrace._scheduling.locks import Watchers, claimed
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
"""The states, as `concurrent.futures` calls them."""


class _Waiters(list[Any]):
    """The waiters of `concurrent.futures.wait` and `as_completed`, and what these take as a future's lock.

    They read the state of each future, and then add a waiter to all, those that are done included. A
    thread that holds this sees the state that was there when it took it; it holds nobody else up.

    A thread that has seen the future done counts it itself and leaves no waiter. One that has not appends
    its waiter and then looks whether the future is done; the answering thread marks the future done and
    then pops all waiters. If the waiter comes first, the answering thread pops it; if the mark comes
    first, the waiting thread pops it. The thread that pops a waiter notifies it, so each is notified
    once, without a lock. To wait may be refused as in `RequestFuture.result`.

    Attributes:
        seen: Per thread the states that it sees, of which the last counts.
    """

    def __init__(self, future: RequestFuture) -> None:
        super().__init__()
        self._future: Callable[[], Any] = weakref.ref(future)
        self.seen: dict[int, list[str]] = {}

    def acquire(self) -> None:
        """From now on the calling thread sees the state that is there now."""
        self.seen.setdefault(get_ident(), []).append(self._future()._reached)

    def release(self) -> None:
        """From now on the calling thread sees the state that there is."""
        seen = self.seen[get_ident()]
        seen.pop()
        if not seen:
            del self.seen[get_ident()]

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def append(self, waiter: Any) -> None:
        """Add a waiter, unless its thread would wait for ever; notify it if there is an outcome by now."""
        future = self._future()
        if future is None or future._state != _PENDING:
            return
        with noted(future):
            future.check_wait()
        super().append(waiter)
        if future.done():
            self.notify(future)

    def remove(self, waiter: Any) -> None:
        """Take a waiter out, if it has not been notified."""
        with contextlib.suppress(ValueError):
            super().remove(waiter)

    def notify(self, future: RequestFuture) -> None:
        """Notify all waiters."""
        while True:
            try:
                waiter = self.pop()
            except IndexError:
                return
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

    def begin(self) -> tuple[Scheduler, Sequence[Entry]]:
        """Give where the request enters, and as what."""
        return self._scheduler, (self._entry,)

    def held_here(self) -> bool:
        """Tell whether the calling thread holds an instance that the request needs."""
        return self._scheduler.held_by_this_thread()

    @property
    def state(self) -> str:
        """That of the entry."""
        return self._entry.state

    def places(self) -> Sequence[tuple[Node, object]]:
        """Give the node at which it is."""
        return (self._scheduler.place(self._entry),)

    def cancel(self) -> bool:
        """Take the request back where it waits; False while a backend runs on it, or it is done."""
        return self._scheduler.cancel(self._entry)

    def give_up(self) -> bool:
        """Cancel the request where it waits; give whether a backend still runs on it."""
        return not self.cancel() and self._scheduler.abandon(self._entry)


class RequestFuture(concurrent.futures.Future["dict[str, Any]"]):
    """The answer to one submitted request: its dict, or its error.

    ``cancel()`` is True only while the request waits; once a backend runs on it, it ends.

    Neither these methods nor the thread that answers take a lock: a signal handler may interrupt any
    of them, and wait for the answer itself.

    Attributes:
        pending: What stands for the request while it has no outcome; None for one that never entered.
    """

    _exception: BaseException | None
    _waiters: _Waiters
    _condition: Any
    pending: NodeRequest | GraphRequest | None = None

    def __init__(self) -> None:
        # Not `Future.__init__`: it makes a lock, which nobody takes here.
        self._result = self._exception = None
        self._reached = _PENDING
        self._waiters = self._condition = _Waiters(self)
        self._open = [None]  # the thread that pops this decides the outcome
        self._sleepers = Watchers()
        self._calls: deque[Callable[[Any], object]] = deque()

    # What `concurrent.futures` looks at.

    @property
    def _state(self) -> str:  # type: ignore[override]
        seen = self._waiters.seen.get(get_ident())
        return seen[-1] if seen else self._reached

    # Asking.

    def done(self) -> bool:
        """Tell whether there is an outcome."""
        return self._reached != _PENDING

    def cancelled(self) -> bool:
        """Tell whether it was taken back."""
        return self._reached == _CANCELLED

    def running(self) -> bool:
        """Tell whether a backend runs on the request."""
        return self.pending is not None and self.pending.state == RUNNING and not self.done()

    def cancel(self) -> bool:
        """Take the request back; False when it runs or is done.

        In a destructor that runs inside of the scheduler it is False, and done a moment later.
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
            ContractError: The calling thread runs a backend that holds the instance which the
                request waits for.
        """
        error = self.exception(timeout)
        if error is None:
            return self._result  # type: ignore[return-value]
        try:
            raise error
        finally:
            del error, self  # the error keeps this frame, which must not keep the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error, None for success; raises as `result` does."""
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
        """Refuse to let this thread, noted as waiting, wait while it holds what the request needs.

        Raises:
            ContractError: It would wait for ever.
        """
        node = cycle_of(self)
        if node is not None:
            raise inside(node)

    def places(self) -> Sequence[tuple[Node, object]]:
        """Give the nodes that the request needs; see `headrace._scheduling.threads`."""
        return () if self.done() or self.pending is None else self.pending.places()

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(self)`` when there is an outcome: in another thread, or at once if there is one."""
        # This thread adds the callback and then looks for the outcome; the answering thread sets the
        # outcome and then looks for callbacks. In either order one of the two finds it.
        self._calls.append(fn)
        if self.done():
            self._call_all()

    # Answering.

    def finished(self, entry: Entry) -> None:
        """Take the outcome of the entry; see `headrace._scheduling.entry.Owner`."""
        entry.give_back()
        error = entry.take_error()
        if self._decide(_FINISHED, entry.request, error) and self._calls:
            # In another thread: callbacks may take any time, and the answering thread serves others.
            try:
                callbacks.run(self._call_all)
            except RuntimeError:  # no more threads, or the interpreter ends
                self._call_all()

    def _decide(self, state: str, result: Any = None, error: BaseException | None = None) -> bool:
        """Give the future its one outcome; False when it has one."""
        if not claimed(self._open):
            return False
        self._result, self._exception = result, error
        self._reached = state
        self._sleepers.wake()
        self._waiters.notify(self)
        return True

    def _call_all(self) -> None:
        """Call all callbacks, each once; of two threads that do, one pops a callback and calls it."""
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            try:
                call(self)
            except Exception as error:  # noqa: BLE001 - as concurrent.futures does
                _log.error("a callback of a future raised", exc_info=error)
            except BaseException:
                if self._calls:
                    callbacks.run(self._call_all)
                raise


_LATE_S = 1.0
"""After so long an event loop that was scheduled may have been hit before it came to it."""


class LoopWaker:
    """Wakes coroutines of one event loop from other threads, all that are due with one call into the loop.

    A thread adds what is due first and then tries to take the token; the loop gives the token back first and
    then looks for what is due. Either the thread takes the token and schedules the loop; or the loop is
    scheduled, has not given the token back, and finds what was added.

    Ctrl-C may hit the loop just before it gives the token back, and who called it may let it run on. So the
    token counts for `_LATE_S` only: whoever comes after that schedules the loop once more.

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
        """Let whoever awaits a future of the loop go on, or raise an error there."""
        self._due.append((future, error))
        self.attend()

    def attend(self) -> None:
        """Schedule the loop, where something is due and it has not been scheduled a moment ago."""
        if not self._due:
            return
        if (self._token and claimed(self._token)) or self._clock() > self._late:
            self._late = self._clock() + _LATE_S
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
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
        future: Done when the entry is.
        pending: What stands for the request.
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
        """Raise an error in the coroutine: its request has not begun."""
        self._waker.wake(self.future, error)


@reentrant()
def give_up_all(waiting: Sequence[AsyncOwner]) -> bool:
    """Cancel all requests that wait; give whether a backend still runs on any."""
    return sum([one.pending.give_up() for one in waiting]) > 0
