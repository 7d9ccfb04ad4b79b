"""The counts of backends in ``Pipeline.stats()``."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Counted", "Shown"]


class Counted(Protocol):
    """Something that counts requests."""

    def statistics(self) -> dict[str, int]:
        """Return the counts by name."""


class Shown:
    """The counts of a backend in ``Pipeline.stats()``: of the object that it used last."""

    def __init__(self, now: Counted) -> None:
        self.now = now

    def statistics(self) -> dict[str, int]:
        """Return the counts by name."""
        return self.now.statistics()
