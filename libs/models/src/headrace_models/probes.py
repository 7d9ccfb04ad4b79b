"""What a model hears of its pipelines: instances that are lost, and requests that had no memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace.errors import code_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InstancesProbe", "MemoryProbe"]


class InstancesProbe:
    """A probe that tells, in a thread of its own, that a node has lost all its instances.

    Args:
        all_lost: Called with the name of the node.
    """

    def __init__(self, all_lost: Callable[[str], None]) -> None:
        self._all_lost = all_lost
        self._states: dict[str, dict[int, str]] = {}

    def instance_changed(self, node: str, instance: int, state: str) -> None:
        """Note the state of an instance."""
        states = self._states.setdefault(node, {})
        states[instance] = state
        if {*states.values()} == {"lost"}:
            name = f"headrace-models-{node}"
            threading.Thread(target=self._all_lost, args=(node,), name=name, daemon=True).start()


class MemoryProbe(InstancesProbe):
    """A probe that also tells of requests that had no memory, where models have a budget.

    Args:
        all_lost: See `InstancesProbe`.
        no_memory: Called in a thread of its own, once at a time: all requests of a batch fail together.
    """

    def __init__(self, all_lost: Callable[[str], None], no_memory: Callable[[], None]) -> None:
        super().__init__(all_lost)
        self._no_memory = no_memory
        self._is_told = threading.Lock()

    def request_failed(self, node: str, request: Any, error: BaseException) -> None:
        """Look at the error of a request."""
        if code_of(error) == "memory" and self._is_told.acquire(blocking=False):
            name = "headrace-models-memory"
            try:
                threading.Thread(target=self._tell, name=name, daemon=True).start()
            except RuntimeError:  # no thread can be started: the next failure tries again
                self._is_told.release()
                raise

    def _tell(self) -> None:
        try:
            self._no_memory()
        finally:
            self._is_told.release()
