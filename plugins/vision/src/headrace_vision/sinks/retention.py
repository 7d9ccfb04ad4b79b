"""How long files of a sink stay: by age, bytes and room on the disk."""

from __future__ import annotations

import heapq
import logging
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace_vision.clock import utc
from headrace_vision.sinks.owner import Mark, owner_of
from headrace_vision.sinks.sink import SpoolingSink

__all__ = ["TICK_S", "Bounds", "FileSink", "files_in"]

TICK_S = 0.5
"""Seconds after which a sink that writes files looks at the clock, though no frame comes."""

LATE_S = 60.0
"""Seconds that a file may be of the future, as clocks of other machines run on, before its time is set to now."""

_ORPHANS = "sink %s: %s has %d files of a sink %r that there is not: they stay, unless adopt = true"
_LOG = logging.getLogger("headrace.vision")


def files_in(folder: Path, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files of a folder whose whole names fit a regular expression, each with its status.

    What is no regular file is left out: opening a pipe would wait for its writer.
    """
    for entry in list(os.scandir(folder)):
        with suppress(OSError):  # another program deletes too
            if re.fullmatch(pattern, entry.name) and entry.is_file():
                yield Path(entry.path), entry.stat()


def _set_time(path: Path, time_s: float) -> None:
    with suppress(OSError):  # of another user, or on a share that has its own clock
        os.utime(path, (time_s, time_s))


@dataclass(frozen=True)
class Bounds:
    """What files stay. None bounds nothing. Numbers are at least 0.

    Attributes:
        keep_s: Seconds for which a file is kept.
        keep_bytes: Most bytes of all files of the sink. The oldest goes first.
        keep_free_bytes: Bytes that are left free on the disk. The oldest file goes first.
        keep_events_s: Seconds for which a file with events is kept.
        adopt: Whether files of sinks that there are no more are bounded with the others.

    Raises:
        ValueError: A number is negative.
    """

    keep_s: float | None = None
    keep_bytes: int | None = None
    keep_free_bytes: int | None = None
    keep_events_s: float | None = None
    adopt: bool = False

    def __post_init__(self) -> None:
        for name in ("keep_s", "keep_bytes", "keep_free_bytes", "keep_events_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is at least 0, not {value!r}")

    @property
    def is_any(self) -> bool:
        """Whether something is bounded."""
        return self != Bounds(adopt=self.adopt)

    def check_parts(self, has_parts: bool, needed: str) -> None:
        """Refuse bounds of what is one file without end.

        Raises:
            ValueError: Something is bounded, and there are no parts.
        """
        if self.is_any and not has_parts:
            raise ValueError(f"keep_s and keep_bytes delete whole files: they need {needed}")

    def stays_s(self, *, is_event: bool) -> float:
        """Return for how many seconds a file is kept."""
        bounds_s = [self.keep_events_s if is_event else None, self.keep_s]
        return next((seconds for seconds in bounds_s if seconds is not None), math.inf)


@dataclass(eq=False, repr=False, kw_only=True)
class FileSink(SpoolingSink):
    """A sink whose files stay within `Bounds`: those of any source and run that bear its name and the id of the folder.

    Attributes:
        scan_s: Seconds after which the folder is listed again, as other programs write and delete there too.
    """

    keep_s: float | None = None
    keep_bytes: int | None = None
    keep_free_bytes: int | None = None
    keep_events_s: float | None = None
    adopt: bool = False

    scan_s = 60.0

    def _bound(self, folder: Path) -> None:
        """Note what is bounded, and in which folder."""
        bounds = (self.keep_s, self.keep_bytes, self.keep_free_bytes, self.keep_events_s)
        self._folder, self._bounds = folder, Bounds(*bounds, self.adopt)
        self._mark: Mark | None = None
        self._queue: list[tuple[float, float, Path, int]] = []  # the first to go in front
        self._bytes = 0
        self._looked_s = self._scanned_s = -math.inf
        self._told: set[str] = set()
        if self._bounds.is_any:
            self.tick_s = TICK_S

    def _stored(self) -> Iterable[tuple[Path, os.stat_result, Mark]]:
        """Return the finished files in the folder that bear a mark: path, status, and whose each is."""
        raise NotImplementedError

    def _open_bytes(self) -> int:
        """Return how many bytes the files have that are being written."""
        return 0

    def tick(self) -> None:
        """Delete what may not stay."""
        self._look()

    def _look(self, *, is_begin: bool = False) -> Mark:
        """Delete what may not stay, each half second at most, or as a file is about to begin. Return the mark of what is written now.

        Raises:
            OSError: The folder cannot be read, or not be marked.
        """
        if self._mark is None or is_begin:
            self._mark = Mark(owner_of(self._folder), self.known_as or self.name)
        now_s = utc()
        if is_begin or not 0 <= now_s - self._looked_s < TICK_S:
            if not 0 <= now_s - self._scanned_s < self.scan_s:
                self._scan(self._mark)
                self._scanned_s = now_s
            self._looked_s = now_s
            self._delete()
        return self._mark

    def _note_finished(self, path: Path, *, is_event: bool = False) -> None:
        """Note that a file was finished. Its time is that of the clock by which it goes, whatever a share says."""
        if self._bounds.is_any:
            with suppress(OSError):  # somebody has removed it
                size_bytes = path.stat().st_size
                _set_time(path, utc())
                self._put(path, utc(), size_bytes, is_event=is_event)
            self._delete()

    def _put(self, path: Path, time_s: float, size_bytes: int, *, is_event: bool) -> None:
        goes_s = time_s + self._bounds.stays_s(is_event=is_event)
        heapq.heappush(self._queue, (goes_s, time_s, path, size_bytes))
        self._bytes += size_bytes

    def _delete(self) -> None:
        while self._queue and (self._queue[0][0] <= utc() or self._is_full()):
            _, _, path, size_bytes = heapq.heappop(self._queue)
            self._bytes -= size_bytes
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                if str(path) not in self._told:
                    _LOG.warning("%s is to be deleted, and cannot be: %s", path, error.strerror)
                self._told.add(str(path))

    def _is_full(self) -> bool:
        most_bytes, free_bytes = self._bounds.keep_bytes, self._bounds.keep_free_bytes
        if most_bytes is not None and self._bytes + self._open_bytes() > most_bytes:
            return True
        return free_bytes is not None and shutil.disk_usage(self._folder).free < free_bytes

    def _scan(self, mark: Mark) -> None:
        self._queue, self._bytes = [], 0
        orphans: Counter[str] = Counter()
        now_s = utc()
        for path, status, theirs in self._stored():
            is_orphan = theirs.sink not in (mark.sink, *self.runner_names)
            if theirs.owner == mark.owner and is_orphan and not self._bounds.adopt:
                orphans[theirs.sink] += theirs.sink not in self._told
            elif theirs.owner == mark.owner and (is_orphan or theirs.sink == mark.sink):
                if status.st_mtime > now_s + LATE_S:  # of before the clock was put back
                    _set_time(path, now_s)
                time_s = min(status.st_mtime, now_s)
                self._put(path, time_s, status.st_size, is_event=theirs.is_event)
        for sink, count in orphans.items():
            if count:
                _LOG.warning(_ORPHANS, mark.sink, self._folder, count, sink)
        self._told |= orphans.keys()
