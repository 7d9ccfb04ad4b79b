"""Queue, Send, Recv, Observer: bounded queues between the nodes of one pipeline."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from headrace._build.callees import select
from headrace._checked import Answers, Filler, Outcomes
from headrace._options import Options as _Options
from headrace._plan.element import Element, elements_of
from headrace._plan.word import Use, Word
from headrace._portable import none_if_all_ok
from headrace._scheduling.batch import entry_here
from headrace._scheduling.entry import DONE, Entry
from headrace.errors import ClosedError, DeadlineExceededError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import InitContext
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace.keys import Request

__all__ = ["Observer", "Queue", "Recv", "Send"]

_DEFAULT_MAX = 64
"""How many requests a queue holds when no ``Queue(...)`` declares it."""


class NamedQueue:
    """A bounded first-in first-out queue of shallow copies of requests.

    Attributes:
        max: How many requests it holds.
        dropped: How many requests an Observer has dropped.
    """

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.max = most
        self.dropped = 0
        self._items: deque[Request] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    def put(self, item: Request, entry: Entry | None) -> None:
        """Append ``item`` for the request of ``entry``; wait while the queue is full, or drop its oldest for None.

        Raises:
            DeadlineExceededError: The request was over first.
            ClosedError: The pipeline was closed.
        """
        with self._changed:
            if entry is not None:
                self._wait(lambda: len(self._items) < self.max, entry, "full")
            elif len(self._items) >= self.max:
                self._items.popleft()
                self.dropped += 1
            self._items.append(item)
            self._changed.notify_all()

    def put_back(self, item: Request) -> None:
        """Put an item that was taken out back to the front."""
        with self._changed:
            self._items.appendleft(item)
            self._changed.notify_all()

    def get(self, entry: Entry) -> Request:
        """Take the oldest item for the request of ``entry``; wait while there is none.

        Raises:
            DeadlineExceededError: The request was over first.
            ClosedError: The pipeline was closed and the queue is empty.
        """
        with self._changed:
            self._wait(lambda: bool(self._items), entry, "empty")
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """End all waits; what is in the queue can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], entry: Entry, why: str) -> None:
        # For a request that was cancelled, or whose deadline has passed, no item may be taken or put: the
        # caller has the error already, and an item taken for it would be lost.
        while True:
            left = inf if entry.deadline is None else entry.deadline - time.monotonic()
            if left <= 0 or entry.state == DONE:
                what = f"the time of the request was over while queue {self.name!r} was {why}"
                raise DeadlineExceededError(what)
            if ready():
                return
            if self._closed:
                raise ClosedError(f"the pipeline was closed while queue {self.name!r} was {why}")
            self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def statistics(self) -> dict[str, int]:
        """Return how many requests wait, how many may wait, and how many were dropped."""
        with self._changed:
            return {"waiting": len(self._items), "max": self.max, "dropped": self.dropped}


class QueueUser(Word):
    """Base of the words that use a queue of the pipeline.

    Attributes:
        waits_while: The state of the queue ("full", "empty") in which this word waits and holds its instance;
            None for a word that never waits.
    """

    _reaches_out = True
    _reentrant = True

    class Options(_Options):
        """Options of Send, Recv and Observer."""

        positional = ("queue",)
        queue: str = Field(description="Name of the queue.")

    waits_while: ClassVar[str | None] = None
    _queue: NamedQueue

    @classmethod
    def _waits(cls, element: Element) -> str | None:
        """Name the queue, and the state of it in which the word waits."""
        queue, why = getattr(element.options, "queue", None), cls.waits_while
        return f"holds its instance while queue {queue!r} is {why}" if why and queue else None

    def _prepare(self, building: ElementBuilder, element: Element, at: BuildSite) -> None:
        """Find the queue; the first word that asks for it makes it, in the size that a node declares."""
        queues: dict[str, Any] = building.commons.queues
        name = element.options.queue  # type: ignore[union-attr]
        if name not in queues:
            every = elements_of([element, *building.build.plan.roots])
            known: list[Any] = [one for one in every if one.cls is Queue]
            sizes = [one.options.max for one in known if one.options.queue == name]
            # `setdefault` is one step of the interpreter: two threads that build at a time get one queue.
            queues.setdefault(name, NamedQueue(name, next(iter(sizes), _DEFAULT_MAX)))
        self._queue = queues[name]

    def describe(self) -> dict[str, Any]:
        """Return the queue, whether this word waits for it, and how many requests it has dropped."""
        queue, waits = self._queue, self.waits_while is not None
        return {
            "queue": queue.name,
            "queue_max": queue.max,
            "waits": waits,
            "dropped": queue.dropped,
        }


