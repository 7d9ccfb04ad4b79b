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
from itertools import chain, islice
from typing import TYPE_CHECKING, Generic, TypeVar

from headrace._scheduling.entry import QUEUED, Quota

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Collection, Iterable, Iterator

    from headrace._scheduling.entry import Entry

    Evict = Callable[[Entry, BaseException], None]
    """Fails an entry that waits at a node, if it still waits there."""

Item = TypeVar("Item")


class ByPriority(Generic[Item]):
    """Items, greater priority first and equals in the order in which they came.

    Every operation costs O(1), however many there are; the number of priorities costs its logarithm.

    Attributes:
        count: How many there are.
    """

    __slots__ = ("_levels", "_priorities", "count")

    def __init__(self) -> None:
        # Only a level that is alone may be empty: it stays for those who come next.
        self._levels: dict[int, OrderedDict[Item, None]] = {}
        self._priorities: list[int] = []  # ascending
        self.count = 0

    def add(self, item: Item, priority: int) -> None:
        """Put ``item`` behind all of its priority."""
        level = self._levels.get(priority)
        if level is None:
            if not self.count:
                self._levels.clear()
                self._priorities.clear()
            level = self._levels[priority] = OrderedDict()
            insort(self._priorities, priority)
        level[item] = None
        self.count += 1

    def discard(self, item: Item, priority: int) -> None:
        """Take ``item`` out, wherever it stands; one that is not there is passed by."""
        level = self._levels.get(priority)
        if level is None or item not in level:
            return
        del level[item]
        self.count -= 1
        if not level and self.count:
            del self._levels[priority]
            del self._priorities[bisect_left(self._priorities, priority)]

    def ascending(self) -> Iterator[Item]:
        """Give the items, lowest priority first and of each the first first."""
        return chain.from_iterable(self._levels[p] for p in self._priorities)

    def __iter__(self) -> Iterator[Item]:
        if len(self._levels) == 1:
            (level,) = self._levels.values()
            return iter(level)
        return chain.from_iterable(self._levels[p] for p in reversed(self._priorities))


class RequestQueue(ByPriority["Entry"]):
    """Entries that wait.

    Args:
        evict: Fails one of them to make room at the node at which its request entered.
        afterwards: Called once the lock of the node is left.

    Attributes:
        guests: How many of them do not count here, but where their request entered: they have `waits`.
        weight: Sum of their weights.
    """

    __slots__ = ("_afterwards", "_arrived", "_evict", "guests", "weight")

    def __init__(self, evict: Evict, afterwards: deque[Callable[[], object]]) -> None:
        super().__init__()
        self._evict = evict
        self._afterwards = afterwards
        self._arrived: OrderedDict[Entry, None] = OrderedDict()  # whatever their priority
        self.guests = 0
        self.weight = 0

    def push(self, entry: Entry) -> None:
        """Put ``entry`` behind all of its priority."""
        level = self._levels.get(entry.priority)
        if level is None:
            self.add(entry, entry.priority)
        else:  # as `add`, without a call: most requests have the priority of others
            level[entry] = None
            self.count += 1
        self._arrived[entry] = None
        entry.state = QUEUED
        self.weight += entry.weight
        if entry.waits is not None:
            self.guests += 1
            entry.waits.began(entry, self._evict)

    def remove(self, entries: Iterable[Entry]) -> None:
        """Take ``entries`` out, wherever they stand; those that are not there are passed by."""
        arrived, levels = self._arrived, self._levels
        for entry in entries:
            if entry not in arrived:
                continue
            del arrived[entry]
            level = levels[entry.priority]
            if len(level) > 1:  # as `discard`, without a call
                del level[entry]
                self.count -= 1
            else:
                self.discard(entry, entry.priority)
            self.weight -= entry.weight
            if entry.waits is not None:
                self.guests -= 1
                let_in = entry.waits.ended(entry)
                if let_in is not None:
                    self._afterwards.append(let_in)

    def head(self, count: int) -> list[Entry]:
        """Give the first ``count`` entries, which stay."""
        return list(islice(self, count))

    def oldest_of_lowest(self) -> Entry | None:
        """Give the oldest entry of the lowest priority among those that entered here."""
        if self.guests == self.count:
            return None
        return next(entry for entry in self.ascending() if entry.waits is None)

    def oldest(self) -> float:
        """Give when the first that came into the queue arrived."""
        return next(iter(self._arrived)).arrival

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._arrived


class NodeQuota(ByPriority["Waits"]):
    """The requests that entered at a node and wait at others. Changed under its `lock`.

    Args:
        outside: The requests that wait for room at the node.
        let_in: Lets them in where there is room, called without any lock.

    Attributes:
        lock: Guards them; no other lock is taken while it is held.
    """

    __slots__ = ("let_in", "lock", "outside")

    def __init__(self, outside: Collection[Entry], let_in: Callable[[], object]) -> None:
        super().__init__()
        self.outside = outside
        self.let_in = let_in
        self.lock = threading.Lock()

    @property
    def lowest(self) -> int | None:
        """The lowest priority among them, None when there are none."""
        with self.lock:
            return self._priorities[0] if self.count else None

    def shed(self, priority: int) -> tuple[Entry, Evict] | None:
        """Count the oldest of the lowest priority no more, if that is ``priority`` or lower.

        Returns:
            An entry of it, and what fails that entry where it waits; None when there is no such request.
        """
        with self.lock:
            if not self.count or self._priorities[0] > priority:
                return None
            return next(self.ascending()).leave()


class Waits(Quota):
    """The entries of one request that count as one against the bound of the node it entered at."""

    __slots__ = ("_entries", "_home", "_priority", "entered")

    def __init__(self, home: NodeQuota, *, entered: bool) -> None:
        self._home = home
        self.entered = entered
        self._priority: int  # that of the first of its entries
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
