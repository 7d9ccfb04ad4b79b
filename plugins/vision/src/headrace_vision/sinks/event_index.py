"""What happened, from the files that sinks have written: an index of the events in lines of `SaveJSONL`, and of the clips beside them."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
import threading
import time
from calendar import timegm
from contextlib import suppress
from itertools import product
from pathlib import Path
from time import strptime
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_formats import read_json
from headrace_vision.sinks.names import EVENT, Names
from headrace_vision.sinks.retention import files_in

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

__all__ = ["Clip", "EventIndex"]

PAGE = 50
"""Events of a page, unless it says another number."""

MOST_S = 2.0
"""Seconds for which one look reads files. The next look goes on there."""

LATEST_S = 60.0
"""Seconds after its event by which an image must have been written, so that it is not one of another run."""

_FILTERS = ("source", "label", "zone")
"""What events can be chosen by."""
_EVENTS = re.compile(rb'"events"\s*:\s*\[\s*\{')
"""What a line with events has, and most lines lack."""

_PLAYED = {"h264", "vp9", "av1"}
"""Codecs that browsers play in MP4."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (key TEXT PRIMARY KEY, done INTEGER);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT, event TEXT UNIQUE, time REAL, source TEXT, label TEXT,
    zone TEXT, image TEXT, path TEXT, stem TEXT, told TEXT);
CREATE INDEX IF NOT EXISTS events_by_time ON events (time, id);
CREATE INDEX IF NOT EXISTS events_by_file ON events (file);
CREATE TABLE IF NOT EXISTS clips (name TEXT PRIMARY KEY, seen TEXT, title TEXT, begin REAL, end REAL, plays INTEGER);
CREATE INDEX IF NOT EXISTS clips_by_begin ON clips (begin);
"""

_CLIP = """
SELECT {} FROM clips WHERE title IN (events.source, events.path, events.stem) AND end >= events.time AND begin <= events.time
    AND begin >= events.time - (SELECT max(end - begin) FROM clips) ORDER BY begin DESC, end LIMIT 1
