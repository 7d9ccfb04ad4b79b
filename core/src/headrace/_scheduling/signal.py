"""A binary semaphore on one raw lock."""

from __future__ import annotations

import threading

__all__ = ["Signal"]


class Signal:
    """A binary semaphore on one raw lock; a stale signal is harmless, its sleeper looks again."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Let the sleeper, or the next one, go on."""
        try:  # noqa: SIM105 - contextlib.suppress costs a microsecond here
            self._lock.release()
        except RuntimeError:
            pass  # it was awake already

    def sleep(self, timeout_s: float | None = None) -> bool:
        """Sleep until woken; False when ``timeout_s`` was over first."""
        if timeout_s is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
