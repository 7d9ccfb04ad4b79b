"""Recording without decoding: the packets of a source, as its reader sees them, into files."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any

from headrace_vision.reading.connection import Connection, StreamPacket
from headrace_vision.reading.packet_files import PacketFiles

__all__ = ["Packets", "Span"]

WAIT_S = 10.0
"""Most seconds for which a packet of a file waits for the disk, before the oldest one is lost."""


@dataclass(frozen=True)
class Span:
    """What is recorded: everything (``before_s`` is None), or seconds around events, in files of ``every_s`` seconds."""

    before_s: float | None
    after_s: float
    every_s: float
    most_bytes: int


class PacketQueue:
    """The last packets of a source, the oldest first. It has no lock.

    Attributes:
        packets: The packets.
        size_bytes: How many bytes they are.
        written: How many of them are in a file, from the oldest on.
    """

    def __init__(self) -> None:
        self.packets: list[StreamPacket] = []
        self.size_bytes = self.written = 0

    @property
    def next_packet(self) -> StreamPacket | None:
        """The oldest that is in no file, None if there is none."""
        return self.packets[self.written] if self.written < len(self.packets) else None

    @property
    def second_key(self) -> int:
        """How many packets there are before the second key frame."""
        keys = (at for at, packet in enumerate(self.packets) if at and packet.is_key)
        return next(keys, len(self.packets))

    def of(self, connection: Connection) -> list[StreamPacket]:
        """Return the packets of a connection."""
        return [packet for packet in self.packets if packet.connection is connection]

    def add(self, packet: StreamPacket) -> None:
        """Put a packet at the end."""
        self.packets.append(packet)
        self.size_bytes += packet.packet.size

    def remove(self, unwanted: Collection[StreamPacket]) -> None:
        """Remove packets that are in no file."""
        self.size_bytes -= sum(packet.packet.size for packet in unwanted)
        unwanted = set(unwanted)
        self.packets = [packet for packet in self.packets if packet not in unwanted]

    def drop(self, count: int) -> int:
        """Remove the oldest ones. Return how many of them are in no file."""
        lost = max(count - self.written, 0)
        self.size_bytes -= sum(packet.packet.size for packet in self.packets[:count])
        del self.packets[:count]
        self.written = max(self.written - count, 0)
        return lost


class Packets:
    """The last packets of a source, bounded in bytes. Its reader puts them, and the thread of the sink writes those to be recorded.

    Args:
        span: What is recorded.
        make: Begins a file, see `headrace_vision.reading.packet_files.PacketFiles`.
        end: Finishes it.

    Attributes:
        error: Why packets cannot be written now, or None.
    """

    def __init__(
        self, span: Span, make: Callable[[Connection, float], Any], end: Callable[[Any], int]
    ) -> None:
        self.error: str | None = None
        self._span = span
        self._is_whole = span.before_s is None
        self._files = PacketFiles(make, end, span.every_s, waits=self._is_whole)
        self._windows = [[-math.inf, math.inf]] if self._is_whole else []
        self._horizon_s = self._seen_s = -math.inf
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._queue = PacketQueue()
        self._lost = 0
        self._connection: Connection | None = None
        self._refusal: str | None = (
            'codec = "copy" has no packets to record: this source is no video'
        )
        self._is_live = False
        self._came = self._came_then = 0
        self._quiet_from_s = math.inf

    @property
    def files(self) -> list[Any]:
        """The files that are not finished yet, the oldest first."""
        return self._files.unfinished

    @property
    def lost(self) -> int:
        """How many packets that were to be recorded are in no file."""
        return self._lost + self._files.lost

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
                for old in self._queue.of(connection):
                    old.pts = old.dts = dts - round((now_s - old.came_s) / connection.unit)
            elif dts is not None and dts < connection.known[0] - 1 / connection.unit:  # type: ignore[index]
                self._follow(connection := copy(connection))  # its clock began again
                connection.offset_s = None
            if dts is not None:
                connection.known = (dts, now_s)
            own = av.Packet(packet)  # the decoder has the other one
            own.is_keyframe, own.duration = packet.is_keyframe, packet.duration
            self._queue.add(StreamPacket(own, connection, now_s, pts, dts))
            self._came += 1
            while self._queue.size_bytes > self._span.most_bytes and len(self._queue.packets) > 1:
                lost = self._queue.drop(self._queue.second_key)
                self._lost += lost if self._windows else 0

    def note(self, time_s: float | None, timestamp: float) -> None:
        """Note that a picture, with a time of the stream in seconds, became a frame with this timestamp."""
        with self._lock:
            connection = self._connection
            if connection is None:
                return
            if not connection.size[0]:
                connection.size = (connection.codec.width, connection.codec.height)
                # FFmpeg takes pictures for shown as they are stored where nobody decoded one. They are not more than a second apart.
                first = next(iter(self._queue.of(connection)), None)
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
            self._files.mark_event(timestamp)
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
            self._files.end_seen(self._seen_s, now_s, is_over=is_over)
            self._advance(now_s, is_over=is_over, is_quiet=self._is_quiet(now_s))
            self._files.end_seen(self._seen_s, now_s, is_over=is_over)
            self.error = None
        except OSError as error:
            self.error = error.strerror or str(error)
            raise

    def give_up(self) -> None:
        """Finish the files with what the disk has room for. The rest is lost."""
        until_s = self._windows[-1][1] if self._windows else -math.inf
        left = self._queue.packets[self._queue.written :]
        self._lost += sum(self._is_due(packet, until_s) for packet in left)
        self._files.give_up()

    def _is_quiet(self, now_s: float) -> bool:
        if self._came != self._came_then:
            self._came_then, self._quiet_from_s = self._came, now_s
        is_clip = self._is_live and not self._is_whole
        return is_clip and now_s - self._quiet_from_s >= self._span.after_s

    def _wait_for_room(self, connection: Connection, size_bytes: int) -> None:
        """Let a file be read no faster than the disk takes it. A camera does not wait."""
        if self._is_whole and not self._is_live and connection.size[0]:
            most_bytes = self._span.most_bytes - size_bytes
            self._has_room.wait_for(
                lambda: self.error or self._queue.size_bytes <= most_bytes, WAIT_S
            )

    def _follow(self, connection: Connection | None) -> None:
        """Go on with a connection. Forget those packets of the last one that nothing will tell the time of: no picture did."""
        last, self._connection = self._connection, connection
        if last is connection or last is None:
            return
        is_known = bool(last.size[0]) and (self._is_whole or last.offset_s is not None)
        packets = self._queue.of(last)
        timeless = [packet for packet in packets if not (is_known and packet.dts is not None)]
        self._queue.remove(timeless)
        self._lost += len(timeless) if self._windows else 0

    def _trim(self) -> None:
        """Forget what no recording will need: all up to the last key frame before it may begin."""
        queue = self._queue
        if self._is_whole:
            queue.drop(queue.written)
            return
        is_writing = self._files.current is not None
        windows = self._windows[1:] if is_writing else self._windows
        start_s = min([self._horizon_s, *(begin_s for begin_s, _ in windows)])
        while (count := queue.second_key) < len(queue.packets):
            key = queue.packets[count]
            is_needed = is_writing and count > queue.written
            if is_needed or key.connection.seconds(key.pts) > start_s:
                return
            queue.drop(count)

    def _is_due(self, packet: StreamPacket, until_s: float) -> bool:
        connection = packet.connection
        if packet.dts is None or not connection.size[0]:
            return False
        return self._is_whole or connection.seconds(packet.dts - connection.early) <= until_s

    def _advance(self, now_s: float, *, is_over: bool, is_quiet: bool) -> None:
        files, queue = self._files, self._queue
        while True:
            files.flush()
            with self._lock:
                self._trim()
                self._has_room.notify_all()
                until_s = self._windows[0][1] if self._windows else -math.inf
                packet = queue.next_packet
                if packet is not None and not (self._windows and self._is_due(packet, until_s)):
                    packet = None
                ago_s = 0.0 if packet is None else queue.packets[-1].came_s - packet.came_s
                file = files.current
                is_left = file is not None and file.connection is not self._connection
            if packet is not None:
                files.copy(packet, ago_s, now_s)
                with self._lock:
                    if queue.next_packet is packet:
                        queue.written += 1
                    else:  # it was let go while it was written
                        self._lost -= 1
            elif self._windows and (is_over or self._horizon_s > until_s):
                files.end()
                with self._lock:
                    self._windows.pop(0)
                    queue.written = 0
            else:
                if is_left or is_quiet:
                    files.end(now_s)
                if is_over:
                    files.forget_cut()
                return