"""
"""The clip of an event: the latest that had begun, and of several that began in the same second the first to end."""


class Clip(NamedTuple):
    """A video with an event in it.

    Attributes:
        path: Where it is.
        plays: Whether a browser can play it.
    """

    path: Path
    plays: bool


class EventIndex:
    """Events in the lines of `SaveJSONL`, the newest first, with the videos of `SaveVideo` and the images of `SaveImages`.

    The index is a file of SQLite beside the lines, ``.NAME.sqlite``. It holds nothing that is not in the files, so that you can
    remove it: `look` builds it again.

    Args:
        records: The file of `SaveJSONL`. Those that it has ended are read too.
        videos: The folder of `SaveVideo` with ``every_s``, ``before_s`` or ``after_s``. None for no clips.
        images: The folder of `SaveImages`. None for no snapshots.
    """

    def __init__(
        self,
        records: str | os.PathLike[str],
        videos: str | os.PathLike[str] | None = None,
        images: str | os.PathLike[str] | None = None,
    ) -> None:
        self._records = Path(records)
        self._videos = None if videos is None else Path(videos)
        self._images = None if images is None else Path(images)
        self._file = self._records.with_name(f".{self._records.name}.sqlite")
        self._lock = threading.RLock()
        self._base: sqlite3.Connection | None = None

    def _opened(self) -> sqlite3.Connection:
        if self._base is None or not self._file.exists():
            self.close()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self._file, check_same_thread=False)
            self._base.executescript(_SCHEMA)
        return self._base

    def look(self, most_s: float = MOST_S) -> bool:
        """Read what is new in the files, and forget what is gone. Return whether all was read.

        Args:
            most_s: Seconds after which it stops, to go on at the next look.

        Raises:
            OSError, sqlite3.Error: The folder cannot be read, or the index not be written.
        """
        until_s = time.monotonic() + most_s
        with self._lock:
            try:
                with self._opened() as base:
                    return self._read_records(base, until_s) and self._read_clips(base, until_s)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self._file.unlink(missing_ok=True)  # it is damaged
                return False

    def _read_records(self, base: sqlite3.Connection, until_s: float) -> bool:
        stem, suffix = re.escape(self._records.stem), re.escape(self._records.suffix)
        files = files_in(
            self._records.parent, rf"{stem}(-\d{{8}}-\d{{6}}(-\d+)?)?(?:{EVENT})?{suffix}"
        )
        known, is_whole = dict(base.execute("SELECT key, done FROM files")), True
        for path, status in sorted(files, key=lambda entry: -entry[1].st_mtime):
            with suppress(FileNotFoundError), path.open("rb") as file:
                # A file is known by its first line, wherever it is moved to.
                key = hashlib.sha256(file.readline()).hexdigest()
                begun = done = known.pop(key, 0)
                if status.st_size < done:
                    base.execute("DELETE FROM events WHERE file = ?", (key,))
                    done = 0
                file.seek(done)
                for line in file:
                    if not line.endswith(b"\n") or time.monotonic() > until_s:
                        is_whole = is_whole and not line.endswith(b"\n")
                        break
                    rows = _rows_of(line, f"{key}:{done}") if _EVENTS.search(line) else ()
                    base.executemany(
                        "INSERT OR IGNORE INTO events (event, time, source, label, zone, image, path, stem, told, file)"
                        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        [(*row, key) for row in rows],
                    )
                    done += len(line)
                if done != begun:
                    base.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (key, done))
        for table, column in (("events", "file"), ("files", "key")):
            base.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(gone,) for gone in known])  # noqa: S608 - of constants
        return is_whole

    def _read_clips(self, base: sqlite3.Connection, until_s: float) -> bool:
        known = dict(base.execute("SELECT name, seen FROM clips"))
        is_there = self._videos is not None and self._videos.is_dir()
        pattern = r".+-\d{8}-\d{6}(-\d+)?\.(mp4|mkv)"
        for path, status in files_in(self._videos, pattern) if self._videos and is_there else ():
            state = f"{status.st_size} {status.st_mtime_ns}"
            if known.pop(path.name, None) != state:
                if time.monotonic() > until_s:
                    return False
                row = (path.name, state, *_clip_of(path, status.st_mtime))
                base.execute("INSERT OR REPLACE INTO clips VALUES (?, ?, ?, ?, ?, ?)", row)
        base.executemany("DELETE FROM clips WHERE name = ?", [(name,) for name in known])
        return True

    def page(
        self,
        filters: Mapping[str, str],
        *,
        since_s: float = -math.inf,
        until_s: float = math.inf,
        before: str | None = None,
        most: int = PAGE,
    ) -> dict[str, Any]:
        """Return events, the newest first, as a dict for JSON.

        Args:
            filters: Only events of the ``source``, ``label`` (class) and ``zone`` (the name of a line or zone). Empty for all.
            since_s: Only events from this time on, in seconds since 1970 (UTC).
            until_s: Only events up to this time.
            before: What an earlier page said as ``next``.
            most: Most events of the page.

        Returns:
            ``events``: each as it was written, and with ``id`` (of the index), ``source``, ``time``, ``clip`` (``"plays"``,
            ``"download"`` or None) and ``snapshot`` (whether there is one). ``next`` is for the page behind it, None at the end.

        Raises:
            ValueError: ``before`` is something else.
        """
        time_s, _, number = (before or "inf,0").partition(",")
        values = {"since": since_s, "until": until_s, "before": float(time_s), "id": int(number)}
        terms = ["time >= :since", "time <= :until", "(time, id) < (:before, :id)"]
        terms += [f"{key} = :{key}" for key in _FILTERS if key in filters]
        with self._lock:
            rows = self._opened().execute(
                f"SELECT id, time, source, stem, image, told, ({_CLIP.format('plays')}) FROM events"  # noqa: S608 - of constants
                f" WHERE {' AND '.join(terms)} ORDER BY time DESC, id DESC LIMIT :most",
                {**filters, **values, "most": most + 1},
            )
            page = rows.fetchall()
        events = [
            json.loads(event_json)
            | {"id": key, "time": at_s, "source": source}
            | {"clip": None if plays is None else "plays" if plays else "download"}
            | {"snapshot": self._image_of(stem, image, at_s) is not None}
            for key, at_s, source, stem, image, event_json, plays in page[:most]
        ]
        last = events[-1] if len(page) > most else None
        return {"events": events, "next": last and f"{last['time']!r},{last['id']}"}

    def choices(self) -> dict[str, list[str]]:
        """Return what there is of ``source``, ``label`` and ``zone``, each in order."""
        query = "SELECT DISTINCT {0} FROM events WHERE {0} IS NOT NULL ORDER BY {0}"
        with self._lock:
            base = self._opened()
            return {key: [text for (text,) in base.execute(query.format(key))] for key in _FILTERS}

    def clip(self, number: int) -> Clip | None:
        """Return the clip of the event with this ``id``, or None."""
        with self._lock:
            text = f"SELECT ({_CLIP.format('name')}), ({_CLIP.format('plays')}) FROM events WHERE id = ?"  # noqa: S608 - of constants
            name, plays = self._opened().execute(text, (number,)).fetchone() or (None, None)
        if name is None or self._videos is None:
            return None
        path = _inside(self._videos, self._videos / name)
        return None if path is None else Clip(path, bool(plays))

    def snapshot(self, number: int) -> Path | None:
        """Return the image of the event with this ``id``, or None."""
        with self._lock:
            text = "SELECT stem, image, time FROM events WHERE id = ?"
            row = self._opened().execute(text, (number,)).fetchone()
        return None if row is None else self._image_of(*row)

    def _image_of(self, stem: str, name: str, time_s: float) -> Path | None:
        if self._images is None:
            return None
        paths = [
            path
            for folder in _folders_of(self._images, stem)
            for end, suffix in product(("", EVENT), (".jpg", ".png", ".webp"))
            if (path := _inside(self._images, folder / f"{name}{end}{suffix}")) is not None
            and -1 <= path.stat().st_mtime - time_s <= LATEST_S
        ]
        return paths[-1] if paths else None

    def close(self) -> None:
        """Close the index. It is opened again where it is needed."""
        with self._lock:  # not while another thread asks
            if self._base is not None:
                self._base.close()
            self._base = None


def _folders_of(images: Path, stem: str) -> Iterator[Path]:
    """Yield the folders of a source: of the first run, and of later ones."""
    folder, number = images / stem, 2
    while folder.is_dir():
        yield folder
        folder, number = images / f"{stem}-{number}", number + 1


def _inside(folder: Path, path: Path) -> Path | None:
    """Return a file if it lies in a folder, wherever links lead."""
    resolved = path.resolve()
    return resolved if resolved.is_relative_to(folder.resolve()) and resolved.is_file() else None


def _rows_of(line: bytes, where: str) -> list[tuple[Any, ...]]:
    """Return the rows of the events in a line. What is no record has none."""
    try:
        record = read_json(line)
        events = [event for event in record["events"] if isinstance(event, dict)]
        source, time_s = str(record["source"]), float(record["time"])
        image, stem = f"{int(record['frame']):06d}", Names().of(source)
        rows = []
        for number, event in enumerate(events):
            at_s, key = float(event.get("time", time_s)), str(event.get("id", f"{where}:{number}"))
            values = [event.get("class_name"), event.get("name"), record.get("path")]
            label, zone, path = [None if value is None else str(value) for value in values]
            rows.append((key, at_s, source, label, zone, image, path, stem, json.dumps(event)))
    except (ArithmeticError, ValueError, TypeError, LookupError):
        return []
    return rows


def _clip_of(path: Path, ended_s: float) -> tuple[str, float, float, bool]:
    """Return the title of a video, when it began and ended (UTC), and whether browsers play it."""
    import av

    stamp = re.findall(r"-(\d{8}-\d{6})", path.stem)[-1]
    try:
        begin_s = float(timegm(strptime(stamp, "%Y%m%d-%H%M%S")))
        with av.open(f"file:{path}") as container:
            codec = container.streams.video[0].codec.canonical_name
            plays = path.suffix == ".mp4" and codec in _PLAYED
            last_s = begin_s + 1 + (container.duration or 0) / av.time_base
            return container.metadata.get("title", ""), begin_s, min(ended_s, last_s), plays
    except (OSError, av.FFmpegError, LookupError, ValueError):
        return "", 0.0, 0.0, False
