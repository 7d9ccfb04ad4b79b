"""Threads that run batches (callers, the runners of a node), and cycles of threads that wait for each other.

A thread whose backend calls its own pipeline waits while it holds an instance. A thread that would wait for
the instance that it holds itself is refused on entry (`admission.held_here`). A cycle of two threads takes a
search: thread A holds an instance of node a and waits at node b, where thread B holds the instance and is
about to wait at node a.

Each thread first notes in `waiting` that it waits, and searches then. If A searches before B notes, then B
searches after A has noted, and finds A. If B notes before A searches, A finds B. So the thread that notes
last always finds the cycle. The search reads instances without the locks of their nodes: the instances in
a cycle do not change.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace._scheduling.calls import calls_run, reset, served_by, serving
from headrace._scheduling.locks import Signal
from headrace._scheduling.own_thread import OwnThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance

    Worker: TypeAlias = OwnThread
    """A thread that runs what waits, for others: a runner, or the thread that owns an instance."""

    Place: TypeAlias = tuple["NodeView", object]
    """A node, and the entry or the owner of entries that waits or runs there; None for neither yet."""


class NodeView(Protocol):
    """A node, as far as `headrace._scheduling.threads` looks at it.

    Attributes:
        name, instances: Its name, and the instances in service.
        every: The instances in service, and the retired ones whose last batch has not ended.
    """

    name: str
    instances: list[Instance]
    every: list[Instance]


class Work(NamedTuple):
    """A batch that was cut, with the instance that was claimed for it."""

    instance: Instance
    entries: list[Entry]


kept_signals: dict[int, Signal | None] = {}
"""Per thread the signal that it slept on last, kept for its next wait; taken out while the thread waits."""


class Blocked:
    """A thread that waits for the outcome of its own requests.

    Attributes:
        ident: Identifier of the thread.
    """

    __slots__ = ()
    ident: int

    def took_outcome(self, entry: Entry, afterwards: deque[Callable[[], object]]) -> bool:
        """Take the outcome of an entry of this thread, under the lock of its node.

        Functions that this appends to ``afterwards`` are called once the lock is left.

        Returns:
            False where the owner of the entry must still be notified, once the lock is left.
        """
        return False


@dataclass(eq=False, slots=True)
class Caller(Blocked):
    """A thread that waits for the outcome of its own requests and may run batches meanwhile.

    Attributes:
        ident: Identifier of the thread.
        runs: Whether the thread may run batches: not with a deadline.
        pending: How many of its requests have no outcome yet.
        parked: Whether the thread sleeps, so that work may be given to it.
        nudged: Whether the thread was woken to look for a free instance itself.
        work: Work given to the thread while it slept.
        wake_at: When the thread, without a timer, is to look at the queue again; None for never.
        node: The node at which the thread waits.
        depth: How many batches the thread ran as it began to wait.
        foreign_until: End of the time that the thread may spend on batches of others; None before the first.
        signal: Wakes the thread; a signal that comes late wakes the thread from its next sleep, and the
            thread looks and sleeps on.

    While the thread waits, these are changed only under the lock of the node.
    """

    ident: int
    runs: bool = True
    pending: int = 0
    parked: bool = False
    nudged: bool = False
    work: Work | None = None
    wake_at: float | None = None
    node: NodeView | None = None
    foreign_until: float | None = None
    signal: Signal = field(init=False)
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        self.depth = len(batches_run.get(self.ident, ()))
        self.signal = kept_signals.pop(self.ident, None) or Signal()

    def places(self) -> tuple[Place, ...]:
        """Give the node at which the caller sleeps; none while it is awake or has work."""
        if self.node is not None and self.parked and self.pending and self.work is None:
            return ((self.node, self),)
        return ()

    def took_outcome(self, entry: Entry, afterwards: deque[Callable[[], object]]) -> bool:
        """Count one outcome; the last one wakes the caller, if it sleeps."""
        if self.pending == 1 and self.parked:
            # An exception that hits this thread here leaves the caller awake, and the outcome uncounted.
            self.signal.wake()
            self.parked = False
        self.pending -= 1
        return True

    def keep_signal(self) -> None:
        """Keep the signal for the next wait of this thread."""
        kept_signals[self.ident] = self.signal

    @property
    def done(self) -> bool:
        """Whether the caller may go without the lock: it has all outcomes, and no work or duty is left."""
        left = self.pending or self.nudged
        return not left and self.work is None and self.wake_at is None

    def has_all_in(self, work: Work) -> bool:
        """Tell whether a batch is all entries that the caller waits for, and none of others."""
        if len(work.entries) != self.pending:
            return False
        return all(entry.owner is self for entry in work.entries)

    def finished(self, entry: Entry) -> None:
        """Do nothing: a caller counts its outcomes under the lock of the node."""


class Runner(OwnThread):
    """A thread of a node that runs batches of others, on the instances that have no thread of their own."""


class Workers:
    """The runners of a node: started at the first need, parked in between, one per instance at most.

    All methods but `__init__` are called under the lock of the node.

    Args:
        name: The name of the threads.
        post: Lets a runner look at the backlog; False when its thread has ended.
        start: Has a helper start a new runner, once the lock is left.

    Attributes:
        parked: The runners that have nothing to do.
        limit: How many runners there may be: one per instance.
        backlog: Batches that no runner has taken up yet. For each batch a runner was woken or started, or
            all runners that may live are at work and look here next. The runner that looks first takes
            the oldest batch.
    """

    def __init__(
        self, name: str, limit: int, post: Callable[[Runner], bool], start: Callable[[Runner], None]
    ) -> None:
        self.parked: list[Runner] = []
        self.backlog: deque[Work] = deque()
        self.limit = limit
        self._name = name
        self._post = post
        self._start = start
        self._alive: set[Worker] = set()

    def give(self, work: Work) -> None:
        """Let a runner run ``work``."""
        work.instance.holder = self.backlog
        self.backlog.append(work)
        self.call_one()

    def call_one(self) -> None:
        """Let one more runner look at the backlog: a parked one, else a new one below the limit."""
        while self.parked:
            runner = self.parked[-1]
            posted = self._post(runner)
            self.parked.pop()  # as late as this: an exception that hits this thread loses no runner
            if posted:
                return
            self._alive.discard(runner)
        if len(self._alive) < self.limit:
            runner = Runner(self._name)
            self._post(runner)
            self._start(runner)
            self._alive.add(runner)

    def next(self, runner: Runner, *, ends: bool) -> Work | None:
        """Give a runner the oldest batch of the backlog; where there is none the runner parks, or ends."""
        self._alive.add(runner)  # else it has begun so late that it was given up
        if runner in self.parked:  # an exception hit the thread that called it
            self.parked.remove(runner)
        if self.backlog:
            work = self.backlog[0]
            work.instance.holder = runner
            work.instance.ident = runner.ident
            self.backlog.popleft()
            return work
        if ends or len(self._alive) > self.limit:
            self._end(runner)
        else:
            self.parked.append(runner)
        return None

    def leave(self, worker: Worker) -> None:
        """Take note that the thread of a runner has died, or could not be started."""
        self._alive.discard(worker)
        self.parked = [one for one in self.parked if one is not worker]

    def trim(self, limit: int) -> None:
        """Change the limit; runners above it end, parked ones at once and others after their batch."""
        self.limit = limit
        while self.parked and len(self._alive) > limit:
            self._end(self.parked.pop())

    def stop(self) -> None:
        """End the runners that are parked; the other runners end after their batch."""
        while self.parked:
            self._end(self.parked.pop())

    def _end(self, runner: Runner) -> None:
        self._alive.discard(runner)
        runner.stop()


batches_run: dict[int, tuple[Sequence[Entry], ...]] = {}
"""Per thread the batches from queues that it runs, the innermost first."""


def waited_for(ident: int) -> bool:
    """Tell whether another thread may wait for the batch or the call that thread ``ident`` runs now."""
    return bool(batches_run.get(ident)) or ident in calls_run


Served = dict[int, "tuple[Sequence[Entry], ...] | None"]
"""Per thread that waits for a batch of this thread, the batches that it runs inside of that wait.

