"""What ``Pipeline.stats()`` shows of the words that count requests."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Counted", "Shown"]


class Counted(Protocol):
    """Something that counts requests."""

    def statistics(self) -> dict[str, int]:
        """Return the counts by name."""


class Shown:
    """What ``Pipeline.stats()`` shows of a word: the statistics of what it used last, before and after a reload."""

    def __init__(self, now: Counted) -> None:
        self.now = now

    def statistics(self) -> dict[str, int]:
        """Return the counts by name."""
        return self.now.statistics()
