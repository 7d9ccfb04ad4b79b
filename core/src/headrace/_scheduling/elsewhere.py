"""Requests that entered at one node and wait at another: they count against the bound of the first.

Elements of a list and branches of a graph count as their one request.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace._scheduling.entry import Entry

__all__ = ["Elsewhere", "Waits"]


class Elsewhere:
    """How many requests that entered at a node wait at others.

    Attributes:
        count: The number.
        lock: Guards it; nothing else is locked while it is held.
    """

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()


class Waits:
    """The entries of one request that wait at other nodes than the one it entered at."""

    __slots__ = ("_entries", "_home")

    def __init__(self, home: Elsewhere) -> None:
        self._home = home
        self._entries: set[Entry] = set()

    def began(self, entry: Entry) -> None:
        """Take note that an entry waits."""
        with self._home.lock:
            if not self._entries:
                self._home.count += 1
            self._entries.add(entry)

    def ended(self, entry: Entry) -> None:
        """Take note that an entry waits no more; a second time does nothing."""
        with self._home.lock:
            if entry in self._entries:
                self._entries.discard(entry)
                if not self._entries:
                    self._home.count -= 1
