"""Whose turn it is: what may come at the same time is seen to by one thread, one after the other."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Turn"]


class Turn:
    """Had by one thread at a time. Who comes with something to do leaves it to whoever has the turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of = 0

    def take(self) -> bool:
        """Take the turn, if no thread has it; `had` is to follow."""
        return self._lock.acquire(blocking=False)

    @contextmanager
    def had(self) -> Iterator[None]:
        """Give the turn back in the end, which the calling thread has taken."""
        self._of = get_ident()
        try:
            yield
        finally:
            self._of = 0
            self._lock.release()

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Wait for the turn, unless the calling thread has it."""
        if self._of == get_ident():
            yield
            return
        self._lock.acquire()
        with self.had():
            yield
