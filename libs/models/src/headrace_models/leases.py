"""Counts the requests that are inside one pipeline, so that it is closed after the last of them."""

from __future__ import annotations

from queue import Empty, SimpleQueue

__all__ = ["Leases"]


class Leases:
    """The leases of one pipeline: each request takes one and gives it back. After `end` there are no new ones.

    There is no lock, so a request in a signal handler never waits for the request that it has interrupted. All is in
    one list: its first element says whether leases are given, each further element is a lease. `take` appends and
    only then reads the first element. Each single operation on a list is atomic: with the interpreter lock because
    that is held, and in the free-threaded interpreter because ``append``, ``pop`` and the assignment of an element
    lock the list. These locks also order the operations of two threads: either the append of `take` comes before the
    assignment of `end`, and the close counts that lease, or it comes after it, and `take` reads that there are no
    more leases.
    """

    __slots__ = ("_idle", "_list")

    def __init__(self) -> None:
        self._list = [True]
        self._idle: SimpleQueue[None] = SimpleQueue()

    def take(self) -> bool:
        """Take a lease, and return whether there was one to take."""
        leases = self._list
        leases.append(True)
        if leases[0]:
            return True
        self.give_back()
        return False

    def give_back(self) -> None:
        """Give one lease back; the last one after `end` wakes the thread in `wait`."""
        leases = self._list
        leases.pop()
        if not leases[0] and len(leases) == 1:
            self._idle.put(None)  # may be called again inside itself, as by a signal handler

    def end(self) -> None:
        """Give no further leases."""
        self._list[0] = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait after `end` until all leases were given back. Return whether they were within the time.

        Args:
            timeout_s: The most seconds to wait. None for any time.
        """
        try:
            if len(self._list) > 1:
                self._idle.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    def __len__(self) -> int:
        return len(self._list) - 1
