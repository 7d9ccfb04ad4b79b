"""The queue of a node, and the quota of its requests that wait at other nodes.

Greater priority first, equals in order of arrival. A request counts against the bound of the node at
which it entered, wherever it waits: elements of a list and branches of a graph count as their one
request, also at the node at which it entered. What a backend hands to another node counts nowhere, for
its request runs.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from heapq import heappop, heappush, heapreplace
from itertools import chain, islice
from typing import TYPE_CHECKING

from headrace._scheduling.entry import QUEUED

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Collection, Iterable, Iterator

    from headrace._scheduling.entry import Entry

    Evict = Callable[[Entry, BaseException], None]
    """Fails an entry that waits at a node, if it still waits there."""


class RequestQueue:
    """Entries that wait; every operation costs O(1) per entry, however many wait.

    The number of different priorities costs its logarithm.

    Args:
        evict: Fails one of them to make room at the node at which its request entered.
        afterwards: Called once the lock of the node is left.

    Attributes:
        count: How many wait.
        guests: How many of them do not count here, but where their request entered: they have `waits`.
        weight: Sum of their weights.
    """

    __slots__ = (
        "_afterwards",
        "_evict",
        "_first",
        "_firsts",
        "_levels",
        "_priorities",
        "count",
        "guests",
        "weight",
    )

    def __init__(self, evict: Evict, afterwards: deque[Callable[[], object]]) -> None:
        self._evict = evict
        self._afterwards = afterwards
        self._levels: dict[int, OrderedDict[Entry, None]] = {}
        self._priorities: list[int] = []  # ascending; those with entries, or the last that had any
        # When the first of each priority arrived: a heap, and what the heap holds of each priority. A
        # value may be too early, for an entry that has left; `oldest` corrects it at the top.
        self._firsts: list[tuple[float, int]] = []
        self._first: dict[int, float] = {}
        self.count = 0
        self.guests = 0
        self.weight = 0

    def push(self, entry: Entry) -> None:
        """Put ``entry`` behind all of its priority."""
        level = self._levels.get(entry.priority)
        if not level:
            level = self._begin_level(entry)
        level[entry] = None
        entry.state = QUEUED
        self.count += 1
        self.weight += entry.weight
        if entry.waits is not None:
            self.guests += 1
            entry.waits.began(entry, self._evict)

    def _begin_level(self, entry: Entry) -> OrderedDict[Entry, None]:
        priority = entry.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = OrderedDict()
            insort(self._priorities, priority)
        if (
            len(self._firsts) > 2 * len(self._levels) + 64
        ):  # most of them are of priorities long gone
            self._first = {p: next(iter(one)).arrival for p, one in self._levels.items() if one}
            self._firsts = sorted((at, p) for p, at in self._first.items())
        known = self._first.get(priority)
        if known is None or entry.arrival < known:
            self._first[priority] = entry.arrival
            heappush(self._firsts, (entry.arrival, priority))
        return level

    def remove(self, entries: Iterable[Entry]) -> None:
        """Take ``entries`` out, wherever they stand; those that are not there are passed by."""
        for entry in entries:
            level = self._levels.get(entry.priority)
            if level is None or entry not in level:
                continue
            del level[entry]
            self.count -= 1
            self.weight -= entry.weight
            if not level and len(self._levels) > 1:  # the last one stays, for those who come next
                del self._levels[entry.priority]
                del self._priorities[bisect_left(self._priorities, entry.priority)]
            if entry.waits is not None:
                self.guests -= 1
                let_in = entry.waits.ended(entry)
                if let_in is not None:
                    self._afterwards.append(let_in)

    def head(self, count: int) -> list[Entry]:
        """Give the first ``count`` entries, which stay; at least one waits."""
        if count == 1 and len(self._levels) == 1:
            (level,) = self._levels.values()
            return [next(iter(level))]
        return list(islice(self, count))

    def oldest_of_lowest(self) -> Entry | None:
        """Give the oldest entry of the lowest priority among those that entered here."""
        if self.guests == self.count:
            return None
        own = (
            entry
            for priority in self._priorities
            for entry in self._levels[priority]
            if entry.waits is None
        )
        return next(own, None)

    def oldest(self) -> float:
        """Give when the oldest that waits arrived: equals stand in order of arrival."""
        if len(self._levels) == 1:
            return next(iter(self)).arrival
        while True:
            arrival, priority = self._firsts[0]
            level = self._levels.get(priority)
            if self._first.get(priority) != arrival:
                heappop(self._firsts)
            elif not level:
                heappop(self._firsts)
                del self._first[priority]
            else:
                actual = next(iter(level)).arrival
                if actual == arrival:
                    return arrival
                self._first[priority] = actual
                heapreplace(self._firsts, (actual, priority))

    def __iter__(self) -> Iterator[Entry]:
        if len(self._levels) == 1:
            (level,) = self._levels.values()
            return iter(level)
        return chain.from_iterable(self._levels[p] for p in reversed(self._priorities))

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._levels.get(entry.priority, ())


class NodeQuota:
    """The requests that entered at a node and wait at others.

    Args:
        outside: The requests that wait for room at the node.
        let_in: Lets them in where there is room, called without any lock.

    Attributes:
        count: How many there are.
        lock: Guards them; no other lock is taken while it is held.
    """

    __slots__ = ("_order", "_priorities", "count", "let_in", "lock", "outside")

    def __init__(self, outside: Collection[Entry], let_in: Callable[[], object]) -> None:
        self.outside = outside
        self.let_in = let_in
        self.count = 0
        self.lock = threading.Lock()
        # Per priority those that wait, the one that has waited longest first; and the priorities in
        # ascending order.
        self._order: dict[int, OrderedDict[Waits, None]] = {}
        self._priorities: list[int] = []

    def add(self, waits: Waits, priority: int) -> None:
        """Count one more. Under `lock`."""
        level = self._order.get(priority)
        if level is None:
            level = self._order[priority] = OrderedDict()
            insort(self._priorities, priority)
        level[waits] = None
        self.count += 1

    def discard(self, waits: Waits, priority: int) -> None:
        """Count one less. Under `lock`."""
        level = self._order[priority]
        del level[waits]
        if not level:
            del self._order[priority]
            del self._priorities[bisect_left(self._priorities, priority)]
        self.count -= 1

    @property
    def lowest(self) -> int | None:
        """The lowest priority among them, None when there are none."""
        with self.lock:
            return self._priorities[0] if self._priorities else None

    def shed(self, priority: int) -> tuple[Entry, Evict] | None:
        """Count the oldest of the lowest priority no more, if that is ``priority`` or lower.

        Returns:
            An entry of it, and what fails that entry where it waits; None when there is no such request.
        """
        with self.lock:
            if not self._priorities or self._priorities[0] > priority:
                return None
            return next(iter(self._order[self._priorities[0]])).leave()


class Waits:
    """The entries of one request that count as one against the bound of the node it entered at.

    Attributes:
        entered: Whether the request has been let in; no bound stops what belongs to it from then on.
    """

    __slots__ = ("_entries", "_home", "_priority", "entered")

    def __init__(self, home: NodeQuota, *, entered: bool) -> None:
        self._home = home
        self.entered = entered
        self._priority = 0
        self._entries: dict[Entry, Evict] = {}

    def began(self, entry: Entry, evict: Evict) -> None:
        """Take note that an entry waits at a node."""
        self.entered = True
        with self._home.lock:
            if not self._entries:
                self._priority = entry.priority
                self._home.add(self, entry.priority)
            self._entries[entry] = evict

    def ended(self, entry: Entry) -> Callable[[], object] | None:
        """Take note that an entry waits no more; a second time does nothing.

        Returns:
            What lets others in at the node at which the request entered, if any wait there for room.
        """
        home = self._home
        with home.lock:
            if self._entries.pop(entry, None) is not None and not self._entries:
                home.discard(self, self._priority)
        return home.let_in if home.outside else None

    def leave(self) -> tuple[Entry, Evict]:
        """Count no more, whatever waits; give one entry and what fails it. Under the lock of the quota."""
        found = next(iter(self._entries.items()))
        self._entries.clear()
        self._home.discard(self, self._priority)
        return found


class Handed:
    """Stands for the `Waits` of what a backend that runs hands to another node: no bound counts it."""

    entered = True

    def began(self, entry: Entry, evict: Evict) -> None:
        """Do nothing."""

    def ended(self, entry: Entry) -> None:
        """Do nothing."""


HANDED = Handed()
