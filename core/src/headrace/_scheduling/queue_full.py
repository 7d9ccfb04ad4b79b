"""What becomes of a request that finds the queue full: one policy per value of ``queue_full``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    Decision = Literal["wait", "refuse", "shed"]

__all__ = ["QUEUE_FULL", "QueueFullPolicy"]


class QueueFullPolicy:
    """Decides about a request that finds the queue of its node full; pure, as all policies."""

    def decide(self, priority: int, lowest: int | None) -> Decision:
        """Decide whether the newcomer waits for room, is refused, or takes the place of another.

        Args:
            priority: That of the newcomer.
            lowest: The lowest priority of those that wait and count against the bound, None when none does.
        """
        raise TypeError(f"{type(self).__name__} has no decide")


class _Wait(QueueFullPolicy):
    def decide(self, priority: int, lowest: int | None) -> Decision:
        return "wait"


class _Reject(QueueFullPolicy):
    def decide(self, priority: int, lowest: int | None) -> Decision:
        return "refuse"


class _ShedOldest(QueueFullPolicy):
    def decide(self, priority: int, lowest: int | None) -> Decision:
        return "shed" if lowest is not None and lowest <= priority else "refuse"


QUEUE_FULL: Mapping[str, QueueFullPolicy] = {
    "wait": _Wait(),
    "reject": _Reject(),
    "shed_oldest": _ShedOldest(),
}
"""The policies by the value of the node key ``queue_full``."""