class Queue(QueueUser):
    """Declare a bounded queue of this pipeline: ``Queue(q,max=64)``, in the ``init`` of a node.

    A queue that is not declared holds 64 requests. The word cannot be called.

    Reads:
        Nothing.
    Writes:
        Nothing.
    Batch:
        None: it cannot be called.

    Raises:
        ContractError: It was called.
    Source:
        own
    Example:
        ``{"data": "abc", "node_name": "out"}`` gives ``"abc"``::

            [out]
            backend = "Send(q)"
            init = "List[Queue(q,max=8),InstancesRegister[Reflect[backend]],Register[DI[Batching,InstanceDispatcher]]]"
    """

    class Options(QueueUser.Options):
        """Options of Queue."""

        max: int = Field(_DEFAULT_MAX, ge=1, description="How many requests it holds.")

    reads = ()
    writes = ()
    _why_not_callable = "only declares a queue"
    _not_callable_hint = "It belongs in the init of a node."

    @classmethod
    def _check(cls, use: Use) -> None:
        """Check that no other word declares the queue in another size."""
        options: Any = use.element.options
        if options is None or use.scope.lenient:
            return
        most = use.planning.queues.setdefault(options.queue, options.max)
        if most != options.max:
            what = f"queue {options.queue!r} is declared with max={most} and with max={options.max}"
            use.add("twice", what, hint="Declare it once, in the init of one node.")

    def init(self, options: Any, context: InitContext) -> None:
        """Check that a reload leaves the size of the queue as it is.

        Raises:
            SetupError: The queue is there already, in another size.
        """
        if self._queue.max != options.max:
            holds = self._queue.max
            what = f"queue {options.queue!r} holds {holds}, which a reload does not change"
            raise SetupError(what, hint="Build the pipeline again.")


class _Mover(QueueUser, ABC):
    """Base of the words that put each request of a batch into a queue, or take one out for it."""

    @abstractmethod
    def _move(self, request: Request, entry: Entry) -> None:
        """Use the queue for one request, that of ``entry``."""

    def forward(self, batch: list[Request]) -> Outcomes:
        """Use the queue for one request after the other.

        The fillers (`headrace._checked.Filler`) at the end get the ``result`` of the last item, and are not queued.
        """
        entry = entry_here()
        outcomes: Answers = [None] * len(batch)
        items = [i for i, request in enumerate(batch) if not isinstance(request, Filler)]
        select(batch, items, lambda one: self._move(one, entry(one)), outcomes)
        fillers = batch[len(items) :] if items else []
        for filler in fillers:
            if "result" in batch[items[-1]]:
                filler["result"] = batch[items[-1]]["result"]
        return none_if_all_ok(outcomes)


class _Sender(_Mover):
    """Base of the words that put copies of requests into a queue while their batch runs, and let them pass."""

    def _prepare(self, building: ElementBuilder, element: Element, at: BuildSite) -> None:
        """Find the queue, and register as an exit of the batch."""
        super()._prepare(building, element, at)
        at.end.exit(self, element)

    def _move(self, request: Request, entry: Entry) -> None:
        self._queue.put(dict(request), None if self.waits_while is None else entry)
        request["result"] = request["data"]


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
        DeadlineExceededError: The time of the request was over while the queue was full.
        ClosedError: The pipeline was closed while the queue was full.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "S[Upper,Send(q)]"
    """

    waits_while = "full"


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
        Nothing.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "S[Upper,Observer(q)]"
    """


class Recv(_Mover):
    """Take the next request out of a queue: its ``data`` becomes ``result``: ``Recv(q)``.

    While the queue is empty, Recv waits and holds its instance. The wait ends at the deadline of the
    request and when the pipeline is closed. A request that was cancelled, or is over, takes nothing out:
    what is sent next is for the request after it.

    Reads:
        Nothing.
    Writes:
        result: The ``data`` of the request that was sent.
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

    waits_while = "empty"
    reads = ()

    def _move(self, request: Request, entry: Entry) -> None:
        request["result"] = self._queue.get(entry)["data"]

    def forward(self, batch: list[Request]) -> Outcomes:
        """Take one item per request; put back what was taken for those that were over before the batch is."""
        outcomes = super().forward(batch)
        entry = entry_here()
        for request in reversed(batch):
            if entry(request).state == DONE and "result" in request:
                self._queue.put_back({"data": request.pop("result")})
        return outcomes
