"""Which pictures of a video are built on one that is missing or lacks a part: all up to the next key frame."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import Any

__all__ = ["Damage"]

MOST_PENDING = 128
"""Most packets whose pictures are yet to come: those that a codec puts into another order, and one for each thread."""

LONG_STEP = 1.5
"""A step of decoding times that is so many times the longest of the last eight lacks a picture."""


class _Group:
    """The pictures from a key frame up to the next one.

    Args:
        key_pts: The presentation time of the key frame. Pictures before it are built on those of the group before as well.
        before: That group.
    """

    def __init__(self, key_pts: int | None = None, before: _Group | None = None) -> None:
        self.key_pts = key_pts
        self.before = before
        self.damaged_from = math.inf

    def is_damaged(self, number: int, pts: int | None) -> bool:
        """Return whether the picture of packet ``number`` is built on damage."""
        if number >= self.damaged_from:
            return True
        is_leading = pts is not None and self.key_pts is not None and pts < self.key_pts
        return is_leading and self.before is not None and self.before.damaged_from < math.inf


class Damage:
    """What is damaged in one open video.

    Args:
        may_lose: Whether packets may be missing, as over a network. Then a step in their times tells it.

    Attributes:
        gap: Whether pictures were damaged or missing since somebody took this back.
    """

    def __init__(self, *, may_lose: bool) -> None:
        self.gap = False
        self._may_lose = may_lose
        self._packets: OrderedDict[int | None, tuple[int, _Group]] = OrderedDict()
        self._number = 0
        self._gap_from = math.inf
        self._group = _Group()
        self._steps: deque[int] = deque(maxlen=8)
        self._last_dts: int | None = None

    def note(self, packet: Any) -> None:
        """Note a packet, before it is decoded."""
        self._number += 1
        if packet.is_keyframe:
            self._group.before = None
            self._group = _Group(packet.pts, self._group)
        self._packets[packet.pts] = (self._number, self._group)
        if len(self._packets) > MOST_PENDING:
            self._packets.popitem(last=False)
        lacks_one = self._lacks_one_before(packet.dts) and not packet.is_keyframe
        if packet.is_corrupt or lacks_one:
            self._begin(self._number, self._group)

    def _lacks_one_before(self, dts: int | None) -> bool:
        last, self._last_dts = self._last_dts, dts
        if not self._may_lose or dts is None or last is None:
            return False
        is_long = len(self._steps) == 8 and dts - last > LONG_STEP * max(self._steps)
        self._steps.append(dts - last)
        return is_long

    def note_error(self) -> None:
        """Note that a packet whose picture is yet to come cannot be decoded."""
        for number, group in self._packets.values():
            self._begin(number, group)

    def reaches(self, picture: Any) -> bool:
        """Return whether a picture that was decoded is damaged, or built on one that is."""
        number, group = self._packets.pop(picture.pts, (self._number, self._group))
        if picture.is_corrupt:
            self._begin(number, group)
        is_damaged = group.is_damaged(number, picture.pts)
        if number >= self._gap_from:
            self.gap = True
            self._gap_from = self._gap_from if is_damaged else math.inf
        return is_damaged

    def _begin(self, number: int, group: _Group) -> None:
        group.damaged_from = min(group.damaged_from, number)
        self._gap_from = min(self._gap_from, number)
