"""Old instances of a node: each is closed when its last batch has ended."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace._engine.blueprint import BuiltNode
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.locks import Signal

__all__ = ["Retirement"]


class Retirement:
    """Old instances of a node, each closed when its last batch has ended.

    Attributes:
        scheduler: The scheduler they served.
        signal: Woken when one of them has ended its batch.
        over: Whether all are closed, and what they had in common.
    """

    def __init__(self, node: BuiltNode, instances: list[Instance], signal: Signal) -> None:
        self.scheduler = node.scheduler
        self.signal = signal
        self.over = False
        self._node: BuiltNode | None = node
        self._instances = instances
        self._left = list(instances)
        self._lock = threading.Lock()

    def close_ended_until(self, until: float) -> None:
        """Close those whose last batch has ended, waiting for another thread until ``until``."""
        self.close_ended(until - time.monotonic())

    def close_ended(self, timeout_s: float = -1.0) -> bool:
        """Close those whose last batch has ended; tell whether all are closed.

        Args:
            timeout_s: How long to wait for another thread that is closing them; -1 for ever.
        """
        if not self._lock.acquire(timeout=timeout_s if timeout_s == -1 else max(0.0, timeout_s)):
            return False
        try:
            node = self._node
            if node is not None:
                for instance in reversed(self.scheduler.take_retired(self._left)):
                    self._left.remove(instance)
                    index = self._instances.index(instance)
                    if index < len(node.instances):
                        node.instances[index].close()
                if not self._left:
                    node.parts.close()
                    self._node = None
                    self._instances = []
                    self.over = True
            return self.over
        finally:
            self._lock.release()
