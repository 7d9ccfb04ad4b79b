"""Bounded queues between the nodes of one pipeline, each with a name."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace._scheduling.locks import taking
from headrace.errors import ClosedError, ContractError, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.keys import Request


DEFAULT_MAX = 64
"""How many requests a queue holds that nobody declared."""


class NamedQueue:
    """A bounded first-in first-out queue of shallow copies of requests.

    Attributes:
        max: How many it holds.
        dropped: How many an Observer has dropped.
    """

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.max = most
        self.dropped = 0
        self._items: deque[Request] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    def put(self, item: Request, deadline: float | None) -> None:
        """Append ``item``; wait while the queue is full.

        Raises:
            DeadlineExceededError: ``deadline`` (seconds of `time.monotonic`) came first.
            ClosedError: The pipeline was closed.
        """
        with taking(self._changed):
            self._wait(lambda: len(self._items) < self.max, deadline, "full")
            self._items.append(item)
            self._changed.notify_all()

    def put_newest(self, item: Request) -> None:
        """Append ``item``; drop the oldest when the queue is full, and count it."""
        with taking(self._changed):
            if len(self._items) >= self.max:
                self._items.popleft()
                self.dropped += 1
            self._items.append(item)
            self._changed.notify_all()

    def get(self, deadline: float | None) -> Request:
        """Take the oldest item; wait while there is none.

        Raises:
            DeadlineExceededError: ``deadline`` came first.
            ClosedError: The pipeline was closed and the queue is empty.
        """
        with taking(self._changed):
            self._wait(lambda: bool(self._items), deadline, "empty")
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Let nobody wait any more; what is in the queue can still be taken."""
        with taking(self._changed):
            self._closed = True
            self._changed.notify_all()

    def _wait(self, ready: Any, deadline: float | None, why: str) -> None:
        late = False
        # Who has waited past the deadline does nothing any more: its caller has been told so.
        while late or not ready():
            if self._closed:
                raise ClosedError(f"the pipeline was closed while queue {self.name!r} was {why}")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise DeadlineExceededError(
                    f"the time of the request was over while queue {self.name!r} was {why}"
                )
            self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            late = deadline is not None and time.monotonic() >= deadline

    def statistics(self) -> dict[str, int]:
        """Give how many wait, how many may, and how many were dropped."""
        with taking(self._changed):
            return {"waiting": len(self._items), "max": self.max, "dropped": self.dropped}


class Queues:
    """The queues of one pipeline, by name."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._queues: dict[str, NamedQueue] = {}

    def declare(self, name: str, most: int) -> NamedQueue:
        """Make a queue that holds ``most`` requests.

        Raises:
            ContractError: There is one of another size.
        """
        with taking(self._lock):
            queue = self._queues.setdefault(name, NamedQueue(name, most))
            if queue.max != most:
                raise ContractError(
                    f"queue {name!r} holds {queue.max}, and is declared with max={most} as well",
                    hint="Declare it once, in the init of one node.",
                )
            return queue

    def expect(self, sizes: Mapping[str, int]) -> None:
        """Make the queues that some node will declare, so that its users find them as declared."""
        with taking(self._lock):
            for name, most in sizes.items():
                self._queues.setdefault(name, NamedQueue(name, most))

    def use(self, name: str) -> NamedQueue:
        """Give a queue; the first user of one that nobody declared makes it."""
        with taking(self._lock):
            return self._queues.setdefault(name, NamedQueue(name, DEFAULT_MAX))

    def names(self) -> set[str]:
        """Give the names of all queues."""
        with taking(self._lock):
            return set(self._queues)

    def forget(self, names: set[str]) -> None:
        """Drop queues that nobody uses."""
        with taking(self._lock):
            for name in names:
                del self._queues[name]

    def close(self) -> None:
        """Let nobody wait any more."""
        with taking(self._lock):
            queues = list(self._queues.values())
        for queue in queues:
            queue.close()

    def statistics(self) -> dict[str, dict[str, int]]:
        """Give the statistics of each queue."""
        with taking(self._lock):
            queues = dict(self._queues)
        return {name: queue.statistics() for name, queue in queues.items()}
