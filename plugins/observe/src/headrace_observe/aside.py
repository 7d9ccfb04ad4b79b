"""Work that probes leave to a thread of their own, so that requests do not wait for it."""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MOST_PENDING", "Aside"]

T = TypeVar("T")

MOST_PENDING = 200_000
"""So many things wait in memory for the thread; then the oldest go."""

_GATHER_S = 0.05
"""How long the thread lets things gather once it has been woken."""

_AT_ONCE = 5_000
"""So many of them are handled at once at most."""


class Aside(Generic[T]):
    """A thread that handles what other threads leave to it, in order.

    Args:
        handle: Called in the thread with a list of things, the oldest first.
        last: Called in the thread, after all that was left before `finish`.
        name: The name of the thread.

    Attributes:
        append: Leaves something without a look at whether the thread sleeps: `leave` what follows soon.
    """

    def __init__(
        self, handle: Callable[[list[T]], object], last: Callable[[], object], *, name: str
    ) -> None:
        self._handle = handle
        self._last = last
        self._pending: deque[T] = deque(maxlen=MOST_PENDING)
        self.append: Callable[[T], object] = self._pending.append
        self._sleeps = False
        # A signal handler may interrupt `leave` and come to it again, so this is no Event, which has a lock.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._ends = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def leave(self, thing: T) -> None:
        """Leave something to the thread; costs about as much as appending it to a list."""
        self.append(thing)
        if self._sleeps:
            self._sleeps = False
            self._wake.put(None)

    def finish(self) -> None:
        """Wait until all that was left is handled; raises what ended the thread early."""
        self._ends.set()
        self._wake.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                # Noted before the look at the queue: either a thread that leaves something sees it and
                # wakes this one, or this one sees what was left.
                self._sleeps = True
                if not self._pending:
                    self._wake.get()
                self._ends.wait(_GATHER_S)
                self._drain()
            self._drain()
            self._last()
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._error = error
            self._pending = deque(maxlen=0)
            self.append = self._pending.append

    def _drain(self) -> None:
        take, left = self._pending.popleft, len(self._pending)
        while left > 0:
            things: list[T] = []
            try:
                things.extend(take() for _ in range(min(left, _AT_ONCE)))
            except IndexError:  # newer ones have pushed some out; `things` has those before
                left = 0
            left -= len(things)
            self._handle(things)
