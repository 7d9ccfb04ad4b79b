"""The waiting line of a node: greater priority first, equals in order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node

__all__ = ["QueueView", "WaitingLine"]


class WaitingLine:
    """Entries that wait; every operation costs O(1) per entry, however many wait.

    Args:
        node: The node at which they wait.

    Attributes:
        count: How many wait.
        guests: How many of them do not count here, but where their request entered: they have `waits`.
        weight: Sum of their weights.
    """

    __slots__ = ("_levels", "_node", "_priorities", "count", "guests", "weight")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._levels: dict[int, OrderedDict[Entry, None]] = {}
        self._priorities: list[int] = []  # descending, only those with entries
        self.count = 0
        self.guests = 0
        self.weight = 0

    def push(self, entry: Entry) -> None:
        """Put ``entry`` behind all of its priority."""
        level = self._levels.get(entry.priority)
        if level is None:
            priorities = sorted([*self._levels, entry.priority], reverse=True)
            level = OrderedDict()
            # No call and no branch in what follows: an interrupt finds all of it, or nothing.
            self._levels[entry.priority] = level
            self._priorities = priorities
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
            priorities = [p for p in self._priorities if p != entry.priority]
            del self._levels[entry.priority]
            self._priorities = priorities
        if entry.waits is not None:
            entry.waits.ended(entry)

    def remove_all(self, entries: Iterable[Entry]) -> None:
        """Take ``entries`` out, as `remove` does each."""
        for entry in entries:
            level = self._levels.get(entry.priority)
            if level is None or len(level) == 1 or entry.waits is not None:
                self.remove(entry)
            elif entry in level:
                # No call between these three.
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
            for priority in reversed(self._priorities)
            for entry in self._levels[priority]
            if entry.waits is None
        )
        return next(own, None)

    def oldest(self) -> float:
        """Give when the oldest that waits arrived: equals stand in order of arrival."""
        return min(next(iter(level)).arrival for level in self._levels.values() if level)

    def __iter__(self) -> Iterator[Entry]:
        if len(self._priorities) == 1:
            return iter(self._levels[self._priorities[0]])
        return chain.from_iterable(self._levels[p] for p in self._priorities)

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
