"""A thread that does a probe's work, so that requests do not wait for it."""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MOST_PENDING", "WorkerThread"]

T = TypeVar("T")

MOST_PENDING = 200_000
"""The most items that wait in memory for the thread; beyond it the oldest are dropped."""

_GATHER_S = 0.05
"""The thread waits this many seconds after it was woken, so that it handles many items at a time."""

_AT_ONCE = 5_000
"""The most items that one call of ``handle`` gets."""


class WorkerThread(Generic[T]):
    """A thread that handles items of other threads, in order.

    Args:
        handle: Called in the thread with a list of items, the oldest first.
        last: Called in the thread at the end, once all items from before `finish` are handled.
        name: The name of the thread.

    Attributes:
        append: Queues an item without waking the thread. Only for callers that call `put` soon after. Like `put`,
            it raises the error that has ended the thread, once.
    """

    def __init__(
        self, handle: Callable[[list[T]], object], last: Callable[[], object], *, name: str
    ) -> None:
        self._handle = handle
        self._last = last
        self._pending: deque[T] = deque(maxlen=MOST_PENDING)
        self.append: Callable[[T], object] = self._pending.append
        self._sleeps = False
        # A signal handler may interrupt `put` in this thread and call it again. An Event takes a lock that is not
        # reentrant, so the second call would wait for the first for ever; `SimpleQueue.put` is reentrant.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._ends = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, thing: T) -> None:
        """Queue an item for the thread; this costs about as much as appending it to a list."""
        self.append(thing)
        if self._sleeps:
            self._sleeps = False
            self._wake.put(None)

    def _refuse(self, thing: T) -> None:
        """Raise the error that ended the thread, once: the pipeline counts it; later items are dropped."""
        self.append = self._pending.append
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until all items are handled. Raise the error that ended the thread early, if any.

        A first Ctrl-C meanwhile is raised afterwards, so that a file is whole. A second one ends the wait.
        """
        self._ends.set()
        self._wake.put(None)
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self._thread.join()
            raise
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                # A race with a thread in `put`. This thread sets `_sleeps` and then reads `_pending`; the other
                # thread appends to `_pending` and then reads `_sleeps`. If `_sleeps` is set first, `put` sees it and
                # wakes this thread; if the append comes first, this thread finds `_pending` not empty.
                self._sleeps = True
                if not self._pending:
                    self._wake.get()
                self._ends.wait(_GATHER_S)
                self._drain()
            self._drain()
            self._last()
        except Exception as error:  # noqa: BLE001 - raised by the next `append`, and by `finish`
            self._error = error
            self._pending = deque(maxlen=0)
            self.append = self._refuse

    def _drain(self) -> None:
        take, left = self._pending.popleft, len(self._pending)
        while left > 0:
            things: list[T] = []
            try:
                things.extend(take() for _ in range(min(left, _AT_ONCE)))
            except IndexError:  # the deque was full: newer items have pushed older ones out
                left = 0
            left -= len(things)
            self._handle(things)