None for this thread, and those that wait for a call: they give nothing back before the call has ended.
"""


def served_here(ident: int) -> Served:
    """Give thread ``ident`` and all threads that wait for a batch or a call that it runs now.

    A thread that waits in a queue may run batches meanwhile, one inside the other. Those that it has begun since
    it waits, all above its `Caller.depth`, can end while it goes on waiting; the earlier ones cannot.
    """
    found: Served = {}
    left: list[tuple[int, int | None]] = [(ident, None)]
    while left:
        waiter, depth = left.pop()
        for thread in served_by(waiter) - found.keys():
            batches = batches_run.get(thread, ())  # the one that was begun last comes first
            for_call = depth is None or thread != waiter
            inside = 0 if for_call else max(0, len(batches) - (depth or 0))
            found[thread] = None if for_call else batches[:inside]
            owners = [entry.owner for entries in batches[inside:] for entry in entries]
            left += [(o.ident, getattr(o, "depth", None)) for o in owners if isinstance(o, Blocked)]
    return found


def held_by(served: Served, instance: Instance) -> bool:
    """Tell whether one of these threads holds an instance while it waits; not for a batch inside of that wait."""
    ident, entries, holder = instance.ident, instance.entries, instance.holder
    if holder is None or ident not in served:
        return False
    inside = served[ident]
    if inside is None:
        return True
    # A caller takes its batch out of `batches_run` a moment before it gives the instance back: that batch is over.
    if isinstance(holder, Caller) and holder.depth >= len(batches_run.get(ident, ())):
        return False
    return not any(entries is b or any(one.request is holder for one in b) for b in inside)


class Waiter(Protocol):
    """What a thread waits for."""

    def places(self) -> Sequence[Place]:
        """Give all places for which the thread waits; none while it is awake."""


_ident = attrgetter("ident")

waiting: dict[int, Waiter] = {}
"""Per thread, by its identifier, what it waits for; where one wait is inside another, the innermost."""


@contextmanager
def noted(waiter: Waiter) -> Iterator[None]:
    """Note that the calling thread waits, so that the searches of other threads find it."""
    me = get_ident()
    outer = waiting.get(me)
    waiting[me] = waiter
    try:
        yield
    finally:
        reset(waiting, me, outer)


def may_be_cycle(node: NodeView) -> bool:
    """Tell whether a thread that holds an instance of a node sleeps until another thread acts.

    A caller that runs a batch while it waits counts as awake. This runs for every request that is queued.
    """
    if waiting.keys().isdisjoint(map(_ident, node.every)) and not calls_run:
        return False
    waits_for_call = {call.caller for call in calls_run.copy().values()}
    asked = [i for i in map(_ident, node.every) if i in waiting or i in waits_for_call]
    return any(map(_needs, asked))


def cycle_of(waiter: Waiter, ident: int | None = None) -> str | None:
    """Give the name of the node at which a thread would wait for ever, None for none.

    The thread waits in a cycle when threads that wait as well hold all instances that could serve it, and
    one of those threads is this thread, or waits for it.

    Args:
        waiter: What the thread waits for.
        ident: The thread; None for the calling one.
    """
    places = waiter.places()
    if not any(may_be_cycle(node) for node, _ in places):
        return None  # every thread that holds an instance is at work
    for node, what in places:
        search = _Search(served_here(ident or get_ident()))
        if search.blocked(node, what) and search.reached:
            return node.name
    return None


class _Search:
    """A search from node to node for threads that wait.

    Attributes:
        reached: Whether the search came to the thread that searches, or to a thread that waits for it.
    """

    def __init__(self, mine: Served) -> None:
        self.reached = False
        self._mine = mine
        self._stuck: dict[int, bool] = {}

    def blocked(self, node: NodeView, what: object) -> bool:
        """Tell whether an entry, or an owner's entries, can never end at a node where they wait or run."""
        running = [one for one in node.every if what is not None and _runs(one, what)]
        if running:
            return any(self._held(one) for one in running)
        return all(self._held(one) for one in node.instances)

    def _held(self, instance: Instance) -> bool:
        mine = instance.ident in self._mine
        holds = held_by(self._mine, instance) if mine else instance.holder is not None
        return holds and self._waits(instance.ident)

    def _waits(self, ident: int) -> bool:
        """Tell whether a thread waits for ever; True for a thread that the search is still looking at."""
        if ident in self._mine:
            self.reached = True
            return True
        if ident not in self._stuck:
            self._stuck[ident] = True
            self._stuck[ident] = any(self.blocked(*place) for place in _needs(ident))
        return self._stuck[ident]


def _needs(ident: int) -> list[Place]:
    """Give the places for which a thread waits, and those for which threads wait that run its calls."""
    waiters = [waiting.get(one) for one in (ident, *serving(ident))]
    return [place for waiter in waiters if waiter is not None for place in waiter.places()]


def _runs(instance: Instance, what: object) -> bool:
    return any(entry is what or entry.owner is what for entry in instance.entries or ())
