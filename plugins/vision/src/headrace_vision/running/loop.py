"""What a loop over frames waits at: the frames that are ready, and the end of all its sources."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_vision.frames import Frame
    from headrace_vision.reading.source import Source

__all__ = ["Loop"]


class Loop:
    """The frames that wait for one reader, from any number of sources."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Source, Frame]] = deque()
        self._changed = threading.Condition()
        self._open = 0
        self.closed = False

    def join(self, count: int = 1) -> None:
        """Count that many more sources and collections that have not ended."""
        with self._changed:
            self._open += count

    def leave(self) -> None:
        """Count one fewer that has not ended."""
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def put(self, source: Source, frame: Frame) -> bool:
        """Add a frame; False if nobody reads any more."""
        with self._changed:
            if self.closed:
                return False
            self._ready.append((source, frame))
            self._changed.notify()
            return True

    def take(self) -> tuple[Source, Frame] | None:
        """Wait for a frame; None once every source has ended, or the loop is closed."""
        with self._changed:
            while not self._ready:
                if self.closed or not self._open:
                    return None
                self._changed.wait()
            return self._ready.popleft()

    def close(self) -> list[tuple[Source, Frame]]:
        """Take no more frames; return those that nobody has read."""
        with self._changed:
            self.closed = True
            left = list(self._ready)
            self._ready.clear()
            self._changed.notify_all()
            return left
