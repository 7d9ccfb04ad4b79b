"""The queue of a node, what happens where it is full, and the quota of its requests that wait at other nodes.

The queue gives entries of greater priority first, and those of one priority in order of arrival. A request
counts against the bound of the node at which it entered, wherever its entries wait. The elements of a list
and the branches of a graph count together as that one request. An entry that a backend hands to another
node counts nowhere, for its request runs.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal

from headrace._scheduling.entry import ENTERED, QUEUED, Quota

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from headrace._scheduling.entry import Entry

    Evict = Callable[[Entry, BaseException], None]
    """Fails an entry that waits at a node, if it still waits there."""

    Level = OrderedDict[Entry, None]
    """Entries in the order in which they came."""

QueueFull = Literal["wait", "reject", "shed_oldest"]
"""The values of the node key ``queue_full``: what becomes of a request that finds the queue full."""


class RequestQueue:
    """The QUEUED entries: greater priority first, entries of one priority in the order in which they came.

    Every operation costs O(1), however many entries wait; the number of priorities costs its logarithm, and `oldest`
    looks at each. An entry may leave from the middle: with an `OrderedDict` that costs no more than at the front.

    Args:
        evict: Fails an entry here, to make room at the node at which its request entered.
        afterwards: The functions that are called once the lock of the node is left.

    Attributes:
        count: How many entries wait.
        counted_elsewhere: How many of the entries count elsewhere, by their `quota`, and not in this queue.
        weight: Sum of the weights of the entries.
    """

    def __init__(self, evict: Evict, afterwards: list[Callable[[], object]]) -> None:
        self._evict = evict
        self._afterwards = afterwards
        # A level per priority. Only one that is alone may be empty: it is kept for the next entries.
        self._levels: dict[float, Level] = {}
        self._priorities: list[float] = []  # ascending
        self.count = self.counted_elsewhere = self.weight = 0

    def push(self, entry: Entry) -> None:
        """Put ``entry`` behind all entries of its priority; one that a backend has kept goes before those that have not begun."""
        priority = entry.priority if entry.held is None else entry.priority + 0.5
        level = self._levels.get(priority)
        if level is None:
            level = self._new_level(priority)
        level[entry] = None
        entry.state = QUEUED
        self.count += 1
        self.weight += entry.weight
        if entry.quota is not None:
            self.counted_elsewhere += 1
            entry.quota.began(entry, self._evict)

    def _new_level(self, priority: float) -> Level:
        if not self.count:
            self._levels.clear()
            self._priorities.clear()
        insort(self._priorities, priority)
        level: Level = OrderedDict()
        self._levels[priority] = level
        return level

    def remove(self, entries: Iterable[Entry], state: str = ENTERED) -> None:
        """Remove ``entries``, which get ``state``; an entry that is not in the queue is skipped."""
        levels = self._levels
        for entry in entries:
            if entry.state != QUEUED:
                continue
            entry.state = state
            priority = entry.priority if entry.held is None else entry.priority + 0.5
            level = levels[priority]
            del level[entry]
            self.count -= 1
            self.weight -= entry.weight
            if not level and self.count:
                del levels[priority]
                del self._priorities[bisect_left(self._priorities, priority)]
            if entry.quota is not None:
                self.counted_elsewhere -= 1
                enqueue = entry.quota.ended(entry)
                if enqueue is not None:
                    self._afterwards.append(enqueue)

    def __iter__(self) -> Iterator[Entry]:
        if len(self._levels) == 1:
            (level,) = self._levels.values()
            return iter(level)
        return chain.from_iterable(self._levels[p] for p in reversed(self._priorities))

    def head(self, count: int) -> list[Entry]:
        """Return the first ``count`` entries, which stay in the queue."""
        if count == 1 and len(self._levels) == 1:
            (level,) = self._levels.values()
            return [next(iter(level))]
        return list(islice(self, count))

    def oldest_of_lowest(self) -> Entry | None:
        """Return the oldest entry of the lowest priority, of the requests that entered here; None for none."""
        if self.counted_elsewhere == self.count:
            return None
        levels = (self._levels[priority] for priority in self._priorities)
        return next(entry for entry in chain.from_iterable(levels) if entry.quota is None)

    def oldest(self) -> float:
        """Return the arrival of the entry that has been in the queue longest, whatever its priority."""
        return min([next(iter(level)).arrival for level in self._levels.values()])


class NodeQuota:
    """The requests that entered at a node and wait at other nodes.

    Args:
        outside: The entries that wait for room at the node.
        enqueue: Lets entries of ``outside`` in where there is room; called without any lock.

    Attributes:
        waiting: The requests, each as the `RequestQuota` of its entries.
        lock: Guards every `RequestQuota`; a thread that holds it takes no other lock.
    """

    def __init__(self, outside: Collection[Entry], enqueue: Callable[[], object]) -> None:
        self.outside = outside
        self.enqueue = enqueue
        self.waiting: dict[RequestQuota, None] = {}  # in the order in which they came
        self.lock = threading.Lock()

    def shed(self, priority: int) -> tuple[Entry, Evict] | None:
        """Stop counting the oldest request of the lowest priority, if that is ``priority`` or lower.

        Returns:
            An entry of the request, and the function that fails this entry where it waits; None where no
            request has such a priority.
        """
        with self.lock:
            lowest = min(self.waiting, key=lambda one: one.priority, default=None)
            return None if lowest is None or lowest.priority > priority else lowest.leave()


class RequestQuota(Quota):
    """The entries of one request, which count as one against the bound of the node where it entered."""

    priority: int  # of the first of its entries

    def __init__(self, home: NodeQuota, *, entered: bool) -> None:
        self._home = home
        self.entered = entered
        self._entries: dict[Entry, Evict] = {}

    def began(self, entry: Entry, evict: Evict) -> None:
        """Take note that an entry waits at a node."""
        self.entered = True
        home, entries = self._home, self._entries
        with home.lock:
            if not entries:
                self.priority = entry.priority
                home.waiting[self] = None
            entries[entry] = evict

    def ended(self, entry: Entry) -> Callable[[], object] | None:
        """Take note that an entry waits no more; an entry that `leave` has dropped changes nothing.

        Returns:
            The function that lets entries in at the node where the request entered, if any wait for room.
        """
        home, entries = self._home, self._entries
        with home.lock:
            if entries.pop(entry, None) is not None and not entries:
                del home.waiting[self]
        return home.enqueue if home.outside else None

    def leave(self) -> tuple[Entry, Evict]:
        """Stop counting all entries; give one, and the function that fails it. Under the quota's lock."""
        found = next(iter(self._entries.items()))
        self._entries.clear()
        del self._home.waiting[self]
        return found
