"""Recording without decoding: the packets of a source, as its reader sees them, into files."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

__all__ = ["CONTAINERS", "Connection", "Packets", "Span"]

CONTAINERS = {".mp4": "mp4", ".mkv": "matroska"}
"""FFmpeg's format by the suffix of a video. Matroska holds what MP4 has no place for."""

WAIT_S = 10.0
"""Most seconds for which a packet of a file waits for the disk, before the oldest one is lost."""

SEEN_S = 10.0
"""Most seconds for which a file that is over waits until its last frames are seen, whose events may mark it."""


class Connection:
    """What packets share that belong into one file: they come from one connection, or one round of a file.

    Args:
        stream: A video stream of PyAV. Its parameters are copied.
        begun_s: When it was opened, in seconds, if its packets have no times but those of arrival, else None.

    Attributes:
        template: A stream that files are made like.
        suffix: That of files with a place for it, ``".mp4"`` or ``".mkv"``.
        unit: Unit of the times of its packets in seconds.
        known: A time of a packet, and when it came, in seconds. None until one has a time.
        offset_s: What is added to times of packets for those of frames. None until a frame was decoded.
        size: Width and height of its pictures in pixels. (0, 0) until one was decoded.
        early: By how much packets are decoded before their times of decoding.
        extradata: What decoders need beside the packets, where it has changed since the template, else None.

    Raises:
        ValueError: Its pictures are not encoded, as those of some cameras, or no container holds them.
    """

    def __init__(self, stream: Any, begun_s: float | None) -> None:
        import av

        self.codec = stream.codec_context
        self.size = (0, 0)
        self.early = 0
        self.unit = stream.time_base if begun_s is None else Fraction(1, 90_000)
        self.has_times = begun_s is None
        self.known = None if begun_s is None else (0, begun_s)
        self.offset_s: float | None = None
        self.extradata: bytes | None = None
        self._seen: bytes | None = None
        self._sets: Any = None
        with suppress(ValueError):  # a codec whose packets have no parameters
            self._sets = av.bitstream.BitStreamFilterContext("extract_extradata", stream)
        if self.codec.name in ("rawvideo", "wrapped_avframe"):
            raise ValueError("its pictures are not encoded")
        for self.suffix, kind in CONTAINERS.items():
            with av.open(io.BytesIO(), "w", format=kind) as container:
                if self.codec.name in container.supported_codecs or kind == "matroska":
                    self.template = container.add_stream_from_template(stream, opaque=True)
                    break

    def at(self, packet: Any) -> Connection:
        """Return where a key frame belongs: here, or to what follows where the stream changes with it, as in size."""
        import av

        given = [packet] if self._sets is None else [packet, *self._sets.filter(av.Packet(packet))]
        kind = "new_extradata"
        sets = [part.get_sidedata(kind) for part in given if part.has_sidedata(kind)]
        if not sets or (extradata := bytes(sets[-1])) == self._seen:
            return self
        if self._seen is None:
            self._seen = extradata
            return self
        changed = copy(self)
        changed.extradata = changed._seen = extradata
        decoder = av.CodecContext.create(self.codec.name, "r")
        pictures = [*decoder.decode(packet), *decoder.decode(None)]
        changed.size = (pictures[0].width, pictures[0].height)
        return changed

    def seconds(self, ticks: int | None) -> float:
        """Return the time of a frame in seconds. It is infinite while it is not known."""
        if ticks is None or self.offset_s is None:
            return math.inf
        return float(ticks * self.unit) + self.offset_s


@dataclass(slots=True, eq=False)
class _Kept:
    """A packet, with its times in units of its connection. They are None until they are known."""

    packet: Any
    connection: Connection
    came_s: float
    pts: Any
    dts: Any


@dataclass(frozen=True)
class Span:
    """What is recorded: everything (``before_s`` is None), or seconds around events, in files of ``every_s`` seconds."""

    before_s: float | None
    after_s: float
    every_s: float
    most_bytes: int


