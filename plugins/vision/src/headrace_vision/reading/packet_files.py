"""The files that the packets of a source are copied into."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_vision.reading.connection import Connection, StreamPacket

__all__ = ["PacketFiles"]

SEEN_S = 10.0
"""Most seconds for which a file that is over waits until its last frames are seen, whose events may mark it."""


class PacketFiles:
    """The file that packets are copied into, and those that are over and wait until their last frames are seen.

    Args:
        make: Begins a file, a `headrace_vision.sinks.recorded_files.CopiedFile`, whose first packet came so many seconds ago.
        end: Finishes it, or raises OSError, and is called again. It returns how many packets the file lacks.
        every_s: A file of so many seconds ends at the next key frame.
        waits: Whether a file that is over waits until its frames are seen.

    Attributes:
        current: What is being written, or None.
        lost: How many packets are in no file.
    """

    def __init__(
        self,
        make: Callable[[Connection, float], Any],
        end: Callable[[Any], int],
        every_s: float,
        *,
        waits: bool,
    ) -> None:
        self.current: Any = None
        self.lost = 0
        self._make, self._end, self._every_s, self._waits = make, end, every_s, waits
        self._over: list[tuple[Any, float]] = []  # files to be finished, and by when
        self._cut: Connection | None = None

    @property
    def unfinished(self) -> list[Any]:
        """The files that are not finished yet, the oldest first."""
        return [*(file for file, _ in self._over), *filter(None, [self.current])]

    def mark_event(self, timestamp: float) -> None:
        """Note that a frame with an event was seen."""
        begun = [file for file in self.unfinished if file.begin_s <= timestamp]
        if begun:
            begun[-1].has_event = True

    def flush(self) -> None:
        """Write what waits for the disk."""
        if self.current is not None and not self.current.has_failed:
            self.current.flush()

    def copy(self, packet: StreamPacket, ago_s: float, now_s: float) -> None:
        """Hand a packet over to its file. What is no key frame begins none.

        Args:
            packet: It has times.
            ago_s: The seconds since it came.
            now_s: The time by a clock.
        """
        file = self.current
        if file is not None and (
            file.connection is not packet.connection
            or file.has_failed
            or (packet.is_key and file.seconds_at(packet.dts) >= self._every_s)
        ):
            self.end(now_s)
        if self.current is None and packet.is_key:
            self.current = self._make(packet.connection, ago_s)
        if self.current is not None:
            self.current.copy(packet.packet, packet.pts, packet.dts)
        elif packet.connection is self._cut:  # in the middle of what was recorded
            self.lost += 1

    def end(self, now_s: float | None = None) -> None:
        """Finish the file, or let it wait from a time by a clock until all its frames are seen.

        Args:
            now_s: The time. None where the file has all its frames.
        """
        file = self.current
        if file is None:
            return
        if now_s is None or file.has_failed or file.has_event or not self._waits:
            self.lost += self._end(file)
        else:
            self._over.append((file, now_s + SEEN_S))
        self._cut, self.current = file.connection, None

    def end_seen(self, seen_s: float, now_s: float, *, is_over: bool) -> None:
        """Finish the files that are over and whose frames are seen, as one of the file behind is."""
        while self._over:
            file, until_s = self._over[0]
            later = self.unfinished[1:]
            is_seen = bool(later) and later[0].begin_s <= seen_s
            if not (is_seen or is_over or file.has_event or now_s >= until_s):
                return
            self.lost += self._end(file)
            del self._over[0]

    def forget_cut(self) -> None:
        """Note that no packet follows which belongs to what was recorded."""
        self._cut = None

    def give_up(self) -> None:
        """Finish all files with what the disk has room for."""
        for file in self.unfinished:
            self.lost += file.finish(is_last=True)
