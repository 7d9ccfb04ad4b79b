"""`SaveImages` and `SaveJSONL`: what was seen, in files."""

from __future__ import annotations

import itertools
import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import gmtime, strftime
from typing import TYPE_CHECKING

import headrace_formats
from headrace_formats import write_json
from headrace_vision.clock import utc
from headrace_vision.records import frame_record
from headrace_vision.sinks.names import EVENT, Names
from headrace_vision.sinks.owner import Mark, mark_beside
from headrace_vision.sinks.pictures import encoded, picture_of
from headrace_vision.sinks.retention import FileSink, files_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from headrace_vision.frames import Frame

__all__ = ["SaveImages", "SaveJSONL"]

_BESIDE = ".headrace"
"""The small file that says whose the images of a folder are, and the end of those that say it of lines."""


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or not there. Make its folder.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    headrace_formats.write_whole(path, data)


@dataclass(eq=False, repr=False, kw_only=True)
class SaveImages(FileSink):
    """Writes an image per frame, ``FOLDER/SOURCE/000012.jpg``, with boxes on it. ``SOURCE-2`` where an earlier run has that folder.

    Args:
        folder: Where the images go. It is made.
        draw: Whether detections are drawn.
        suffix: The format: ``".jpg"``, ``".png"``, ``".webp"``.
        only_events: Whether only frames with events are written.
        keep_s, keep_bytes, keep_free_bytes, adopt: How long images stay, of those written with a bound. See `SaveVideo`.
        keep_events_s: Seconds for which images of frames with ``events`` are kept, in place of ``keep_s``. They are called
            ``000012-event.jpg``.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.
    """

    folder: str | os.PathLike[str] = field(kw_only=False)
    draw: bool = True
    suffix: str = ".jpg"
    only_events: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._bound(Path(self.folder))
        self._names = Names(lambda name: (self._folder / name).exists())
        self.scan_s = 3600.0  # there may be a million

    def open(self) -> None:
        """Delete what may not stay."""
        if self._bounds.is_any:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._look()

    def wants(self, frame: Frame) -> bool:
        """Return whether a frame has events, or needs none."""
        return not self.only_events or bool(frame.request.get("events"))

    def write(self, frame: Frame) -> None:
        """Write the image of a frame; one without an image is left out."""
        image = picture_of(frame, draw=self.draw)
        if image is None:
            return
        folder = self._folder / self._names.of(frame.source)
        is_event = self._bounds.keep_events_s is not None and bool(frame.request.get("events"))
        path = folder / f"{frame.frame:06d}{EVENT * is_event}{self.suffix}"
        if self._bounds.is_any:
            folder.mkdir(parents=True, exist_ok=True)
            mark = self._look()
            if not (folder / _BESIDE).exists():
                _write_whole(folder / _BESIDE, str(mark).encode())
        _write_whole(path, encoded(path.suffix, image))
        self._note_finished(path, is_event=is_event)

    def _stored(self) -> Iterator[tuple[Path, os.stat_result, Mark]]:
        """Yield the images of folders that bear a mark."""
        for folder in self._folder.iterdir():
            if (mark := mark_beside(folder / _BESIDE)) is not None:
                for path, status in files_in(folder, rf"\d{{6,}}({EVENT})?\.\w+(\.\w+\.part)?"):
                    yield path, status, mark._replace(is_event=EVENT in path.name)


