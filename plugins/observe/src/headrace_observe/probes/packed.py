"""Notes of what runs, the newest in so many bytes; no thread that notes something waits for another one."""

from __future__ import annotations

import marshal
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Packed"]


class Packed:
    """Tuples of plain values. A note is one append; now and then a thread packs what has come.

    Args:
        most_bytes: The most bytes. Beyond it the oldest notes go.
        block: So many notes are packed together, and go together.

    Attributes:
        nbytes: The bytes of all that is packed.
    """

    def __init__(self, most_bytes: int, block: int = 256) -> None:
        self._most_bytes, self._block = most_bytes, block
        self._fresh: deque[tuple[Any, ...]] = deque()
        self._packing = threading.Lock()
        self._blocks: deque[bytes] = deque()
        self.nbytes = 0

    def add(self, note: tuple[Any, ...]) -> None:
        """Note something: texts, numbers, None, and tuples and lists of these."""
        self._fresh.append(note)
        if len(self._fresh) >= self._block and self._packing.acquire(blocking=False):
            try:
                self._pack()
            finally:
                self._packing.release()

    def _pack(self) -> None:
        fresh = self._fresh
        block = marshal.dumps([fresh.popleft() for _ in range(len(fresh))])
        self._blocks.append(block)
        self.nbytes += len(block)
        while len(self._blocks) > 1 and self.nbytes > self._most_bytes:
            self.nbytes -= len(self._blocks.popleft())

    def blocks(self) -> list[bytes]:
        """Return everything, the oldest first, for `unpacked`."""
        with self._packing:
            self._pack()
            return [*self._blocks]

    @staticmethod
    def unpacked(block: bytes) -> Iterator[tuple[Any, ...]]:
        """Return the notes of a block, in order."""
        yield from marshal.loads(block)  # noqa: S302 - written above
