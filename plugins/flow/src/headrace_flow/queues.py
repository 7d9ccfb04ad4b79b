"""Queue, Send, Recv, Observer: bounded queues between the nodes of one pipeline."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.errors import ClosedError, DeadlineExceededError, InputError, SetupError
from headrace.words import Place, select

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["Observer", "Queue", "Recv", "Send"]

_DEFAULT_MAX = 64
"""How many requests a queue holds when no ``Queue(...)`` declares it."""


class NamedQueue:
    """A bounded first-in first-out queue of shallow copies of requests, for all threads of a pipeline.

    Attributes:
        max: How many requests it holds.
        dropped: How many requests an Observer has dropped.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.max = _DEFAULT_MAX
        self.dropped = 0
        self._declared = False
        self._items: deque[Request] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    def declare(self, most: int) -> None:
        """Set how many requests it holds, once.

        Raises:
            SetupError: It was declared in another size.
        """
        with self._changed:
            if self._declared and self.max != most:
                text = f"queue {self.name!r} holds {self.max} already, so it cannot hold {most}"
                hint = "Declare it once, in the init of one node."
                raise SetupError(text, hint=hint)
            self.max, self._declared = most, True

    def put(self, item: Request, left_s: Callable[[], float] | None) -> None:
        """Append ``item``. Wait while the queue is full, or drop its oldest where ``left_s`` is None.

        Args:
            item: The copy of a request.
            left_s: Tells for how many seconds its request may still wait. 0 or less says that it is over.

        Raises:
            DeadlineExceededError: The request was over first.
            ClosedError: The pipeline was closed.
        """
        with self._changed:
            if left_s is not None:
                self._wait(lambda: len(self._items) < self.max, left_s, "full")
            elif len(self._items) >= self.max:
                self._items.popleft()
                self.dropped += 1
            self._items.append(item)
            self._changed.notify_all()

    def put_back(self, item: Request) -> None:
        """Put an item back to the head of the queue."""
        with self._changed:
            self._items.appendleft(item)
            self._changed.notify_all()

    def get(self, left_s: Callable[[], float]) -> Request:
        """Take the oldest item. Wait while there is none.

        Args:
            left_s: See `put`.

        Raises:
            DeadlineExceededError: The request was over first.
            ClosedError: The pipeline was closed and the queue is empty.
        """
        with self._changed:
            self._wait(lambda: bool(self._items), left_s, "empty")
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def end_waits(self) -> None:
        """End all waits, as the pipeline closes; what is in the queue can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], left_s: Callable[[], float], why: str) -> None:
        # For a request that was cancelled, or whose deadline has passed, no item may be taken or put: the
        # caller has the error already, and an item taken for it would be lost.
        while True:
            if (left := left_s()) <= 0:
                text = f"the time of the request was over while queue {self.name!r} was {why}"
                raise DeadlineExceededError(text)
            if ready():
                return
            if self._closed:
                raise ClosedError(f"the pipeline was closed while queue {self.name!r} was {why}")
            self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def statistics(self) -> dict[str, int]:
        """Return how many requests wait, how many may wait, and how many were dropped."""
        with self._changed:
            return {"waiting": len(self._items), "max": self.max, "dropped": self.dropped}


class QueueUser(headrace.Backend):
    """Base of the backends that use a queue of the pipeline."""

    uses_pipeline = True

    class Options(headrace.Options):
        """Options of Send, Recv and Observer.

        Attributes:
            queue: Name of the queue.
        """

        positional = ("queue",)
        queue: str

    queue: NamedQueue

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Find the queue. The first backend of the pipeline that asks for it makes it."""
        name = options.queue
        self.context = context
        self.queue = context.store.pipeline.get_or_create(
            ("queues", name), lambda: NamedQueue(name)
        )

    def describe(self) -> dict[str, Any]:
        """Return the queue, whether this backend waits for it, and how many requests it has dropped."""
        queue, waits = self.queue, self.place.waits_while is not None
        return {
            "queue": queue.name,
            "queue_max": queue.max,
            "waits": waits,
            "dropped": queue.dropped,
        }


