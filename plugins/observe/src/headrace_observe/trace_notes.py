"""Keeps the notes of a trace in files until the recording ends: small, bounded, in order.

Making an event costs ten times as much as keeping a note, so events are made at the end of the recording, when the
pipeline does not need the processor any more.
"""

from __future__ import annotations

import marshal
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["NoteStore"]

_SEGMENTS = 32

_NOTES = 16
"""The most notes that are written, and deleted, together; a note has some hundred bytes."""


class NoteStore:
    """Keeps tuples of texts, numbers, None and lists of these in files. Used by one thread.

    Args:
        folder: The folder for the files. The caller, who has made it, also removes it.
        max_bytes: The most bytes of all files together. Beyond it the oldest files are deleted.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._files: deque[tuple[Path, int]] = deque()
        self._bytes = self._made = 0

    def add(self, notes: list[tuple[Any, ...]]) -> None:
        """Keep notes.

        Raises:
            OSError: The notes cannot be written.
        """
        # A late thread adds many notes at once; in one file they would all be deleted together.
        for start in range(0, len(notes), _NOTES):
            self._add(marshal.dumps(notes[start : start + _NOTES]))

    def _add(self, text: bytes) -> None:
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
        """Return all notes, the oldest first; each file is deleted once it has been read."""
        for path, size in self._files:
            with path.open("rb") as file:
                while file.tell() < size:
                    yield from marshal.load(file)  # noqa: S302 - written by `add`
            path.unlink()
        self._files.clear()
