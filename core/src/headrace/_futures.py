"""Outcomes for those who do not wait in the calling thread: futures and coroutines."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import weakref
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from headrace._scheduling.admission import inside
from headrace._scheduling.callbacks import run_aside
from headrace._scheduling.circles import circle_of, noted
from headrace._scheduling.entry import RUNNING, Entry

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence

    from headrace._graph import Walk
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["AsyncOwner", "RequestFuture"]


class _Condition(threading.Condition):
    """A condition that an interrupt cannot leave locked.

    ``with`` enters and leaves the raw lock itself: an interrupt at the begin of an ``__exit__``
    written in Python would keep the lock, and with it whoever answers the future, for ever.
    """

    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))


class _Waiters(list[Any]):
    """Those of `concurrent.futures.wait` and `as_completed`, which are to fail as `result` does."""

    def __init__(self, future: RequestFuture) -> None:
        super().__init__()
        self._future = weakref.ref(future)

    def append(self, waiter: Any) -> None:
        """Let one wait that does not wait for ever."""
        future = self._future()
        if future is not None:
            future.check_wait()
        super().append(waiter)


class RequestFuture(concurrent.futures.Future["dict[str, Any]"]):
    """The answer to one submitted request: its dict, or its error.

    ``cancel()`` is True only while the request waits; once a backend runs on it, it ends.
    """

    _scheduler: Scheduler | Walk | None = None
    _entry: Entry | Walk | None = None
    _answered = False

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Condition()
        self._waiters = _Waiters(self)

    def attach(self, scheduler: Scheduler | Walk, entry: Entry | Walk) -> None:
        """Say where the request waits: a walk stands for all places on its way."""
        self._scheduler, self._entry = scheduler, entry

    def cancel(self) -> bool:
        """Take the request back; False when it runs or is done."""
        if self._scheduler is not None and self._entry is not None:
            taken = self._scheduler.cancel(self._entry)  # type: ignore[arg-type]
            if taken and super().cancel():
                self.set_running_or_notify_cancel()
        return self.cancelled()

    def result(self, timeout: float | None = None) -> Request:
        """Wait for the dict.

        Raises:
            ContractError: The calling thread runs a backend that holds the instance which the
                request waits for.
        """
        try:
            with self._waited_for():
                return super().result(timeout)
        finally:
            del self  # the error keeps this frame, which must not keep the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error, None for success; raises as `result` does."""
        with self._waited_for():
            return super().exception(timeout)

    @contextlib.contextmanager
    def _waited_for(self) -> Iterator[None]:
        if self.done():
            yield
            return
        with noted(self):
            self.check_wait()
            yield

    def check_wait(self) -> None:
        """Refuse to let this thread wait while it holds what the request needs.

        Raises:
            ContractError: It would wait for ever.
        """
        if self._scheduler is not None and self._entry is not None and not self.done():
            self._scheduler.check_wait(self._entry)  # type: ignore[arg-type]
            node = circle_of(self)
            if node is not None:
                raise inside(node)

    def places(self) -> Sequence[tuple[Node, object]]:
        """Give what it needs; see `headrace._scheduling.circles`."""
        if self.done() or self._scheduler is None:
            return ()
        if isinstance(self._entry, Entry):
            return (self._scheduler.place(self._entry),)  # type: ignore[union-attr]
        return self._scheduler.places()  # type: ignore[union-attr]

    def running(self) -> bool:
        """Tell whether a backend runs on the request."""
        return self._entry is not None and self._entry.state == RUNNING and not self.done()

    def finished(self, entry: Entry) -> None:
        """Take the outcome of the entry; see `headrace._scheduling.entry.Owner`."""
        self._answered = True
        # Cancelled, or told a second time: it has its one outcome.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if entry.error is not None:
                self.set_exception(entry.error)
                entry.error = None  # see `Entry.take_error`
            else:
                self.set_result(entry.request)

    def _invoke_callbacks(self) -> None:
        """Run the callbacks aside: they may take any time, and the answering thread has work."""
        if not self._answered:  # a cancellation, in the thread that asked for it
            super()._invoke_callbacks()  # type: ignore[misc]
        elif self._done_callbacks:  # type: ignore[attr-defined]
            run_aside(super()._invoke_callbacks)  # type: ignore[misc]


class AsyncOwner:
    """Gives the outcome to a coroutine in its event loop."""

    __slots__ = ("_future", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] = loop.create_future()

    @property
    def future(self) -> asyncio.Future[None]:
        """Done when the entry is."""
        return self._future

    def finished(self, entry: Entry) -> None:
        """Wake the coroutine; the outcome is in the entry."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)