class Queue(QueueUser):
    """Declare a bounded queue of this pipeline: ``Queue(q,max=64)``, in the ``init`` of a node.

    An undeclared queue holds 64 requests. You cannot call Queue.

    Reads:
        Nothing.
    Writes:
        Nothing.
    Batch:
        1 or more, though it is never called.

    Raises:
        ContractError: It was called.
    Source:
        own
    Example:
        ``{"data": "abc", "node_name": "out"}`` gives ``"abc"``::

            [out]
            backend = "Send(q)"
            init = "Queue(q,max=8)"
    """

    class Options(QueueUser.Options):
        """Options of Queue.

        Attributes:
            max: How many requests it holds.
        """

        max: int = Field(_DEFAULT_MAX, ge=1)

    reads = ()
    writes = ()
    place = Place(not_callable="only declares a queue")

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Find the queue and set its size.

        Raises:
            SetupError: Another place declares it in another size.
        """
        super().init(options, context)
        self.queue.declare(options.max)


class _Mover(QueueUser, ABC):
    """Base of the backends that put each request of a batch into a queue, or take one out for it."""

    @abstractmethod
    def _move(self, request: Request) -> None:
        """Use the queue for one request."""

    def _left_s(self, request: Request) -> float:
        """Tell for how many seconds a request may still wait."""
        if self.context.request.unwanted(self.context.request.keep(request)):
            return 0.0
        deadline = self.context.request.deadline(request)
        return inf if deadline is None else deadline - time.monotonic()

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Use the queue for one request after the other.

        Copies that fill the batch up are not queued: they get the ``result`` of the last item.
        """
        outcomes: list[Exception | None] = [None] * len(batch)
        own = 0  # how many of the items, which come first, are no copies

        def move(request: Request) -> bool:
            nonlocal own
            own += 1
            self._move(request)
            return True

        select(batch, range(len(batch)), move, outcomes, fillers=False)
        for filler in batch[own:] if own else ():
            if "result" in batch[own - 1]:
                filler["result"] = batch[own - 1]["result"]
        return outcomes


class _Sender(_Mover):
    """Base of the backends that put copies of requests into a queue while their batch runs, and let them pass."""

    def _move(self, request: Request) -> None:
        if "data" not in request:
            problem = "the request has no 'data'"
            raise InputError(problem, key="data", expected="anything", got="nothing")
        result = request["data"]  # before it is queued: an interrupt here leaves nothing behind
        left_s = None if self.place.waits_while is None else lambda: self._left_s(request)
        self.queue.put(dict(request), left_s)
        request["result"] = result


class Send(_Sender):
    """Put a shallow copy of the request into a queue, and pass: ``Send(q)``.

    While the queue is full, Send waits and holds its instance. The wait ends at the deadline of the
    request and when the pipeline is closed.

    Reads:
        data: Anything.
    Writes:
        result: The same object as ``data``.
    Batch:
        1 or more.

    Raises:
        InputError: ``data`` is missing.
        DeadlineExceededError: The time of the request was over while the queue was full.
        ClosedError: The pipeline was closed while the queue was full.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "S[Upper,Send(q)]"
    """

    place = Place(waits_while="queue {queue!r} is full")


class Observer(_Sender):
    """Put a shallow copy of the request into a queue, never waiting, and pass: ``Observer(q)``.

    When the queue is full, its oldest request is dropped and counted.

    Reads:
        data: Anything.
    Writes:
        result: The same object as ``data``.
    Batch:
        1 or more.

    Raises:
        InputError: ``data`` is missing.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "S[Upper,Observer(q)]"
    """


class Recv(_Mover):
    """Take the next request out of a queue: its ``data`` becomes ``result``: ``Recv(q)``.

    While the queue is empty, Recv waits and holds its instance. The wait ends at the deadline of the
    request and when the pipeline is closed. A cancelled or expired request takes nothing out:
    the next item is for the request after it.

    Reads:
        Nothing.
    Writes:
        result: The ``data`` of the sent request.
    Batch:
        1 or more.

    Raises:
        DeadlineExceededError: The time of the request was over while the queue was empty.
        ClosedError: The pipeline was closed while the queue was empty.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"abc"``::

            backend = "S[Send(q),Recv(q)]"
    """

    place = Place(waits_while="queue {queue!r} is empty")
    reads = ()

    def _move(self, request: Request) -> None:
        request["result"] = self.queue.get(lambda: self._left_s(request))["data"]

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Take one item per request; put back what was taken for those that were over before the batch is."""
        outcomes = super().forward(batch)
        for request in reversed(batch):
            asks = self.context.request
            if "result" in request and asks.unwanted(asks.keep(request)):
                self.queue.put_back({"data": request.pop("result")})
        return outcomes
