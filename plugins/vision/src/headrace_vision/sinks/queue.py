"""What waits for a sink: frames in memory or in files, and what became of sources."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_vision.sinks.spool import SpoolFolder

if TYPE_CHECKING:
    import os

    from headrace_vision.frames import Frame

__all__ = ["Entry", "SinkQueue", "Spool", "text_of"]

_LOG = logging.getLogger("headrace.vision")


def text_of(error: BaseException) -> str:
    """Return the class and the text of an error, or its class alone, where its text raises another one."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - of a user
        return type(error).__name__


@dataclass(eq=False)
class Entry:
    """What waits for a sink: a frame, in memory or in a file or in both, or a method and its arguments, about a source."""

    item: Frame | tuple[str, ...] | None
    size_bytes: int
    number: int = 0
    path: Path | None = None
    is_exact: bool = True
    counted: str = "lost"
    """As what it counts where it is removed while it is written, until that is done."""
    is_removed: bool = False

    @property
    def is_frame(self) -> bool:
        """Whether it is no method about a source."""
        return not isinstance(self.item, tuple)


class SinkQueue:
    """The entries that wait, the oldest first. It has no lock.

    Attributes:
        frames: How many of them are frames.
        size_bytes: How much memory they take, or room on the disk.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self.frames = self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def oldest(self) -> Entry | None:
        """The first entry, None if there is none."""
        return self._entries[0] if self._entries else None

    @property
    def oldest_frame(self) -> Entry:
        """The first entry that is a frame."""
        return next(entry for entry in self._entries if entry.is_frame)

    def add(self, entry: Entry) -> None:
        """Put an entry at the end."""
        self._entries.append(entry)
        self.frames += entry.is_frame
        self.size_bytes += entry.size_bytes

    def remove(self, entry: Entry) -> bool:
        """Remove an entry, and its file. Return whether it was there."""
        if entry not in self._entries:
            return False
        entry.is_removed = True
        self._entries.remove(entry)
        self.frames -= entry.is_frame
        self.size_bytes -= entry.size_bytes
        if entry.path is not None:
            with suppress(OSError):
                entry.path.unlink(missing_ok=True)
        return True

    def trim(self, most_bytes: int) -> int:
        """Remove the oldest frames beyond a bound, but not the newest. Return how many."""
        before = self.frames
        while self.size_bytes > most_bytes and self.frames > 1:
            self.remove(self.oldest_frame)
        return before - self.frames

    def remove_unsaved(self) -> int:
        """Remove what is in memory. Return how many frames those are."""
        before = self.frames
        for entry in [waiting for waiting in self._entries if waiting.path is None]:
            self.remove(entry)
        return before - self.frames

    def leave_to_file(self, entry: Entry, size_bytes: int) -> None:
        """Let an entry be in its file alone, which has so many bytes."""
        if entry in self._entries:
            self.size_bytes += size_bytes - entry.size_bytes
        entry.item, entry.size_bytes = None, size_bytes


class Spool:
    """The folder of a sink, if it has one, where its frames are kept.

    Args:
        name: The name of the sink, for the log.
        folder: None for the memory.

    Raises:
        OSError: The folder cannot be made.
    """

    def __init__(self, name: str, folder: str | os.PathLike[str] | None) -> None:
        self._name = name
        self._folder = None if folder is None else SpoolFolder(folder)
        self._numbers = itertools.count(self._folder.next_number if self._folder else 0)
        self._is_failing = False

    @property
    def has_folder(self) -> bool:
        """Whether frames may be kept on the disk."""
        return self._folder is not None

    def entries(self) -> list[Entry]:
        """Return what an earlier run has left, the oldest first."""
        paths = self._folder.found if self._folder else []
        return [Entry(None, path.stat().st_size, path=path) for path in paths]

    def next_number(self) -> int:
        """Return the place of the next frame in the order of the folder."""
        return next(self._numbers)

    def save(self, entry: Entry, most_bytes: int) -> int | None:
        """Write a frame into the folder, if it is not there and no larger than the bound.

        Returns:
            The bytes of its file. None where it stays in memory alone.
        """
        frame = entry.item
        if self._folder is None or frame is None or isinstance(frame, tuple):
            return None
        if entry.size_bytes > most_bytes:
            return None
        try:
            if entry.path is None:
                path, entry.is_exact = self._folder.save(frame, entry.number)
                entry.path = path
            size_bytes = entry.path.stat().st_size
        except Exception as error:  # noqa: BLE001 - the disk, or what the frame holds
            if not self._is_failing:
                text = "sink %s: a frame cannot be kept in %s, and stays in memory: %s"
                _LOG.warning(text, self._name, self._folder.folder, text_of(error))
            self._is_failing = True
            return None
        self._is_failing = False
        return size_bytes
