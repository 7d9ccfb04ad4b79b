"""The queue of a node as its policies see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node


class QueueView:
    """The queue as a policy sees it, for one decision: see `headrace.policies.Queue`.

    Args:
        node: The node that the queue belongs to.
        ahead: Entries that stand before the queue: a batch that has not begun.
    """

    __slots__ = ("_ahead", "_count", "_node", "_rest", "_seen", "weight")

    def __init__(self, node: Node, ahead: Sequence[Entry] = ()) -> None:
        queue = node.queue
        self._node = node
        self._ahead = ahead
        self._count = queue.count + len(ahead)
        self._rest: Iterator[Entry] | None = None
        self._seen: list[Entry] = list(ahead)
        self.weight = queue.weight + sum([entry.weight for entry in ahead])

    @property
    def running(self) -> int:
        """How many instances run a batch, but for one that is ahead."""
        busy = [one for one in self._node.instances if one.holder is not None]
        return len(busy) - (1 if self._ahead else 0)

    @property
    def free(self) -> int:
        """How many instances are free, with the one that is offered."""
        return len(self._node.free) + (1 if self._ahead else 0)

    @property
    def oldest(self) -> float:
        """When the oldest arrived, whatever its priority."""
        queue = self._node.queue
        times = [entry.arrival for entry in self._ahead]
        return min([*times, queue.oldest()] if queue.count else times)

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
                self._rest = iter(self._node.queue)
            while index >= len(self._seen):
                self._seen.append(next(self._rest))
        return self._seen[index]
