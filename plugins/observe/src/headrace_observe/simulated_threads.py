"""Decides which thread runs a batch on the virtual clock, and which requests join the batch before it begins.

Threads take turns in the order in which the real scheduler wakes them: a thread goes on until it sleeps, then the
threads that it has woken run, each for no time or for one that was measured. The order decides which request joins
which batch:

- A client that has run a batch sends its next request before the clients that it has answered wake up to send theirs.
- A batch that was given to a sleeping client begins when that client has woken up, and includes the requests that
  arrived meanwhile.
- A runner goes on with the requests that wait, before the clients that it has answered send further ones.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace_observe.simulated_node import OVER, RUNS, SUSTAINED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_observe.simulated_node import Item, SimulatedNode

__all__ = ["RUNNER", "Batch", "Request", "Threads"]

RUNNER: Final = "runner"
"""The thread of a runner, or an instance's own thread."""


class Request:
    """One request in the pipeline.

    Attributes:
        sent: When the request was sent, in seconds.
        called: Whether a client waits for the answer; it may run batches meanwhile.
        missing: For each join, the number of branches that have not reached it yet.
        elements: For each node with ``each``, the number of the request's elements that have not ended.
        open: The number of nodes (with ``each``: of elements) at which the request is; far below 0 once it has failed.
        waits: The number of items of the request that wait in queues.
        like: Which of the sample requests it is like, for policies that pick; counted from 0.
        reposted: How often `Repost` has sent it to another node.
    """

    __slots__ = ("called", "elements", "like", "missing", "open", "reposted", "sent", "waits")

    def __init__(self, sent: float, *, called: bool = False, like: int = 0) -> None:
        self.sent = sent
        self.called = called
        self.like = like
        self.missing: dict[str, int] | None = None
        self.elements: dict[str, int] | None = None
        self.open = 0
        self.waits = 0
        self.reposted = 0


class Batch:
    """A batch that was cut, its instance, and the thread that runs it.

    Attributes:
        instance: The instance that runs the batch.
        items: The items of the batch.
        leader: The thread that runs the batch: the request of a client's thread, or `RUNNER`.
        seconds: How long the batch runs.
        ends: When it ends, in seconds; its machine may go before.
        own: The number of the leading request's elements that have ended in batches that its client ran before.
    """

    __slots__ = ("ends", "instance", "items", "leader", "own", "seconds")

    def __init__(self, instance: Any, items: list[Item], leader: Request | str | None) -> None:
        self.instance = instance
        self.items = items
        self.leader = leader
        self.seconds = self.ends = 0.0
        self.own = 0


