"""Requests of owners that do not wait in the calling thread: futures, coroutines, walks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._scheduling.admission import enter, held_here, inside
from headrace._scheduling.entry import DONE, ENTERED, NOBODY, OUTSIDE, QUEUED, RUNNING
from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.driving import Driver
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.mending import Mender
    from headrace._scheduling.node import Limits, Node
    from headrace._scheduling.timer import Timer

__all__ = ["Submission"]


class Submission:
    """What a scheduler does for owners that it tells their outcome."""

    limits: Limits
    _node: Node
    _dispatcher: Dispatcher
    _driver: Driver
    _mender: Mender
    _timer: Timer

    def submit(
        self,
        entry: Entry,
        *,
        waits_for_room: Callable[[], object] | None = None,
        internal: bool = False,
        waits: bool = False,
    ) -> None:
        """Let an entry run for an owner that is told of the end.

        Args:
            entry: A new entry.
            waits_for_room: Come back only when it has been let into the queue, or is done; called to
                tell that this thread cannot wait, for it runs a batch that the room may depend on.
            internal: It comes from another node of this pipeline, which closing does not refuse.
            waits: The owner waits in this thread: the event loop of a coroutine.
        """
        node = self._node
        deadline = self._set_times(entry, node.clock())
        waits_here = waits_for_room is not None and self.limits.queue_full == "wait"
        try:
            with node.lock:
                enter(node, [entry], self._make_room, internal=internal, waits=waits)
                if entry.state != DONE and deadline is not None:
                    entry.alarm = self._timer.call_at(deadline, lambda: self._expire(entry))
                self._dispatcher.dispatch(None)
                if waits_here and entry.state == OUTSIDE:
                    entry.room = Signal()
                settled = node.take_settled()
            node.tell(settled)
            node.shed_elsewhere()
            if entry.room is not None and waits_for_room is not None:
                if waits_for_room():
                    self._refuse_wait(entry)
                entry.room.sleep()
        except BaseException:
            self._mender.mend()
            self.cancel(entry)
            raise

    def cancel(self, entry: Entry) -> bool:
        """Take an entry that waits out of the queue; False when it runs or is done."""
        node = self._node
        try:
            with node.lock:
                if entry.state not in (QUEUED, OUTSIDE, ENTERED):
                    return False
                node.take_out(entry)
                self._drop(entry)
                node.let_in()
                self._dispatcher.dispatch(None)
                settled = node.take_settled()
            node.tell(settled)
        except BaseException:
            self._mender.mend()
            raise
        return True

    def _refuse_wait(self, entry: Entry) -> None:
        """Fail an entry for whose room this thread would wait for ever, if it is not let in yet."""
        node = self._node
        with node.lock:
            if entry.state == OUTSIDE:
                node.settle_waiting(inside(node.name), [entry])
            settled = node.take_settled()
        node.tell(settled)

    def check_wait(self, entry: Entry) -> None:
        """Refuse to let this thread wait for an entry that waits for an instance it holds.

        Raises:
            ContractError: It would wait for ever.
        """
        node = self._node
        with node.lock:
            waits = entry.state in (QUEUED, OUTSIDE, ENTERED) and not node.rests
            held = waits and held_here(node)
        if held:
            raise inside(node.name)

    def place(self, entry: Entry | None) -> tuple[Node, object]:
        """Give where an entry waits or runs, for `headrace._scheduling.circles`."""
        return self._node, entry

    def abandon(self, entry: Entry) -> bool:
        """Forget an entry whose owner was freed; True when a backend still runs on it."""
        with self._node.lock:
            if entry.state == RUNNING:
                self._drop(entry)
                return True
        return getattr(entry.error, "abandoned", False) is True

    def _drop(self, entry: Entry) -> None:
        """End an entry whose owner asks for no outcome any more. Under the lock."""
        failures = self._node.failures
        failures["cancelled"] = failures.get("cancelled", 0) + 1
        entry.state = DONE
        entry.owner = NOBODY
        if entry.alarm is not None:
            entry.alarm.cancel()
        if entry.room is not None:
            entry.room.wake()

    def _set_times(self, entry: Entry, now: float) -> float | None:
        entry.arrival = now
        if self.limits.timeout_ms is not None:
            own = now + self.limits.timeout_ms / 1000
            entry.deadline = own if entry.deadline is None else min(own, entry.deadline)
        return entry.deadline

    def _make_room(self) -> None:
        self._dispatcher.dispatch(None)

    def _expire(self, entry: Entry) -> None:
        with self._node.lock:
            self._driver.expire(entry)
            settled = self._node.take_settled()
        self._node.tell(settled)
