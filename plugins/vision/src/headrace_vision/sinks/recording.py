"""`SaveVideo`: a video per source, whole, in parts, or around events."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_vision.clock import utc
from headrace_vision.reading.packets import Packets, Span
from headrace_vision.sinks.names import VideoNames
from headrace_vision.sinks.owner import Mark, held
from headrace_vision.sinks.pictures import encoded, picture_of
from headrace_vision.sinks.recorded_files import CopiedFile, VideoFile, mark_in, write_index
from headrace_vision.sinks.retention import TICK_S, FileSink, files_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_vision.frames import Frame
    from headrace_vision.reading.connection import Connection

__all__ = ["SaveVideo"]

DEAD_S = 60.0
"""Seconds after which a video that nobody has locked, and nobody has touched, is one of a run that was killed."""


@dataclass(eq=False, repr=False, kw_only=True)
class SaveVideo(FileSink):
    """Writes a video per source, with boxes on it: MP4, playable everywhere, with the times of the source.

    A video is called like its source, with a number where an earlier run has one of that name, and ``NAME.mp4.part`` until it is finished, at the end of the source. What it has by then
    can be played: where the program is killed it lacks the last second, or the last two pictures. A frame of another size begins another file, ``NAME-size2.mp4``. The
    shape of pixels, the matrix and the range of colours are those of the source. After a full disk a video goes on where it was,
    and one that is full to the end is finished with what it has room for.
    After another error, and where times begin again, it goes on in ``NAME-part2.mp4``. Frames that have failed are shown without
    boxes. A side of odd length is one pixel longer in the video. Its title is the name of its source, or the whole
    path of what has no name, or that of its file where the source is an address, which may hold a key.

    With ``every_s`` a source has a video for each so many seconds. With ``before_s`` or ``after_s`` only what is around frames with
    ``events`` is recorded, a video for each event, or for several whose times overlap. These are called like their source and the
    `headrace_vision.Frame.time` at which they begin (UTC), ``NAME-20300131-235900.mp4``.

    Args:
        folder: Where the videos go. It is made.
        draw: Whether detections are drawn. None: unless packets are copied.
        codec: FFmpeg's encoder. The default, ``libx264``, is GPL. ``mpeg4`` and ``libvpx-vp9`` are not. Nor is ``libsvtav1``, which
            stopped for ever in one video of some hundred on a busy machine (SVT-AV1 4.1). ``"copy"`` records the packets
            of the source at their full rate, not decoded, into ``NAME.mkv`` (Matroska) what MP4 has no place for. A video then begins at
            a key frame, that before ``before_s``, and another one begins at a reconnect.
        options: Options of the encoder, as ``{"crf": "20"}``. It holds no picture back, unless they say so.
        every_s: Seconds after which a video ends, and another one begins. None for one of any length.
        before_s: Seconds that are recorded before an event. They are kept as JPEG until then.
        after_s: Seconds that are recorded after an event.
        keep_s: Videos of this sink in the folder, of any source and run, are deleted once they are so many seconds old. None keeps all.
            A sink knows its videos by a tag with its name, so that it deletes no others.
        keep_bytes: Most bytes of its videos. Beyond that the oldest is deleted.
        keep_free_bytes: Bytes that are left free on the disk, as far as its videos go. The oldest is deleted first.
        keep_events_s: Seconds for which videos are kept in which events were seen, in place of ``keep_s``.
        adopt: Whether videos of sinks that there are no more are treated as its own. Otherwise a warning says that they are there.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`. Of each source that is copied
            ``spool_bytes`` of packets are kept.
    """

    folder: str | os.PathLike[str] = field(kw_only=False)
    draw: bool | None = None
    codec: str = "libx264"
    options: dict[str, str] | None = None
    every_s: float | None = None
    before_s: float | None = None
    after_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("every_s", "before_s", "after_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is at least 0, not {value!r}")
        is_around = self.before_s is not None or self.after_s is not None
        has_parts = is_around or self.every_s is not None
        self._bound(Path(self.folder))
        self._bounds.check_parts(has_parts, "every_s, before_s or after_s")
        self.tick_s = TICK_S
        self._rings: dict[str, _Ring] = {}
        self._looks: dict[str, tuple[tuple[int, int], tuple[int, int, int, int]]] = {}
        self._marks: dict[tuple[str, int, int], Mark | None] = {}
        self.copies_packets = self.codec == "copy"
        if self.copies_packets and (self.draw or self.options):
            raise ValueError(
                'codec = "copy" records what the camera encoded, without boxes and options of an encoder: '
                "leave out draw and options, or name an encoder"
            )
        self._files: dict[str, VideoFile] = {}
        self._copies = _Copies()
        self._names = VideoNames(
            self._folder, lambda: {file.path.stem for file in self._open}, has_time=has_parts
        )
        self.needs_image = not self.copies_packets
        before_s = self.before_s or 0.0 if is_around else None
        every_s = math.inf if self.every_s is None else self.every_s
        self._span = Span(before_s, self.after_s or 0.0, every_s, self.spool_bytes)

    def open(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._look()

    def packets_of(self, source: str) -> Packets | None:
        """Return what gets the packets of a source, which are copied without decoding."""
        if not self.copies_packets:
            return None
        packets = Packets(self._span, partial(self._begin_copy, source), self._finish)
        self._copies.add(source, packets)
        return packets

    def write(self, frame: Frame) -> None:
        """Add a frame to the video of its source."""
        with suppress(OSError):  # what is written next says it again
            self._look()
        if self.copies_packets:
            is_event = bool(frame.request.get("events"))
            self._copies.oldest(frame.source).see(frame.timestamp, is_event=is_event)
            self._advance()
            return
        image = picture_of(frame, draw=self.draw is not False)
        if image is None:
            return
        is_called_by_path = frame.path and Path(frame.path).name == frame.source.partition("#")[0]
        self._names.titles[frame.source] = str(frame.path) if is_called_by_path else frame.source
        look = (frame.aspect, frame.color)
        if self._looks.get(frame.source, look) != look:
            self._end(frame.source)
        self._looks[frame.source] = look
        if self._span.before_s is None:
            self._record(frame.source, image, frame.timestamp, frame.time)
            self._files[frame.source].has_event |= bool(frame.request.get("events"))
            return
        ring = self._rings.setdefault(frame.source, _Ring())
        ring.add(image, frame.timestamp, frame.time)
        begin_s = frame.timestamp - self._span.before_s
        ring.forget(begin_s)
        if begin_s > ring.until_s:  # no event can overlap it any more
            self._end(frame.source)
        if frame.request.get("events"):
            ring.until_s = frame.timestamp + self._span.after_s
        if frame.timestamp <= ring.until_s:
            while ring.pictures:
                time_s, data, time = ring.pictures[0]
                self._record(frame.source, _decoded(data), time_s, time)
                ring.pictures.popleft()  # not before: a full disk gets it again
        ring.is_live = frame.live
        ring.came_s = self.runner_clock.now()  # behind what a slow disk takes

    def tick(self) -> None:
        """Delete what may not stay, write what waits for the disk, and end clips of live sources that are silent."""
        self._look()
        self._advance()

    def _advance(self) -> None:
        now_s = self.runner_clock.now()
        errors = []
        for packets in self._copies:
            try:
                packets.advance(now_s)
            except OSError as error:  # the others are written all the same
                errors.append(error)
        for source, ring in self._rings.items():
            if ring.is_live and now_s - ring.came_s >= self._span.after_s:
                self._end(source)
        if errors:
            raise errors[0]

    def _record(self, source: str, image: Any, timestamp: float, time: float | None) -> None:
        """Add a picture to the video of a source, or begin one."""
        size = image.shape[:2]
        file = self._files.get(source)
        if file is not None:
            try:
                file.flush()
            except OSError:
                if not file.has_failed:
                    raise
            else:
                if timestamp == file.last_s:  # it was that frame which could not be written
                    file.count += 1
                    return
                is_over = timestamp - file.first_s >= self._span.every_s
                if file.size != size or timestamp < file.last_s or is_over:
                    self._end(source)
        if source not in self._files or file is None or file.has_failed:
            kind = "part" if file is None or file.size == size else "size"
            self._files[source] = self._begin(source, size, kind, time)
            if file is not None and file.has_failed:
                self._note(source, self._finish(file), file.error)
        self._files[source].add(image, timestamp)

    def _begin(
        self, source: str, size: tuple[int, ...], kind: str, time: float | None
    ) -> VideoFile:
        path, title = self._names.take(source, kind, time)
        mark = self._begin_mark()
        file = VideoFile(path, size, self.codec, self.options or {}, title=title, mark=mark)
        file.set_look(*self._looks[source])
        self._names.counts[source] += 1
        return file

    def _begin_copy(self, source: str, connection: Connection, ago_s: float) -> CopiedFile:
        path, title = self._names.take(source, "part", utc() - ago_s, connection.suffix)
        file = CopiedFile(path, connection, title=title, mark=self._begin_mark())
        self._names.counts[source] += 1
        return file

    def _finish(self, file: VideoFile) -> int:
        missing = file.finish()
        self._note_finished(file.path, is_event=file.has_event)
        return missing

    def _begin_mark(self) -> Mark:
        return self._look(is_begin=True)._replace(is_event=self._span.before_s is not None)

    def _open_bytes(self) -> int:
        return sum(file.written_bytes for file in self._open)

    @property
    def _open(self) -> list[VideoFile]:
        return [*self._files.values(), *itertools.chain(*(copy.files for copy in self._copies))]

    def _stored(self) -> Iterator[tuple[Path, os.stat_result, Mark]]:
        """Yield the videos that bear a mark. What a dead run has begun is finished before."""
        before, self._marks = self._marks, {}
        being_written = {file.path.name for file in self._open}
        pattern = r".+\.(mp4|mkv)(\.part)?" if self._bounds.is_any else r".+\.(mp4|mkv)\.part"
        for path, status in files_in(self._folder, pattern):
            is_part = path.suffix == ".part"
            if is_part and (status.st_mtime > utc() - DEAD_S or path.stem in being_written):
                continue
            with suppress(OSError):  # another program deletes too
                if not is_part:
                    mark = self._mark_of(path, status, before)
                else:
                    with held(path) as is_dead:
                        if not is_dead:
                            continue
                        mark = self._mark_of(path, status, before) if status.st_size else self._mark
                        if status.st_size and mark and self._mark and mark[:2] == self._mark[:2]:
                            path = _finished(path, mark)
                            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
                if mark is not None:
                    yield path, status, mark

    def _mark_of(
        self, path: Path, status: os.stat_result, before: dict[tuple[str, int, int], Mark | None]
    ) -> Mark | None:
        """Return whose a video is. It is read once."""
        key = (path.name, status.st_mtime_ns, status.st_size)
        mark = self._marks[key] = before[key] if key in before else mark_in(path)
        return mark

    def _end(self, source: str) -> None:
        """Finish the file of a source.

        Raises:
            OSError: The disk is full, or the file has failed, and lacks what is said, once.
        """
        if source in self._files:
            file = self._files[source]
            missing = self._finish(file)
            del self._files[source]
            self._note(source, missing, file.error)

    def _note(self, source: str, missing: int, error: str | None) -> None:
        if missing:
            self.missing += missing
            raise OSError(f"{missing} pictures of {source} are in no video: {error}")

    def source_ended(self, source: str) -> None:
        """Finish the video of a source."""
        self._copies.end(source)
        self._rings.pop(source, None)
        self._end(source)
        self._looks.pop(source, None)

    def close(self) -> None:
        """Finish all videos."""
        errors = []
        for source in [*self._files, *self._copies.sources]:
            try:
                self.source_ended(source)
            except Exception as error:  # noqa: BLE001 - the others are finished all the same
                errors.append(error)
        if errors:
            raise errors[0]

    def give_up(self) -> int:
        """Finish all videos with what the disk has room for. Return how many frames are lost."""
        lost = 0
        for packets in self._copies:
            packets.give_up()
        for file in self._files.values():
            try:
                lost += file.finish(is_last=True)
            except Exception:  # noqa: BLE001 - the others are finished all the same
                lost += file.count
        self._files.clear()
        return lost

    def status(self) -> dict[str, Any]:
        """Return how many frames are ``missing`` in the videos: of files that could not be gone on with.

        With ``codec = "copy"`` also how many packets are in no file, ``lost_packets``, and why, ``copy_error``.
        """
        if not self.copies_packets:
            return {"missing": self.missing}
        return {"missing": 0} | self._copies.status()


class _Copies:
    """The packets of each source that are copied. Those of a connection that has ended come first, until they are written."""

    def __init__(self) -> None:
        self._packets: dict[str, list[Packets]] = {}
        self._lost = 0

    def __iter__(self) -> Iterator[Packets]:
        """Yield the packets of all sources, though other threads add some meanwhile."""
        return itertools.chain(*list(self._packets.values()))

    @property
    def sources(self) -> list[str]:
        """The source of each of them."""
        return [name for name, copies in self._packets.items() for _ in copies]

    def oldest(self, source: str) -> Packets:
        """Return those of a source to which its frames belong."""
        return self._packets[source][0]

    def add(self, source: str, packets: Packets) -> None:
        """Put the packets of another connection behind those of the source."""
        self._packets.setdefault(source, []).append(packets)

    def end(self, source: str) -> None:
        """Write the oldest of a source to their end, and let go of them."""
        if packets := self._packets.get(source):
            packets[0].advance(is_over=True)
            self._lost += packets.pop(0).lost

    def status(self) -> dict[str, Any]:
        """Return how many packets are in no file, and why."""
        copies = list(self)
        errors = [copy.error for copy in copies if copy.error]
        lost = self._lost + sum(copy.lost for copy in copies)
        return {"lost_packets": lost, "copy_error": errors[0] if errors else None}


class _Ring:
    """The last pictures of a source, as JPEG, in case that there is an event.

    Attributes:
        pictures: Times in seconds, pictures, and when they were captured.
        is_live: Whether the source is live.
        came_s: When the last one came, by the clock of the sink.
        until_s: The time until which pictures are recorded.
    """

    def __init__(self) -> None:
        self.pictures: deque[tuple[float, bytes, float | None]] = deque()
        self.until_s = self._last_s = -math.inf
        self.is_live, self.came_s = False, math.inf

    def add(self, image: Any, time_s: float, time: float | None) -> None:
        """Keep a picture. One that is there already, as it could not be written, is not kept again."""
        if time_s < self._last_s:  # the source has begun again
            self.pictures.clear()
            self.until_s = -math.inf
        if time_s != self._last_s:
            self.pictures.append((time_s, encoded(".jpg", image), time))
        self._last_s = time_s

    def forget(self, before_s: float) -> None:
        """Keep no picture from before a time."""
        while self.pictures and self.pictures[0][0] < before_s:
            self.pictures.popleft()


def _finished(part: Path, mark: Mark) -> Path:
    """Finish the video that a run has left. Return its path, also where it cannot be played."""
    path = part.with_suffix("")
    if path.exists() or not write_index(part, str(mark)):
        return part
    return part.replace(path)


def _decoded(data: bytes) -> Any:
    import cv2
    import numpy as np

    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
