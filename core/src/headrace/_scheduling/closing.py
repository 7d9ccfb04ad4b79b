"""How a node ends: newcomers refused, what waits run or failed, what still runs left behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace._scheduling.entry import RUNNING
from headrace._scheduling.node import own
from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node
    from headrace.errors import ClosedError

__all__ = ["fail_open", "refuse", "wait_quiet"]


def refuse(node: Node, dispatcher: Dispatcher, error: ClosedError, *, drain: bool) -> None:
    """Refuse newcomers from now on; fail those that wait for room, and all without drain."""
    with node.lock:
        if node.refusing is None:
            node.refusing = error
        node.settle_waiting(error, list(node.outside))
        if not drain:
            node.settle_waiting(error, list(node.line))
        dispatcher.dispatch(None)
        settled = node.take_settled()
    node.tell(settled)


def wait_quiet(node: Node, timeout_s: float) -> bool:
    """Wait until nothing waits or runs; False when the time was over first."""
    until = time.monotonic() + timeout_s
    signal = Signal()
    with node.lock:
        node.add_closer(signal)
    while True:
        with node.lock:
            if node.quiet:
                return True
        left = until - time.monotonic()
        if left <= 0:
            return False
        signal.sleep(left)


def fail_open(node: Node, error: ClosedError, retire: Callable[[Instance], None]) -> None:
    """Fail all that is still open; those a backend runs on are abandoned.

    Args:
        node: The node.
        error: What they get.
        retire: Called with each instance whose batch ends later.
    """
    with node.lock:
        node.dead = True
        node.retire = retire
        node.settle_waiting(error, [*node.line, *node.outside])
        for instance in node.instances:
            for entry in instance.entries or ():
                if entry.state == RUNNING:
                    abandoned = own(error)
                    abandoned.abandoned = True  # type: ignore[attr-defined]
                    node.settle(entry, abandoned)
        settled = node.take_settled()
    node.tell(settled)
