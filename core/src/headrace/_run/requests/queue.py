"""The queue of a node: greater priority first, then the order in which requests came."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal

from headrace._run.requests.entry import NEW, QUEUED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace._run.requests.entry import Entry

QueueFull = Literal["wait", "reject"]
"""The values of the node key ``queue_full``, for a request that finds the queue full."""


class RequestQueue:
    """The QUEUED entries.

    Every operation costs O(1), however many entries wait. The number of priorities costs its
    logarithm. An entry may leave from the middle.

    Attributes:
        count: How many entries wait.
        weight: Sum of their weights.
        ticketed: How many of them count by their ticket, and not in this queue.
    """

    def __init__(self) -> None:
        self._levels: dict[float, dict[Entry, None]] = {}
        self._priorities: list[float] = []  # ascending
        self.count = self.weight = self.ticketed = 0

    def add(self, entry: Entry) -> None:
        """Put ``entry`` behind all of its priority.

        An entry that a backend has kept goes before all of its priority that have not begun.
        """
        priority = entry.priority if entry.held is None else entry.priority + 0.5
        level = self._levels.get(priority)
        if level is None:
            insort(self._priorities, priority)
            level = self._levels[priority] = {}
        level[entry] = None
        entry.state = QUEUED
        self.count += 1
        self.weight += entry.weight
        if entry.ticket is not None:
            self.ticketed += 1
            entry.ticket.waits(entry)

    def remove(self, entries: Iterable[Entry], state: str = NEW) -> None:
        """Remove ``entries``, which get ``state``; an entry that is not in the queue is skipped."""
        for entry in entries:
            if entry.state != QUEUED:
                continue
            entry.state = state
            priority = entry.priority if entry.held is None else entry.priority + 0.5
            level = self._levels[priority]
            del level[entry]
            self.count -= 1
            self.weight -= entry.weight
            if not level and len(self._levels) > 1:
                del self._levels[priority]
                del self._priorities[bisect_left(self._priorities, priority)]
            if entry.ticket is not None:
                self.ticketed -= 1
                entry.ticket.leave(entry)

    def snapshot(self) -> list[Entry]:
        """Return all entries in some order, in any thread.

        An entry that moves meanwhile may be missed or seen twice.
        """
        return [entry for level in self._levels.copy().values() for entry in level.copy()]

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self._levels[p] for p in reversed(self._priorities))

    def head(self, count: int) -> list[Entry]:
        """Return the first ``count`` entries, which stay in the queue."""
        return list(islice(self, count))

    def oldest(self) -> float:
        """Return the arrival of the entry that has waited longest, whatever its priority."""
        return min([next(iter(level)).arrival for level in self._levels.values() if level])
