"""The waiting line of a node: greater priority first, equals in order of arrival."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from heapq import heappop, heappush, heapreplace
from itertools import chain, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node

__all__ = ["QueueView", "WaitingLine"]


class WaitingLine:
    """Entries that wait; every operation costs O(1) per entry, however many wait.

    The number of different priorities costs its logarithm.

    Args:
        node: The node at which they wait.

    Attributes:
        count: How many wait.
        guests: How many of them do not count here, but where their request entered: they have `waits`.
        weight: Sum of their weights.
    """

    __slots__ = (
        "_first",
        "_firsts",
        "_levels",
        "_node",
        "_priorities",
        "count",
        "guests",
        "weight",
    )

    def __init__(self, node: Node) -> None:
        self._node = node
        self._levels: dict[int, OrderedDict[Entry, None]] = {}
        self._priorities: list[int] = []  # ascending, only those with entries
        # When the first of each priority arrived: a heap whose values may lie in the past, and what it
        # holds of each. They are put right when they come to the top.
        self._firsts: list[tuple[float, int]] = []
        self._first: dict[int, float] = {}
        self.count = 0
        self.guests = 0
        self.weight = 0

    def push(self, entry: Entry) -> None:
        """Put ``entry`` behind all of its priority."""
        priority = entry.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = OrderedDict()
            insort(self._priorities, priority)
            known = self._first.get(priority)
            if known is None or entry.arrival < known:
                self._first[priority] = entry.arrival
                heappush(self._firsts, (entry.arrival, priority))
        level[entry] = None
        self.count += 1
        self.guests += entry.waits is not None
        self.weight += entry.weight
        if entry.waits is not None:
            entry.waits.began(entry, self._node)

    def remove(self, entry: Entry) -> None:
        """Take ``entry`` out, wherever it stands; does nothing when it is not there."""
        level = self._levels.get(entry.priority)
        if level is None or entry not in level:
            return
        del level[entry]
        self.count -= 1
        self.guests -= entry.waits is not None
        self.weight -= entry.weight
        if not level:
            del self._levels[entry.priority]
            del self._priorities[bisect_left(self._priorities, entry.priority)]
        if entry.waits is not None:
            entry.waits.ended(entry)

    def remove_all(self, entries: Iterable[Entry]) -> None:
        """Take ``entries`` out, as `remove` does each."""
        for entry in entries:
            level = self._levels.get(entry.priority)
            if level is None or len(level) == 1 or entry.waits is not None:
                self.remove(entry)
            elif entry in level:
                del level[entry]
                self.count -= 1
                self.weight -= entry.weight

    def head(self, count: int) -> list[Entry]:
        """Give the first ``count`` entries, which stay."""
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
        if len(self._priorities) == 1:
            return next(iter(self._levels[self._priorities[0]])).arrival
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
        if len(self._priorities) == 1:
            return iter(self._levels[self._priorities[0]])
        return chain.from_iterable(self._levels[p] for p in reversed(self._priorities))

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._levels.get(entry.priority, ())


class QueueView:
    """The waiting line as a policy sees it, for one decision: see `headrace.policies.Queue`.

    Args:
        node: The node that the line belongs to.
        running: How many instances run.
        ahead: Entries that stand before the line: a batch that has not begun.
    """

    __slots__ = ("_ahead", "_count", "_node", "_rest", "_seen", "running", "weight")

    def __init__(self, node: Node, running: int, ahead: Sequence[Entry] = ()) -> None:
        line = node.line
        self._node = node
        self._ahead = ahead
        self._count = line.count + len(ahead)
        self._rest: Iterator[Entry] | None = None
        self._seen: list[Entry] = list(ahead)
        self.weight = line.weight + sum([entry.weight for entry in ahead])
        self.running = running

    @property
    def free(self) -> int:
        """How many instances are free, with the one that is offered."""
        return len(self._node.free) + (1 if self._ahead else 0)

    @property
    def oldest(self) -> float:
        """When the oldest arrived, whatever its priority."""
        line = self._node.line
        times = [entry.arrival for entry in self._ahead]
        return min([*times, line.oldest()] if line.count else times)

    @property
    def open(self) -> bool:
        """Whether more may come."""
        return self._node.refusing is None and not self._node.full

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int, /) -> Entry:
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError("queue index out of range")
        if index >= len(self._seen):
            if self._rest is None:
                self._rest = iter(self._node.line)
            while index >= len(self._seen):
                self._seen.append(next(self._rest))
        return self._seen[index]
