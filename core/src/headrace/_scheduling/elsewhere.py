"""Requests that entered at one node and wait at another: they count against the bound of the first.

Elements of a list and branches of a graph count as their one request, also at the node at which it
entered. What a backend hands to another node counts nowhere: its request runs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node

__all__ = ["HANDED", "Elsewhere", "Handed", "Waits"]


class Elsewhere:
    """The requests that entered at a node and wait at others.

    Attributes:
        count: How many there are.
        lock: Guards them; nothing else is locked while it is held.
        order: Them by priority, the one that has waited longest first.
    """

    __slots__ = ("count", "lock", "order")

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()
        self.order: dict[int, OrderedDict[Waits, None]] = {}

    def shed(self, priority: int) -> tuple[Entry, Node] | None:
        """Count the oldest of the lowest priority no more, if that is ``priority`` or lower.

        Returns:
            An entry of it, and the node at which that waits; None when there is no such request.
        """
        with self.lock:
            lowest = min((p for p, level in self.order.items() if level), default=None)
            if lowest is None or lowest > priority:
                return None
            return next(iter(self.order[lowest])).leave()


class Waits:
    """The entries of one request that count as one against the bound of the node it entered at.

    Attributes:
        entered: Whether the request has been let in; no bound stops what belongs to it from then on.
    """

    __slots__ = ("_entries", "_home", "_priority", "entered")

    def __init__(self, home: Elsewhere, *, entered: bool) -> None:
        self._home = home
        self.entered = entered
        self._priority = 0
        self._entries: dict[Entry, Node] = {}

    def began(self, entry: Entry, node: Node) -> None:
        """Take note that an entry waits at a node."""
        self.entered = True
        with self._home.lock:
            if not self._entries:
                self._priority = entry.priority
                self._home.order.setdefault(entry.priority, OrderedDict())[self] = None
                self._home.count += 1
            self._entries[entry] = node

    def ended(self, entry: Entry) -> None:
        """Take note that an entry waits no more; a second time does nothing."""
        with self._home.lock:
            if self._entries.pop(entry, None) is not None and not self._entries:
                self._forget()

    def leave(self) -> tuple[Entry, Node]:
        """Count no more, whatever waits; give an entry and its node. Under the lock of the home."""
        entry, node = next(iter(self._entries.items()))
        self._entries.clear()
        self._forget()
        return entry, node

    def _forget(self) -> None:
        level = self._home.order[self._priority]
        del level[self]
        if not level:
            del self._home.order[self._priority]
        self._home.count -= 1


class Handed:
    """Stands for the `Waits` of what a backend that runs hands to another node: no bound counts it."""

    entered = True

    def began(self, entry: Entry, node: Node) -> None:
        """Do nothing."""

    def ended(self, entry: Entry) -> None:
        """Do nothing."""


HANDED = Handed()
