"""What a scheduler is made of, and what it does with requests before they enter."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from headrace._scheduling.calls import reentrant
from headrace._scheduling.driving import Driver
from headrace._scheduling.entry import checked_weight
from headrace._scheduling.helpers import shared_timer
from headrace._scheduling.node import Node
from headrace._scheduling.queue import Waits
from headrace.errors import InputError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.helpers import Timer
    from headrace._scheduling.instance import Instance, Limits
    from headrace.policies import BatchPolicy, DispatchPolicy

__all__ = ["SchedulerBase"]

ONE_AT_A_TIME: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether threads take turns in the interpreter, so that all see changes in the same order."""


class SchedulerBase:
    """What a scheduler is made of.

    Args:
        name: The node.
        instances: At least one.
        batch_policy, dispatch_policy: Decide when a batch is cut, and which instance takes it.
        limits: The queue keys.
        clock: Seconds, as `time.monotonic`.
        timer: Calls functions at times of that clock.
    """

    _uses_idle_lists = True
    _node_type: type[Node] = Node
    _driver_type: type[Driver] = Driver
    needs: Sequence[str] = ("data",)
    """The keys without which a request is refused."""

    def __init__(
        self,
        name: str,
        instances: Sequence[Instance],
        batch_policy: BatchPolicy,
        dispatch_policy: DispatchPolicy,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
        timer: Timer | None = None,
    ) -> None:
        self.name = name
        self.instances = list(instances)
        self.limits = limits
        self._timer = timer or shared_timer()
        self._node = node = self._node_type(name, instances, limits, clock)
        self._driver = driver = self._driver_type(node, batch_policy, dispatch_policy, self._timer)
        self._workers, self._dispatcher = driver.workers, driver.dispatcher
        # What `call` needs, one attribute away.
        self._idle_list = node.idle_lists[0]
        self._queue = node.queue
        self._quota = node.quota
        self.outside = node.outside
        self._linger = limits.batching_timeout_ms > 0 and self.max != 1
        self._unqueued_max = self._weight_for_shortcut(batch_policy)
        node.publishes = ONE_AT_A_TIME and self._unqueued_max > 0 and self._uses_idle_lists
        node.publish()

    @property
    def min(self) -> int:
        """The least weight that a living instance takes."""
        return self._node.min

    @property
    def max(self) -> int | None:
        """The greatest weight that a living instance takes; None for unbounded."""
        return self._node.max

    def needs_result(self, value: bool) -> None:
        """Say whether a request that ends without a ``result`` has failed: not before an ``or``."""
        self._node.needs_result = value

    def _weight_for_shortcut(self, policy: BatchPolicy) -> int:
        """Give the greatest weight that may skip the queue, 0 for none."""
        usable = (
            self.limits.shortcut
            and policy.sends_when_idle
            and self.limits.timeout_ms is None
            and len({(i.min, i.max) for i in self.instances}) == 1
            and self.min == 1
            and not self.limits.batch_sizes
            and all(i.thread is None for i in self.instances)
        )
        if not usable:
            return 0
        return 2**63 if self.max is None else self.max

    def checked(self, request: Any, needs: Sequence[str] | None = None) -> int:
        """Check a request on entry and give its weight.

        Args:
            request: What was sent.
            needs: The keys it must have; None for those of the node.

        Raises:
            InputError: See `checked_weight`; it is counted as a failure of the node.
        """
        try:
            return checked_weight(request, self.name, self.needs if needs is None else needs)
        except InputError as error:
            if isinstance(request, dict):
                request.pop("result", None)
            self.count_refused(request, error)
            raise

    @reentrant()
    def count_refused(self, request: Any, error: BaseException) -> None:
        """Count a request that was refused before it entered."""
        node = self._node
        code = code_of(error)
        with node.section, node.lock:
            node.entered += 1
            node.failures[code] = node.failures.get(code, 0) + 1

    @reentrant()
    def count_late(self, error: BaseException) -> None:
        """Count as failed a request that has ended well here, but cannot go on."""
        node = self._node
        code = code_of(error)
        with node.section, node.lock:
            node.failures[code] = node.failures.get(code, 0) + 1

    def waits(self, *, entered: bool = True) -> Waits:
        """Count the waits of a request that enters here, at all nodes, as one.

        Args:
            entered: Whether it has been let in.
        """
        return Waits(self._node.quota, entered=entered)

    @reentrant()
    def let_in(self) -> None:
        """Let in who waits for room, once a request that entered here waits elsewhere no more."""
        node = self._node
        with node.section, node.lock:
            node.let_in()
            self._dispatcher.dispatch(None)

    def _set_times(self, entry: Entry, now: float) -> float | None:
        entry.arrival = now
        if self.limits.timeout_ms is not None:
            own = now + self.limits.timeout_ms / 1000
            entry.deadline = own if entry.deadline is None else min(own, entry.deadline)
        return entry.deadline

    def _make_room(self) -> None:
        self._dispatcher.dispatch(None)
