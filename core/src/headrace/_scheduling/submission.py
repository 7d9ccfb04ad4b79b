"""Requests of owners that do not wait in the calling thread: futures, coroutines, walks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from headrace._scheduling.admission import enter, held_here, inside
from headrace._scheduling.entry import DONE, ENTERED, NEW, NOBODY, OUTSIDE, QUEUED, RUNNING
from headrace._scheduling.errands import errands
from headrace._scheduling.reentrant import reentrant
from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.driving import Driver
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Limits, Node
    from headrace._scheduling.timer import Timer

__all__ = ["Submission", "cancel_all"]

_WAITING = (NEW, ENTERED, QUEUED, OUTSIDE)


class Submission:
    """What a scheduler does for owners that it tells their outcome."""

    limits: Limits
    _node: Node
    _dispatcher: Dispatcher
    _driver: Driver
    _timer: Timer

    @reentrant()
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

    def _cancel_later(self, entry: Entry) -> bool:
        """Take an entry back once the lock is left that the calling thread holds; see `reentrant`."""
        errands.run(self.cancel, entry)
        return False

    @reentrant(later=_cancel_later)
    def cancel(self, entry: Entry) -> bool:
        """Take an entry back that waits, or has not come yet; False when it runs or is done."""
        settled = cancel_all([(self, entry)])
        for node, entries in settled or ():
            node.tell(entries)
        return settled is not None

    def _take_back(self, entry: Entry) -> None:
        node = self._node
        if entry.state == NEW:
            node.entered += 1
        node.take_out(entry)
        self._drop(entry)

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
        if entry.state in _WAITING and not node.rests and held_here(node):
            raise inside(node.name)

    def place(self, entry: Entry | None) -> tuple[Node, object]:
        """Give where an entry waits or runs, for `headrace._scheduling.circles`."""
        return self._node, entry

    @reentrant(later=lambda _, entry: entry.state == RUNNING)
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


def cancel_all(
    places: Sequence[tuple[Any, Entry]],
) -> list[tuple[Node, Sequence[Entry]]] | None:
    """Take back all entries, each at its scheduler, or none: None when one runs or is done.

    Returns:
        Per node, whom to tell of what has become of others.
    """
    schedulers = {id(scheduler): scheduler for scheduler, _ in places}
    with ExitStack() as stack:
        # Nobody else holds one of these locks while taking another. In order, so may two of these.
        for _, scheduler in sorted(schedulers.items()):
            stack.enter_context(scheduler._node.lock)
        if not all(entry.state in _WAITING for _, entry in places):
            return None
        for scheduler, entry in places:
            scheduler._take_back(entry)
        for scheduler in schedulers.values():
            scheduler._node.let_in()
            scheduler._dispatcher.dispatch(None)
        return [(one._node, one._node.take_settled()) for one in schedulers.values()]
