"""Queue, Send, Recv, Observer: bounded queues between the nodes of one pipeline."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from headrace._build.callees import select
from headrace._checked import Filler
from headrace._options import Options as _Options
from headrace._plan.element import Element, elements_of
from headrace._plan.word import Word
from headrace._portable import unless_all_well
from headrace._scheduling.batch import terms_here
from headrace._scheduling.locks import taking
from headrace.errors import ClosedError, DeadlineExceededError, SetupError

if TYPE_CHECKING:
    from headrace._backend import InitContext
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import At
    from headrace._checked import Answers, Outcomes
    from headrace._plan.word import Use
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
        """Append ``item``; when the queue is full, drop the oldest item first and count it."""
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
        """End all waits; what is in the queue can still be taken."""
        with taking(self._changed):
            self._closed = True
            self._changed.notify_all()

    def _wait(self, ready: Any, deadline: float | None, why: str) -> None:
        late = False
        # A thread that has waited past the deadline must not take or put an item: the caller has the
        # DeadlineExceededError already, and an item taken for it would be lost.
        while late or not ready():
            if self._closed:
                raise ClosedError(f"the pipeline was closed while queue {self.name!r} was {why}")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                what = f"the time of the request was over while queue {self.name!r} was {why}"
                raise DeadlineExceededError(what)
            self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            late = deadline is not None and time.monotonic() >= deadline

    def statistics(self) -> dict[str, int]:
        """Give how many requests wait, how many may wait, and how many were dropped."""
        with taking(self._changed):
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

    def _prepare(self, building: ElementBuilder, element: Element, at: At) -> None:
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
        """Give the queue, and whether this word waits for it."""
        waits = self.waits_while is not None
        return {"queue": self._queue.name, "queue_max": self._queue.max, "waits": waits}


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
            what = (
                f"queue {options.queue!r} holds {self._queue.max}, which a reload does not change"
            )
            raise SetupError(what, hint="Build the pipeline again.")


class _Mover(QueueUser, ABC):
    """Base of the words that put each request of a batch into a queue, or take one out for it."""

    @abstractmethod
    def _move(self, request: Request, deadline: float | None) -> None:
        """Use the queue for one request; a wait ends at ``deadline``, in seconds of `time.monotonic`."""

    def forward(self, batch: list[Request]) -> Outcomes:
        """Use the queue for one request after the other.

        The fillers (`headrace._checked.Filler`) at the end get the ``result`` of the last item, and are not queued.
        """
        terms = terms_here()
        outcomes: Answers = [None] * len(batch)
        items = [i for i, request in enumerate(batch) if not isinstance(request, Filler)]
        select(batch, items, lambda one: self._move(one, terms(one)[0]), outcomes)
        for filler in batch[len(items) :] if items else ():
            if "result" in batch[items[-1]]:
                filler["result"] = batch[items[-1]]["result"]
        return unless_all_well(outcomes)


class _Sender(_Mover):
    """Base of the words that put copies of requests into a queue while their batch runs."""

    def _prepare(self, building: ElementBuilder, element: Element, at: At) -> None:
        """Find the queue, and register as an exit of the batch."""
        super()._prepare(building, element, at)
        at.end.exit(self, element)


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

    def _move(self, request: Request, deadline: float | None) -> None:
        self._queue.put(dict(request), deadline)
        request["result"] = request["data"]


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

    def _move(self, request: Request, deadline: float | None) -> None:
        self._queue.put_newest(dict(request))
        request["result"] = request["data"]

    def describe(self) -> dict[str, Any]:
        """Give the queue, and how many requests it has dropped."""
        queue = self._queue
        return {"queue": queue.name, "queue_max": queue.max, "dropped": queue.dropped}


class Recv(_Mover):
    """Take the next request out of a queue: its ``data`` becomes ``result``: ``Recv(q)``.

    While the queue is empty, Recv waits and holds its instance. The wait ends at the deadline of the
    request and when the pipeline is closed.

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

    def _move(self, request: Request, deadline: float | None) -> None:
        request["result"] = self._queue.get(deadline)["data"]