class Packets:
    """The last packets of a source, bounded in bytes. Its reader puts them, and the thread of the sink writes those to be recorded.

    Args:
        span: What is recorded.
        make: Begins a file, a `headrace_vision.sinks.recorded_files.CopiedFile`, whose first packet came so many seconds ago.
        end: Finishes it, or raises OSError, and is called again. It returns how many packets the file lacks.

    Attributes:
        lost: How many packets that were to be recorded are in no file.
        error: Why packets cannot be written now, or None.
        file: What is being written, or None.
    """

    def __init__(
        self, span: Span, make: Callable[[Connection, float], Any], end: Callable[[Any], int]
    ) -> None:
        self.lost = 0
        self.error: str | None = None
        self.file: Any = None
        self._over: list[tuple[Any, float]] = []  # files to be finished, and by when
        self._span, self._make, self._end = span, make, end
        self._is_whole = span.before_s is None
        self._windows = [[-math.inf, math.inf]] if self._is_whole else []
        self._horizon_s = self._seen_s = -math.inf
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._kept: list[_Kept] = []
        self._bytes = self._done = 0
        self._connection: Connection | None = None
        self._refusal: str | None = (
            'codec = "copy" has no packets to record: this source is no video'
        )
        self._cut: Connection | None = None
        self._is_live = False
        self._came = self._came_then = 0
        self._quiet_from_s = math.inf

    @property
    def files(self) -> list[Any]:
        """The files that are not finished yet, the oldest first."""
        return [*(file for file, _ in self._over), *filter(None, [self.file])]

    # The thread that reads the source calls these.

    def begin(self, stream: Any, begun_s: float | None, *, is_live: bool = False) -> None:
        """Note that a connection or file was opened. See `Connection`. One that is not live waits for the disk."""
        connection = self._refusal = None
        try:
            connection = Connection(stream, begun_s)
        except ValueError as error:  # which `see` says
            self._refusal = (
                f'codec = "copy" cannot record this source: {error}. '
                "Record it with an encoder, or ask the camera for another format"
            )
        with self._lock:
            self._is_live = is_live
            self._follow(connection)

    def hang_up(self) -> None:
        """Note that no packet of the connection follows, so that its file can be finished."""
        with self._lock:
            self._follow(None)

    def put(self, packet: Any, now_s: float) -> None:
        """Keep a packet that came at a time in seconds."""
        import av

        connection = self._connection
        if connection is None or not packet.size:
            return
        belongs = connection
        if packet.is_keyframe:
            with suppress(av.FFmpegError, IndexError):  # a damaged one
                belongs = connection.at(packet)
        pts, dts = (packet.pts, packet.dts) if connection.has_times else (None, None)
        pts, dts = dts if pts is None else pts, pts if dts is None else dts
        with self._lock:
            self._wait_for_room(connection, packet.size)
            self._follow(connection := belongs)
            if dts is None and connection.known is not None:
                ticks, then_s = connection.known
                pts = dts = ticks + round((now_s - then_s) / connection.unit)
            elif dts is not None and connection.known is None:  # as behind the first of RTSP
                for kept in self._kept:
                    if kept.connection is connection:
                        kept.pts = kept.dts = dts - round((now_s - kept.came_s) / connection.unit)
            elif dts is not None and dts < connection.known[0] - 1 / connection.unit:  # type: ignore[index]
                self._follow(connection := copy(connection))  # its clock began again
                connection.offset_s = None
            if dts is not None:
                connection.known = (dts, now_s)
            own = av.Packet(packet)  # the decoder has the other one
            own.is_keyframe, own.duration = packet.is_keyframe, packet.duration
            self._kept.append(_Kept(own, connection, now_s, pts, dts))
            self._bytes += own.size
            self._came += 1
            while self._bytes > self._span.most_bytes and len(self._kept) > 1:
                count = self._next_key()
                self.lost += max(count - self._done, 0) if self._windows else 0
                self._drop(count)

    def note(self, time_s: float | None, timestamp: float) -> None:
        """Note that a picture, with a time of the stream in seconds, became a frame with this timestamp."""
        with self._lock:
            connection = self._connection
            if connection is None:
                return
            if not connection.size[0]:
                connection.size = (connection.codec.width, connection.codec.height)
                # FFmpeg takes pictures for shown as they are stored where nobody decoded one. They are not more than a second apart.
                first = next((kept for kept in self._kept if kept.connection is connection), None)
                is_wrong = (
                    first is not None and connection.codec.has_b_frames and first.dts == first.pts
                )
                connection.early = round(1 / connection.unit) if is_wrong else 0
            if not connection.has_times or time_s is None:
                if connection.offset_s is not None or connection.known is None:
                    return
                time_s = float(connection.known[0] * connection.unit)
            connection.offset_s = timestamp - time_s

    # The thread of the sink calls these.

    def see(self, timestamp: float, *, is_event: bool) -> None:
        """Note how far frames were seen, and that what is around this one is recorded if it has an event.

        Raises:
            ValueError: The source has no packets that can be recorded.
        """
        if self._refusal is not None:
            raise ValueError(self._refusal)
        if is_event:
            begun = [file for file in self.files if file.begin_s <= timestamp]
            if begun:
                begun[-1].has_event = True
        if timestamp == self._seen_s:
            return
        self._seen_s = timestamp
        if self._span.before_s is None:
            return
        with self._lock:
            self._horizon_s = timestamp - self._span.before_s
            until_s = timestamp + self._span.after_s
            if is_event and self._windows and self._horizon_s <= self._windows[-1][1]:
                self._windows[-1][1] = until_s
            elif is_event:
                self._windows.append([self._horizon_s, until_s])

    def advance(self, now_s: float = -math.inf, *, is_over: bool = False) -> None:
        """Write what is to be recorded by now.

        Args:
            now_s: The time by a clock. A clip ends once its live source sends nothing for ``after_s``.
            is_over: Whether no packet follows.

        Raises:
            OSError: It cannot be written now. It is kept for the next call.
        """
        try:
            self._finish_seen(now_s, is_over=is_over)
            self._advance(now_s, is_over=is_over, is_quiet=self._is_quiet(now_s))
            self._finish_seen(now_s, is_over=is_over)
            self.error = None
        except OSError as error:
            self.error = error.strerror or str(error)
            raise

    def give_up(self) -> None:
        """Finish the file with what the disk has room for. The rest is lost."""
        until_s = self._windows[-1][1] if self._windows else -math.inf
        self.lost += sum(self._is_due(kept, until_s) for kept in self._kept[self._done :])
        for file in self.files:
            self.lost += file.finish(is_last=True)

    def _is_quiet(self, now_s: float) -> bool:
        if self._came != self._came_then:
            self._came_then, self._quiet_from_s = self._came, now_s
        is_clip = self._is_live and not self._is_whole
        return is_clip and now_s - self._quiet_from_s >= self._span.after_s

    def _wait_for_room(self, connection: Connection, size_bytes: int) -> None:
        """Let a file be read no faster than the disk takes it. A camera does not wait."""
        if self._is_whole and not self._is_live and connection.size[0]:
            most_bytes = self._span.most_bytes - size_bytes
            self._has_room.wait_for(lambda: self.error or self._bytes <= most_bytes, WAIT_S)

    def _follow(self, connection: Connection | None) -> None:
        """Go on with a connection. Forget those packets of the last one that nothing will tell the time of: no picture did."""
        last, self._connection = self._connection, connection
        if last is connection or last is None:
            return
        is_known = bool(last.size[0]) and (self._is_whole or last.offset_s is not None)
        for at in reversed(range(len(self._kept))):
            kept = self._kept[at]
            if kept.connection is last and not (is_known and kept.dts is not None):
                self._bytes -= kept.packet.size
                self.lost += bool(self._windows)
                del self._kept[at]

    def _next_key(self) -> int:
        """Return how many packets there are before the second key frame."""
        keys = (at for at, kept in enumerate(self._kept) if at and kept.packet.is_keyframe)
        return next(keys, len(self._kept))

    def _drop(self, count: int) -> None:
        self._bytes -= sum(kept.packet.size for kept in self._kept[:count])
        del self._kept[:count]
        self._done = max(self._done - count, 0)

    def _trim(self) -> None:
        """Forget what no recording will need: all up to the last key frame before it may begin."""
        if self._is_whole:
            self._drop(self._done)
            return
        windows = self._windows[1:] if self.file else self._windows
        start_s = min([self._horizon_s, *(begin_s for begin_s, _ in windows)])
        while (count := self._next_key()) < len(self._kept):
            kept = self._kept[count]
            is_needed = self.file is not None and count > self._done
            if is_needed or kept.connection.seconds(kept.pts) > start_s:
                return
            self._drop(count)

    def _is_due(self, kept: _Kept, until_s: float) -> bool:
        connection = kept.connection
        if kept.dts is None or not connection.size[0]:
            return False
        return self._is_whole or connection.seconds(kept.dts - connection.early) <= until_s

    def _advance(self, now_s: float, *, is_over: bool, is_quiet: bool) -> None:
        while True:
            if self.file is not None and not self.file.has_failed:
                self.file.flush()
            with self._lock:
                self._trim()
                self._has_room.notify_all()
                until_s = self._windows[0][1] if self._windows else -math.inf
                kept = self._kept[self._done] if self._done < len(self._kept) else None
                if kept is not None and not (self._windows and self._is_due(kept, until_s)):
                    kept = None
                ago_s = 0.0 if kept is None else self._kept[-1].came_s - kept.came_s
                is_left = self.file is not None and self.file.connection is not self._connection
            if kept is not None:
                self._write(kept, ago_s, now_s)
                with self._lock:
                    if self._done < len(self._kept) and self._kept[self._done] is kept:
                        self._done += 1
                    else:  # it was let go while it was written
                        self.lost -= 1
            elif self._windows and (is_over or self._horizon_s > until_s):
                self._end_file()
                with self._lock:
                    self._windows.pop(0)
                    self._done = 0
            else:
                if is_left or is_quiet:
                    self._end_file(now_s)
                if is_over:
                    self._cut = None
                return

    def _write(self, kept: _Kept, ago_s: float, now_s: float) -> None:
        """Hand a packet over to its file. What is no key frame begins none."""
        file, is_key = self.file, kept.packet.is_keyframe
        if file is not None and (
            file.connection is not kept.connection
            or file.has_failed
            or (is_key and file.seconds_at(kept.dts) >= self._span.every_s)
        ):
            self._end_file(now_s)
        if self.file is None and is_key:
            self.file = self._make(kept.connection, ago_s)
        if self.file is not None:
            self.file.copy(kept.packet, kept.pts, kept.dts)
        elif kept.connection is self._cut:  # in the middle of what was recorded
            self._count_lost(1)

    def _count_lost(self, count: int) -> None:
        with self._lock:  # the reader counts as well
            self.lost += count

    def _end_file(self, now_s: float | None = None) -> None:
        """Finish the file, or let it wait until all its frames are seen."""
        if self.file is None:
            return
        if now_s is None or self.file.has_failed or self.file.has_event or not self._is_whole:
            self._count_lost(self._end(self.file))
        else:
            self._over.append((self.file, now_s + SEEN_S))
        self._cut, self.file = self.file.connection, None

    def _finish_seen(self, now_s: float, *, is_over: bool) -> None:
        """Finish the files that are over and whose frames are seen, as one of the file behind is."""
        while self._over:
            file, until_s = self._over[0]
            later = self.files[1:]
            is_seen = bool(later) and later[0].begin_s <= self._seen_s
            if not (is_seen or is_over or file.has_event or now_s >= until_s):
                return
            self._count_lost(self._end(file))
            del self._over[0]
