"""Requests of owners that do not wait in the calling thread: futures, coroutines, walks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace._scheduling.admission import enter, held_here, inside
from headrace._scheduling.base import SchedulerBase
from headrace._scheduling.calls import reentrant
from headrace._scheduling.entry import DONE, ENTERED, NEW, NOBODY, OUTSIDE, QUEUED, RUNNING
from headrace._scheduling.helpers import errands
from headrace._scheduling.locks import Signal, taking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node

__all__ = ["Submission", "cancel_all"]

_WAITING = (NEW, ENTERED, QUEUED, OUTSIDE)


class Submission(SchedulerBase):
    """What a scheduler does for owners that it notifies of their outcome."""

    @reentrant()
    def submit(
        self,
        entry: Entry,
        *,
        waits_for_room: Callable[[], object] | None = None,
        internal: bool = False,
        waits: bool = False,
    ) -> None:
        """Let an entry run for an owner that is notified of the end.

        Args:
            entry: A new entry.
            waits_for_room: Come back only when it has been let into the queue, or is done; called to
                tell that this thread cannot wait, for it runs a batch that the room may depend on.
            internal: It comes from another node of this pipeline, which closing does not refuse.
            waits: The owner waits in this thread: the event loop of a coroutine.
        """
        node = self._node
        deadline = self._set_times(entry, node.clock())
        with node.section, node.lock:
            enter(node, [entry], self._make_room, internal=internal, waits=waits)
            if entry.state != DONE and deadline is not None:
                entry.alarm = self._timer.call_at(deadline, lambda: self._expire(entry))
            self._dispatcher.dispatch(None)
            if waits_for_room is not None and entry.state == OUTSIDE:
                entry.room = Signal()
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
        nodes = cancel_all([(self, entry)])
        for node in nodes or ():
            node.notify()
        return nodes is not None

    def _take_back(self, entry: Entry) -> None:
        node = self._node
        if entry.state == NEW:
            node.entered += 1
        node.take_out(entry)
        self._drop(entry)

    def _refuse_wait(self, entry: Entry) -> None:
        """Fail an entry for whose room this thread would wait for ever, if it is not let in yet."""
        node = self._node
        with node.section, node.lock:
            if entry.state == OUTSIDE:
                node.settle_waiting(inside(node.name), [entry])

    def check_wait(self, entry: Entry) -> None:
        """Refuse to let this thread wait for an entry that waits for an instance it holds.

        Raises:
            ContractError: It would wait for ever.
        """
        node = self._node
        if entry.state in _WAITING and not node.has_idle and held_here(node):
            raise inside(node.name)

    def place(self, entry: Entry | None) -> tuple[Node, object]:
        """Give where an entry waits or runs, for `headrace._scheduling.cycles`."""
        return self._node, entry

    @reentrant(later=lambda _, entry: entry.state == RUNNING)
    def abandon(self, entry: Entry) -> bool:
        """Forget an entry whose owner was freed; True when a backend still runs on it."""
        with self._node.section, self._node.lock:
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

    def _expire(self, entry: Entry) -> None:
        with self._node.section, self._node.lock:
            self._driver.expire(entry)


def cancel_all(places: Sequence[tuple[Submission, Entry]]) -> list[Node] | None:
    """Take back all entries, each at its scheduler, or none: None when one runs or is done.

    Returns:
        The nodes that have yet to notify others of what has become of them: `Node.notify`.
    """
    schedulers = {id(scheduler): scheduler for scheduler, _ in places}
    with ExitStack() as stack:
        # Nobody else takes one of these locks while holding another. Two threads that do so here take
        # them in the same order.
        for _, scheduler in sorted(schedulers.items()):
            stack.enter_context(taking(scheduler._node.lock))
        if not all(entry.state in _WAITING for _, entry in places):
            return None
        for scheduler, entry in places:
            scheduler._take_back(entry)
        for scheduler in schedulers.values():
            scheduler._node.let_in()
            scheduler._dispatcher.dispatch(None)
        return [scheduler._node for scheduler in schedulers.values()]
