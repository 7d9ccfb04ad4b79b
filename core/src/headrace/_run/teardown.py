"""Closing a pipeline step by step, for a thread that waits no longer than its timeout."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from headrace._run.threads import Pool, Signal, took_token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Closing = tuple[str, Callable[[], object]]
    """What is closed, for the log, and the function that closes it."""

_log = logging.getLogger("headrace.close")

_AT_LEAST_S = 0.2
"""How long the steps may take at least, where waiting for batches has used up the timeout."""


class Watchers(list[Signal]):
    """The threads that sleep until a condition holds: each adds its signal first, and then looks at the condition."""

    def wait(self, is_so: Callable[[], bool], until: float | None = None) -> bool:
        """Sleep until ``is_so()``; False when ``until``, in seconds of `time.monotonic`, came first."""
        signal = Signal()
        self.append(signal)
        try:
            while not is_so():
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                signal.sleep(left)
            return True
        finally:
            self.remove(signal)

    def wake(self) -> None:
        """Wake all threads, which then look again."""
        for signal in self.copy():
            signal.wake()


class Pass:
    """One run over closing steps, one after the other, in a thread of the pool: a step that hangs is left behind.

    A thread that comes back from a step which was left behind takes no further one.

    Attributes:
        over: Whether the last step has ended.
        hangs: Whether a step was left behind.
    """

    def __init__(self, steps: Sequence[Closing], pool: Pool) -> None:
        self._pool = pool
        self._steps = deque(steps)
        self.over = self.hangs = False
        self._current = "the pipeline"
        self._watchers = Watchers()

    def start(self, until: float) -> bool:
        """Take the steps, and wait for them; after ``until`` another thread goes on behind the step that hangs."""
        until = max(until, time.monotonic() + _AT_LEAST_S)
        try:
            self._pool.run(self._run, turn := self._next_turn())
        except RuntimeError:  # no more threads
            self._run(turn)
        if self._watchers.wait(lambda: self.over, until):
            return True
        while not self.over:
            current = self._current
            if took_token(self._turn):
                self.hangs = True
                what = "closing %s has not ended in time; it is left behind, the rest is closed without it"
                _log.warning(what, current)
                self._pool.run(self._run, self._next_turn())
                break
        return self.over

    def _next_turn(self) -> list[None]:
        """Return a token for the next step: its thread takes it, or who leaves the step before behind."""
        self._turn: list[None] = [None]
        return self._turn

    def _run(self, turn: list[None]) -> None:
        while took_token(turn):
            if not self._steps:
                self.over = True
                self._watchers.wake()
                return
            what, close = self._steps.popleft()
            self._current, turn = what, self._next_turn()
            try:
                close()
            except BaseException as error:  # noqa: BLE001 - the others must be closed as well
                _log.warning("closing %s failed", what, exc_info=error)