class Threads(ABC):
    """The work of threads between the starts and the ends of batches.

    Args:
        draw: Gives random numbers from 0 to below 1.
        wake_s: See `headrace_observe.simulation.Simulation`.

    Attributes:
        ready: For each woken thread, in order, the function with which it goes on; it is called with the time.
    """

    def __init__(self, draw: Callable[[], float], wake_s: float) -> None:
        self.ready: deque[Callable[[float], None]] = deque()
        self._draw, self._wake_s = draw, wake_s
        self._wakes_s: Sequence[float] = ()
        self._turns_s: Sequence[float] = ()
        self._turn_ends = 0.0

    # `Simulation` defines these methods.

    @abstractmethod
    def _start(self, node: SimulatedNode, batch: Batch, now: float) -> None:
        """Begin a batch now."""

    @abstractmethod
    def _refuse(self, node: SimulatedNode, items: list[Item], now: float) -> None:
        """Fail the items of a batch whose size may not run."""

    @abstractmethod
    def _begun(self, items: list[Item], node: SimulatedNode, now: float) -> None:
        """Record that items have left the queue of a node for a batch."""

    @abstractmethod
    def _left(
        self, name: str, request: Request, now: float, me: Request | None, count: int = 1
    ) -> None:
        """Let a request go on from a node at which ``count`` of its elements have ended.

        ``me`` is the request itself if the thread of its own client does this, else None.
        """

    @abstractmethod
    def _goes_on(self, name: str) -> bool:
        """Return whether nodes follow this one; a worker then moves its requests on to them itself."""

    @abstractmethod
    def _again(self, node: SimulatedNode, item: Item, now: float) -> bool:
        """Let an item whose batch has ended wait for its next step, or fail it at its last; False where it is answered."""

    @abstractmethod
    def _at(self, at: float, goes_on: Callable[[float], None]) -> None:
        """Let a thread go on at a time."""

    @abstractmethod
    def _wake_at(self, node: SimulatedNode, at: float, waker: Request | None) -> None:
        """Schedule another look at a node's queue."""

    # When threads go on.

    def _wake(self, now: float) -> None:
        """Let the woken threads go on: one after the other now, or each after a drawn time if threads take any."""
        while self.ready:
            self._awake(self.ready.popleft(), now)

    def _awake(self, goes_on: Callable[[float], None], now: float) -> None:
        at = now + self._waking()
        if self._turns_s:
            turn_s = self._turns_s[int(self._draw() * len(self._turns_s))]
            at = self._turn_ends = max(at, self._turn_ends) + turn_s
        if at > now:
            self._at(at, goes_on)
        else:
            goes_on(now)

    def _go_on(self, goes_on: Callable[[float], None], now: float) -> None:
        """Let a thread that is awake go on, before the threads that it has woken."""
        if self._turns_s:
            self.ready.appendleft(goes_on)
        else:
            goes_on(now)

    def _waking(self) -> float:
        """Draw the time that a thread takes to wake up, in seconds."""
        if self._wakes_s:
            return self._wakes_s[int(self._draw() * len(self._wakes_s))]
        return -self._wake_s * math.log(1 - self._draw()) if self._wake_s else 0.0

    # The work of threads.

    def _dispatch(self, node: SimulatedNode, now: float, me: Request | str | None) -> Batch | None:
        """Give every batch that is due to a thread; return the batch that the calling thread ``me`` runs itself."""
        mine: Batch | None = None
        if node.free and len(node.queue):
            planned = node.wake_at
            for instance, items in node.due(now):
                if node.rules.size_run(len(items)) is None:
                    self._refuse(node, items, now)
                    continue
                batch = Batch(instance, items, None)
                self._begun(items, node, now)
                if mine is None and self._runs(node, batch, me):
                    mine, batch.leader = batch, me
                    node.press()
                else:
                    self._give(node, batch, me)
            if node.wake_at is not None and node.wake_at != planned:
                waits = isinstance(me, Request) and me.waits > 0
                self._wake_at(node, node.wake_at, me if waits else None)  # type: ignore[arg-type]
        if node.free and not len(node.queue):
            node.relax()
        return mine

    def _runs(self, node: SimulatedNode, batch: Batch, me: Request | str | None) -> bool:
        if me is None or node.rules.owns_thread:
            return False
        if me is RUNNER:
            return True
        own = any(item.request is me for item in batch.items)
        return (own or not node.slow) and node.rules.timeout_s is None and not node.crowded

    def _give(self, node: SimulatedNode, batch: Batch, me: Request | str | None) -> None:
        """Wake a thread that is to run a batch."""
        batch.leader = RUNNER
        if not node.rules.owns_thread:
            node.press()
            sustained = node.slow and node.pressure > SUSTAINED
            if not sustained and not node.crowded and node.rules.timeout_s is None:
                asleep = (
                    i.request for i in batch.items if i.request.called and i.request is not me
                )
                batch.leader = next(asleep, RUNNER)
        self.ready.append(partial(self._begin, node, batch))

    def _begin(self, node: SimulatedNode, batch: Batch, now: float) -> None:
        """Begin a batch in a thread that has woken up; requests that arrived meanwhile join it if they may."""
        joining = node.joining(batch.items, batch.instance, now)
        if joining:
            batch.items += joining
            self._begun(joining, node, now)
        self._start(node, batch, now)
        if node.free and len(node.queue):
            self._dispatch(node, now, None)

    def _look(self, node: SimulatedNode, now: float, me: Request | None) -> None:
        """Look for batches that are due, and run one in the thread ``me`` if it may."""
        if node.free:
            mine = self._dispatch(node, now, me)
            if mine is not None:
                self._start(node, mine, now)

    def _ended(self, node: SimulatedNode, batch: Batch, now: float) -> None:
        """Return an instance, look for batches that are due, and wake the clients that have an answer."""
        node.release(batch.instance, batch.seconds, now)
        name, leader = node.rules.name, batch.leader
        answered: dict[Request, int] = {}
        for item in batch.items:
            if item.state == RUNS and self._again(node, item, now):
                continue
            if item.state == RUNS:
                answered[item.request] = answered.get(item.request, 0) + 1
            item.state = OVER
        own = batch.own
        if isinstance(leader, Request):
            own += answered.pop(leader, 0)
            node.asleep += bool(own) - bool(batch.own)
        node.asleep += sum(request.called for request in answered)
        mine = self._dispatch(node, now, leader)
        on_its_way = leader is RUNNER and self._goes_on(name)
        for request, count in answered.items():
            if not request.called or on_its_way:
                node.asleep -= request.called
                self._left(name, request, now, None, count)
            else:
                self.ready.append(partial(self._wakes, node, request, count))
        if mine is not None:
            mine.own = own
            self._start(node, mine, now)
        elif isinstance(leader, Request) and own:
            self._go_on(partial(self._wakes, node, leader, own), now)

    def _wakes(self, node: SimulatedNode, request: Request, count: int, now: float) -> None:
        node.asleep -= 1
        self._left(node.rules.name, request, now, request, count)
