"""Outcomes for those who do not wait in the calling thread: futures and coroutines."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING, Any

from headrace._scheduling.entry import RUNNING, Entry

if TYPE_CHECKING:
    import asyncio

    from headrace._scheduling.scheduler import Scheduler

__all__ = ["AsyncOwner", "RequestFuture"]


class RequestFuture(concurrent.futures.Future[Any]):
    """The answer to one submitted request: its dict, or its error.

    ``cancel()`` is True only while the request waits; once a backend runs on it, it ends.
    """

    _scheduler: Scheduler | None = None
    _entry: Entry | None = None

    @property
    def has_callbacks(self) -> bool:
        """Whether code of the user runs with the outcome."""
        return bool(self._done_callbacks)  # type: ignore[attr-defined]

    def attach(self, scheduler: Scheduler, entry: Entry) -> None:
        """Say where the request waits."""
        self._scheduler, self._entry = scheduler, entry

    def cancel(self) -> bool:
        """Take the request back; False when it runs or is done."""
        if self.cancelled():
            return True
        if self._scheduler is None or self._entry is None:
            return False
        if not self._scheduler.cancel(self._entry):
            return self.cancelled()
        super().cancel()
        self.set_running_or_notify_cancel()
        return True

    def running(self) -> bool:
        """Tell whether a backend runs on the request."""
        return self._entry is not None and self._entry.state == RUNNING and not self.done()

    def finished(self, entry: Entry) -> None:
        """Take the outcome of the entry."""
        if self.cancelled():
            return
        if entry.error is not None:
            self.set_exception(entry.error)
        else:
            self.set_result(entry.request)


class AsyncOwner:
    """Gives the outcome to a coroutine in its event loop."""

    __slots__ = ("_future", "_loop")

    has_callbacks = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] = loop.create_future()

    @property
    def future(self) -> asyncio.Future[None]:
        """Done when the entry is."""
        return self._future

    def finished(self, entry: Entry) -> None:
        """Wake the coroutine; the outcome is in the entry."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return  # the loop is closed, and nobody waits any more

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)
