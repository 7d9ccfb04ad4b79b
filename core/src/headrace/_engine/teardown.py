"""Closing a pipeline step by step, for a thread that waits no longer than its timeout."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

from headrace._scheduling.threads import Signal, Watchers, drained, helpers, took_token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._engine.blueprint import BuiltNode
    from headrace._scheduling.instance import Instance

    Closing: TypeAlias = "tuple[str, Callable[[], object]]"
    """What is closed, for the log, and the function that closes it."""

_log = logging.getLogger("headrace.close")

_AT_LEAST_S = 0.2
"""How long the steps may take at least, where waiting for batches has used up the timeout."""


class _Pass:
    """One run over all closing steps, in their order.

    Attributes:
        left_behind: Whether a step hung, so that another thread took the steps after it.
        over: Whether the last step has ended.
    """

    def __init__(self, steps: Sequence[Closing]) -> None:
        self.left_behind = False
        self.over = False
        self._steps = deque(steps)
        self._current: str | None = None
        self._handing_over = [None]  # the thread that pops the None has another thread go on
        self._watchers = Watchers()

    def run(self) -> None:
        """Take one step after the other, also after one that has raised."""
        for what, close in drained(self._steps.popleft):
            self._current = what
            try:
                close()
            except BaseException as error:  # noqa: BLE001 - the others must be closed as well
                _log.warning("closing %s failed", what, exc_info=error)
        self.over = True
        self._watchers.wake()

    def wait(self, until: float) -> bool:
        """Wait for the last step; False when ``until`` came first."""
        return self._watchers.wait(lambda: self.over, until)

    def leave_behind(self) -> None:
        """Log the step that hangs, and let another thread take the steps after it."""
        if not took_token(self._handing_over):
            return  # another thread that waited as long does so
        self.left_behind = True
        _log.warning(
            "closing %s has not ended in time; it is left behind, the rest is closed without it",
            self._current or "the pipeline",
        )
        helpers.run(self.run)


class Teardown:
    """The passes of one pipeline, one at a time, each in a helper thread: a hanging step hangs only that."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pass = _Pass(())
        self._pass.over = True

    @property
    def busy(self) -> bool:
        """Whether a pass is running, or one of its steps hangs."""
        return self._pass.left_behind or not self._pass.over

    def run(self, steps: Callable[[], Sequence[Closing]], until: float) -> None:
        """Take the steps that ``steps()`` gives, after the pass before them; wait for it until ``until``.

        The calling thread may wait for a lock here, so it is never the main thread.
        """
        until = max(until, time.monotonic() + _AT_LEAST_S)
        own: _Pass | None = None
        while own is None:
            wanted = _Pass(steps())
            with self._lock:
                before = self._pass
                # Of two threads that close at a time, the first puts its pass here; the second waits for that
                # pass and then asks for its own steps anew, of which few may be left.
                if before.over or before.left_behind:
                    own = self._pass = wanted
            if own is not None:
                with suppress(RuntimeError):
                    helpers.run(own.run)
                if not helpers.ready:  # the system has no more threads, or the interpreter ends
                    own.run()
            current = own or before
            if not current.wait(until):
                current.leave_behind()
                return


class Retirement:
    """The old instances of a node, each of which is closed when its last batch has ended.

    Attributes:
        scheduler: The scheduler that the instances served.
        signal: Woken when one of the instances has ended its batch.
        over: Whether all instances are closed, and the parts that they shared.
    """

    def __init__(self, node: BuiltNode, instances: list[Instance], signal: Signal) -> None:
        self.scheduler = node.scheduler
        self.signal = signal
        self.over = False
        self._parts = node.parts
        self._left = dict(zip_longest(instances, node.instances))
        self._lock = threading.Lock()

    def close_ended(self, until: float | None = None) -> bool:
        """Close the instances whose last batch has ended; give whether all are closed.

        Args:
            until: How long to wait for another thread that does the same; None for ever.
        """
        timeout_s = -1.0 if until is None else max(0.0, until - time.monotonic())
        if not self._lock.acquire(timeout=timeout_s):
            return False
        try:
            for instance in reversed(self.scheduler.take_retired(list(self._left))):
                own = self._left.pop(instance)
                if own is not None:
                    own.close()
            if not self._left and not self.over:
                self._parts.close()
                self.over = True
            return self.over
        finally:
            self._lock.release()
