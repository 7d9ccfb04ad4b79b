"""Work that several threads bring at the same time is done by one of them, one piece after the other."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Turn"]


class Turn:
    """A lock that threads try, and rarely wait for: a thread that does not get it leaves its work.

    The thread that has the turn does what the others have left, so that none of them is held up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of = 0

    def take(self) -> bool:
        """Take the turn, if no thread has it; the calling thread then enters `had`."""
        return self._lock.acquire(blocking=False)

    @contextmanager
    def had(self) -> Iterator[None]:
        """Give back, at the end of the block, the turn that the calling thread has taken."""
        self._of = get_ident()
        try:
            yield
        finally:
            self._of = 0
            self._lock.release()

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Wait for the turn, unless the calling thread has it; give it back at the end of the block."""
        if self._of == get_ident():
            yield
            return
        self._lock.acquire()
        with self.had():
            yield