@dataclass(eq=False, repr=False, kw_only=True)
class SaveJSONL(FileSink):
    """Writes a line of JSON per frame, of all sources into one file: see `headrace_vision.frame_record`.

    No line is cut: what a full disk took half of is taken back, and written again later.

    Args:
        path: The file. Lines are added to what it holds. Where somebody moves it away, another one begins.
        every_s: Seconds of the clock for which lines go into one file, as 3600 from hour to hour. Then it is called by that time
            (UTC), ``NAME-20300131-235900.jsonl``, and another one begins. None for no end.
        every_bytes: Bytes after which another one begins. None for no end.
        keep_s, keep_bytes, keep_free_bytes, adopt: How long files stay that have ended. See `SaveVideo`.
        keep_events_s: Seconds for which files with ``events`` are kept, in place of ``keep_s``. They are called
            ``NAME-20300131-235900-event.jsonl``.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.
    """

    path: str | os.PathLike[str] = field(kw_only=False)
    every_s: float | None = None
    every_bytes: int | None = None

    needs_image = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("every_s", self.every_s), ("every_bytes", self.every_bytes)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} is more than 0, not {value!r}")
        self._path = Path(self.path)
        self._bound(self._path.parent)
        self._every_s, self._every_bytes = self.every_s or math.inf, self.every_bytes or math.inf
        has_parts = self.every_s is not None or self.every_bytes is not None
        self._bounds.check_parts(has_parts, "every_s or every_bytes")
        self._beside = self._path.with_name(f".{self._path.name}{_BESIDE}")
        self._file: IO[bytes] | None = None
        self._begun_s, self._has_event = 0.0, False

    def open(self) -> None:
        """Make the file."""
        self._file = self._opened()

    def _opened(self) -> IO[bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._bounds.is_any:
            before, mark = mark_beside(self._beside), self._look(is_begin=True)
            is_there = self._path.exists() and self._path.stat().st_size > 0
            self._has_event = is_there and before is not None and before.is_event
            if before != mark._replace(is_event=self._has_event):
                self._write_beside(mark)
        file = self._path.open("ab", buffering=0)
        status = os.fstat(file.fileno())
        self._begun_s = status.st_mtime if status.st_size else utc()
        try:
            if status.st_size and self._is_cut():  # by the end of an earlier run
                file.write(b"\n")  # its half line stays apart
        except OSError:
            file.close()
            raise
        return file

    def _write_beside(self, mark: Mark) -> None:
        _write_whole(self._beside, str(mark._replace(is_event=self._has_event)).encode())

    def _is_cut(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def tick(self) -> None:
        """End a file whose time is over, and delete what may not stay."""
        self._turn()
        self._look()

    def write(self, frame: Frame) -> None:
        """Write a line, so that others see it at once."""
        left = memoryview(write_json(frame_record(frame)).encode() + b"\n")
        file = self._turn(len(left))
        if frame.request.get("events") and not self._has_event and self._bounds.is_any:
            self._has_event = True  # also behind a kill
            self._write_beside(self._look())
        size_bytes = os.fstat(file.fileno()).st_size
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):  # a device has no size
                file.truncate(size_bytes)
            raise

    def _turn(self, more_bytes: int = 0) -> IO[bytes]:
        """Return the file for the next line: another one where this one is full, its time is over, or somebody has moved it."""
        if self._file is not None:
            status = os.fstat(self._file.fileno())
            with suppress(FileNotFoundError):
                if os.path.samestat(status, self._path.stat()):
                    is_over = self._begun_s // self._every_s != utc() // self._every_s
                    is_over = is_over or status.st_size + more_bytes > self._every_bytes
                    self._begun_s = self._begun_s if status.st_size else utc()
                    if not (is_over and status.st_size):
                        return self._file
                    path = self._path.rename(self._dated())
                    self._note_finished(path, is_event=self._has_event)
            self._file.close()
            self._file = None
        self._file = self._opened()
        return self._file

    def _dated(self) -> Path:
        stem = f"{self._path.stem}-{strftime('%Y%m%d-%H%M%S', gmtime(utc()))}"
        is_event = self._has_event and self._bounds.keep_events_s is not None
        end = f"{EVENT * is_event}{self._path.suffix}"
        names = (f"{stem}{f'-{number}' * (number > 1)}{end}" for number in itertools.count(1))
        return next(path for path in map(self._path.with_name, names) if not path.exists())

    def _open_bytes(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _stored(self) -> Iterator[tuple[Path, os.stat_result, Mark]]:
        """Yield the files that have ended, of each file of this folder that bears a mark."""
        for beside in self._folder.glob(f".*{_BESIDE}"):
            name, mark = Path(beside.stem[1:]), mark_beside(beside)
            stem, suffix = re.escape(name.stem), re.escape(name.suffix)
            dated = rf"{stem}(-\d{{8}}-\d{{6}}(-\d+)?({EVENT})?)?{suffix}"
            for path, status in files_in(self._folder, dated):
                if mark is not None and path != self._path:
                    is_whole, has_event = path.name == name.name, path.stem.endswith(EVENT)
                    is_event = mark.is_event if is_whole else has_event
                    yield path, status, mark._replace(is_event=is_event)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
