"""Collects the events of a trace and writes them into one file: sorted, bounded, and never half written.

Events are gathered in memory. When there are enough, they are written as a sorted segment into a folder beside the
file. When all segments together exceed the bound, the oldest segments are deleted. At the end the segments are
merged into a new file, which is renamed to its path in one step.
"""

from __future__ import annotations

import heapq
import shutil
import tempfile
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace_observe.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Event", "TraceStore"]

_SEGMENTS = 32
"""The size of a segment is the bound divided by this; only whole segments are deleted."""

_LARGEST_SEGMENT = 4_000_000


class Event(NamedTuple):
    """One event. Events sort in their order in the file.

    Attributes:
        start_ns: The beginning, in ns.
        minus_duration_ns: The duration in ns, negated, so that an outer event sorts before an inner one that
            begins at the same time.
        since_ns: The beginning, in ns, of the event at the other end of its arrow, else its own. If that event is
            deleted, this one is left out too.
        text: One line of JSON, without a comma at its end.
    """

    start_ns: int
    minus_duration_ns: int
    since_ns: int
    text: str


class _Segment(NamedTuple):
    path: Path
    size: int
    last_ns: int


class TraceStore:
    """Keeps events and writes the file. Used by one thread.

    Args:
        path: The file.
        max_bytes: The most bytes of the file.

    Attributes:
        folder: The folder with the segments. It is removed at the end.
        horizon_ns: Events that began before this time are left out.

    Raises:
        OSError: The folder of the file cannot be written.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._segment_bytes = min(_LARGEST_SEGMENT, max_bytes // _SEGMENTS)
        self.folder = Path(tempfile.mkdtemp(prefix=f".{path.stem}-", dir=path.parent))
        self._segments: deque[_Segment] = deque()
        self._made = 0
        self._bytes = 0
        self._open: list[Event] = []
        self._open_bytes = 0
        self.horizon_ns = 0

    def add(self, event: Event) -> None:
        """Keep an event."""
        self._open.append(event)
        self._open_bytes += len(event.text) + 2
        if self._open_bytes >= self._segment_bytes:
            self._close_segment()

    def _close_segment(self) -> None:
        events, self._open = self._open, []
        if not events:
            return
        size, self._open_bytes = self._open_bytes, 0
        last_ns = max(one.start_ns - one.minus_duration_ns for one in events)
        events.sort()
        self._made += 1
        path = self.folder / f"{self._made}"
        with path.open("w", encoding="ascii") as file:
            file.writelines(f"{a} {b} {c} {text}\n" for a, b, c, text in events)
        self._segments.append(_Segment(path, size, last_ns))
        self._bytes += size
        self._shrink(self._max_bytes)

    def _shrink(self, allowed: int) -> None:
        while self._bytes > allowed and self._segments:
            gone = self._segments.popleft()
            gone.path.unlink()
            self._bytes -= gone.size
            # All events of the deleted segment had ended at `last_ns`. Events of later segments that began before that
            # are left out too, so that no arrow points to a deleted event.
            self.horizon_ns = max(self.horizon_ns, gone.last_ns)

    def finish(self, head: Sequence[str], tail: str) -> None:
        """Write the file.

        Args:
            head: The first events of the file, one at least, without commas. The first line begins with the
                opening of the JSON document.
            tail: The text after the last event.

        Raises:
            OSError: The file cannot be written. A file that was at the path is untouched.
        """
        try:
            self._close_segment()
            size = sum(len(line) + 2 for line in head) + len(tail) + 1
            self._shrink(self._max_bytes - size)
            write_whole(self._path, lambda part: self._write(part, head, tail))
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the folder with the segments."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, part: Path, head: Sequence[str], tail: str) -> None:
        with ExitStack() as stack:
            file = stack.enter_context(part.open("w", encoding="ascii"))
            file.write(",\n".join(head))
            readers = [
                _events(stack.enter_context(segment.path.open(encoding="ascii")))
                for segment in self._segments
            ]
            for event in heapq.merge(*readers):
                if event.since_ns >= self.horizon_ns:
                    file.write(",\n" + event.text)
            file.write("\n" + tail + "\n")


def _events(lines: Iterator[str]) -> Iterator[Event]:
    for line in lines:
        start, minus, since, text = line.rstrip("\n").split(" ", 3)
        yield Event(int(start), int(minus), int(since), text)
