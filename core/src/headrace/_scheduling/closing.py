"""How a node ends: newcomers refused, what waits run or failed, what still runs left behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace._scheduling.entry import RUNNING
from headrace._scheduling.node import new_racks, own
from headrace._scheduling.reentrant import reentrant
from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._scheduling.crew import Crew
    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node, Rack
    from headrace.errors import ClosedError

__all__ = ["Ending"]


class Ending:
    """The end of a scheduler."""

    _node: Node
    _dispatcher: Dispatcher
    _crew: Crew
    _direct_max: int
    _rack: Rack

    @reentrant()
    def refuse(self, error: ClosedError, *, drain: bool) -> None:
        """Refuse newcomers from now on; fail those that wait for room, and all without drain."""
        node = self._node
        with node.lock:
            # Who takes an instance off an old rack looks at these afterwards.
            racks, node.lays_out = node.racks, False
            node.racks = new_racks()
            self._rack = node.racks[0]
            self._direct_max = 0
            node.collect(racks)
            if node.refusing is None:
                node.refusing = error
            node.settle_waiting(error, list(node.outside))
            if not drain:
                node.settle_waiting(error, list(node.line))
            self._dispatcher.dispatch(None)
            settled = node.take_settled()
        node.tell(settled)

    @reentrant()
    def wait_quiet(self, timeout_s: float) -> bool:
        """Wait until nothing waits or runs; False when the time was over first."""
        until = time.monotonic() + timeout_s
        signal = Signal()
        with self._node.lock:
            self._node.add_closer(signal)
        while True:
            with self._node.lock:
                if self._node.quiet:
                    return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            signal.sleep(left)

    @reentrant()
    def fail_open(self, error: ClosedError, retire: Callable[[Instance], None]) -> None:
        """Fail all that is still open; those a backend runs on are abandoned.

        Args:
            error: What they get.
            retire: Called with each instance whose batch ends later.
        """
        node = self._node
        with node.lock:
            node.dead = True
            node.retire = retire
            node.settle_waiting(error, [*node.line, *node.outside])
            for instance in node.every:
                for entry in instance.entries or ():
                    if entry.state == RUNNING:
                        abandoned = own(error)
                        abandoned.abandoned = True  # type: ignore[attr-defined]
                        node.settle(entry, abandoned)
            settled = node.take_settled()
        node.tell(settled)

    @reentrant()
    def stop_runners(self) -> None:
        """End the runner threads that sleep; the others end with their batch."""
        with self._node.lock:
            self._crew.stop()

    def after_fork(self, error: ClosedError) -> None:
        """Refuse everything in a child process."""
        self._node.after_fork()
        self._node.racks = new_racks()
        self._rack = self._node.racks[0]
        self._node.refusing, self._node.dead, self._direct_max = error, True, 0
