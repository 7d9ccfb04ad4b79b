"""What a trace has noted, on its way to the end of the recording: small, bounded, in order.

Making events costs ten times what noting does, so it waits until nobody else needs the processor.
"""

from __future__ import annotations

import marshal
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["NoteStore"]

_CHUNK = 500
_SEGMENTS = 32


class NoteStore:
    """Keeps tuples of texts, numbers and None in files; used by one thread.

    Args:
        folder: Where its files are; whoever made it removes it.
        max_bytes: How much they hold together; beyond it the oldest go.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._chunk: list[tuple[Any, ...]] = []
        self._files: deque[tuple[Path, int]] = deque()
        self._bytes = self._made = 0

    def add(self, note: tuple[Any, ...]) -> None:
        """Keep a note.

        Raises:
            OSError: It cannot be written.
        """
        self._chunk.append(note)
        if len(self._chunk) >= _CHUNK:
            self._write()

    def _write(self) -> None:
        text = marshal.dumps(self._chunk)
        self._chunk = []
        if not self._files or self._files[-1][1] >= self._max_bytes // _SEGMENTS:
            self._made += 1
            self._files.append((self._folder / f"notes-{self._made}", 0))
        path, size = self._files.pop()
        with path.open("ab") as file:
            file.write(text)
        self._files.append((path, size + len(text)))
        self._bytes += len(text)
        while self._bytes > self._max_bytes and len(self._files) > 1:
            gone, size = self._files.popleft()
            gone.unlink()
            self._bytes -= size

    def take(self) -> Iterator[tuple[Any, ...]]:
        """Give all notes, the oldest first; each file goes once it has been read."""
        self._write()
        for path, size in self._files:
            with path.open("rb") as file:
                while file.tell() < size:
                    yield from marshal.load(file)  # noqa: S302 - written by `_write`
            path.unlink()
        self._files.clear()
