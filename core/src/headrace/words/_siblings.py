"""The processes of one `Process`, one per instance of a node: each may run one more item for another."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from headrace.words._supervisor import Supervisor


class Sibling(Protocol):
    """One of them.

    Attributes:
        supervisor: Starts its process.
        exchanging: Held by the thread that sends a batch there and waits for the answer.
    """

    supervisor: Supervisor
    exchanging: threading.Lock


One = TypeVar("One", bound=Sibling)


class Siblings(Generic[One]):
    """All of them, and who waits until one can take an item.

    Attributes:
        members: All of them.
    """

    def __init__(self) -> None:
        self.members: list[One] = []
        self._changed = threading.Condition()
        self._waiting = 0

    def look(self) -> None:
        """Let those who wait look again: a process has been left, has come back, or is no more."""
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def borrow(self, own: One) -> One:
        """Give one whose process lives and does nothing, rather another than ``own``, once there is one.

        The caller holds its ``exchanging`` then, and calls `look` once that is released. When no process
        lives or is started any more, ``own`` is given.
        """
        with self._changed:
            # This thread counts itself first and looks at the locks then. Another thread releases a lock
            # first and looks at the count then. Either this one finds the lock free, or that one notifies.
            self._waiting += 1
            try:
                while True:
                    others = [one for one in [*self.members] if one is not own]
                    for one in (*others, own):
                        if one.supervisor.lives and one.exchanging.acquire(blocking=False):
                            return one
                    if all(one.supervisor.over for one in (*others, own)):
                        own.exchanging.acquire()
                        return own
                    self._changed.wait()
            finally:
                self._waiting -= 1
