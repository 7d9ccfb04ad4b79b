"""The waiting line of a node: greater priority first, equals in order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace._scheduling.entry import Entry

__all__ = ["QueueView", "WaitingLine"]


class WaitingLine:
    """Entries that wait; every operation costs O(1) per entry, however many wait.

    Attributes:
        count: How many wait.
        weight: Sum of their weights.
    """

    __slots__ = ("_levels", "_priorities", "count", "weight")

    def __init__(self) -> None:
        self._levels: dict[int, OrderedDict[Entry, None]] = {}
        self._priorities: list[int] = []  # descending, only those with entries
        self.count = 0
        self.weight = 0

    def push(self, entry: Entry) -> None:
        """Put ``entry`` behind all of its priority."""
        level = self._levels.get(entry.priority)
        if level is None:
            level = self._levels[entry.priority] = OrderedDict()
            self._priorities = sorted(self._levels, reverse=True)
        level[entry] = None
        self.count += 1
        self.weight += entry.weight

    def remove(self, entry: Entry) -> None:
        """Take ``entry`` out, wherever it stands."""
        level = self._levels[entry.priority]
        del level[entry]
        self._left(entry, level)

    def pop(self) -> Entry:
        """Take out the first."""
        level = self._levels[self._priorities[0]]
        entry, _ = level.popitem(last=False)
        self._left(entry, level)
        return entry

    def oldest_of_lowest(self) -> Entry:
        """Give the oldest entry of the lowest priority that waits."""
        return next(iter(self._levels[self._priorities[-1]]))

    def _left(self, entry: Entry, level: OrderedDict[Entry, None]) -> None:
        self.count -= 1
        self.weight -= entry.weight
        if not level:
            del self._levels[entry.priority]
            self._priorities.remove(entry.priority)

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self._levels[p] for p in self._priorities)


class QueueView:
    """The waiting line as a policy sees it, for one decision: see `headrace.policies.Queue`."""

    __slots__ = ("_count", "_rest", "_seen", "running", "weight")

    def __init__(self, line: WaitingLine, running: int) -> None:
        self._count = line.count
        self._rest = iter(line)
        self._seen: list[Entry] = []
        self.weight = line.weight
        self.running = running

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int, /) -> Entry:
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError("queue index out of range")
        while len(self._seen) <= index:
            self._seen.append(next(self._rest))
        return self._seen[index]
