"""After an interrupt: give back what the thread held, withdraw what it waited for.

Ctrl-C raises KeyboardInterrupt in the main thread, at any call. What it was about to do for others
is done here, so that it hits nobody else.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from headrace._scheduling.entry import DONE, NEW, OUTSIDE, RUNNING
from headrace._scheduling.executors import Caller, Runner, Work
from headrace._scheduling.instance import RESTING
from headrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.crew import Crew
    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node

__all__ = ["Mender"]


class Mender:
    """Puts a node right after an interrupt. Called without the lock."""

    def __init__(self, node: Node, dispatcher: Dispatcher, crew: Crew) -> None:
        self._node = node
        self._dispatcher = dispatcher
        self._crew = crew

    def recover(self, request: object) -> None:
        """Give back the instance that the calling thread had claimed for ``request`` alone."""
        me = get_ident()
        with self._node.lock:
            for instance in self._node.every:
                if instance.holder is request and instance.ident == me:
                    instance.failed("interrupt")
                    instance.holder = RESTING
        self.mend()

    def withdraw(self, caller: Caller, entries: Sequence[Entry]) -> bool:
        """Take back all that an interrupted caller has left; True if a backend runs on any."""
        node = self._node
        abandoned = False
        with node.lock:
            caller.parked = False
            for instance in node.every:
                if instance.holder is caller and instance.entries is not None:
                    abandoned = self._leave(caller, instance, instance.entries) or abandoned
            for entry in entries:
                if entry.state == DONE or entry.state == NEW:
                    continue
                abandoned = abandoned or entry.state == RUNNING
                node.take_out(entry)
                node.settle(entry, _interrupted(node, running=entry.state == RUNNING))
            node.callers.discard(caller)
            self._dispatcher.resign(caller)
        self.mend()
        return abandoned

    def _leave(self, caller: Caller, instance: Instance, entries: list[Entry]) -> bool:
        """Give back one instance that an interrupted caller held."""
        work = Work(instance, entries)
        if caller.work is not None:  # it was given and not begun: somebody else runs it
            caller.work = None
            self._dispatcher.give_runner(work)
            return any(entry.owner is caller for entry in entries)
        self._dispatcher.fail(work, _interrupted(self._node, running=False))
        return False

    def mend(self) -> None:
        """Finish what an interrupt cut short under the lock."""
        node = self._node
        with node.lock:
            self._dispatcher.mend()
            for entry in [e for e in node.outside if e.state != OUTSIDE]:
                del node.outside[entry]
            for instance in node.every:
                self._mend_instance(instance)
            for caller in list(node.callers):
                if caller.parked and not caller.pending:
                    caller.signal.wake()
            if node.waker is None:
                node.wake_at = None
            node.let_in()
            self._dispatcher.dispatch(None)
            settled = node.take_untold()
        node.tell(settled)

    def _mend_instance(self, instance: Instance) -> None:
        node = self._node
        holder, entries = instance.holder, instance.entries
        if holder is RESTING:
            instance.entries = None
            instance.running_weight = 0
            node.rest(instance)
        elif isinstance(holder, Runner) and holder.work is not None:
            if holder.begun:
                holder.signal.wake()
            else:
                self._crew.disown(holder)
                self._dispatcher.give_runner(Work(instance, entries or []))
        elif isinstance(holder, Caller) and holder.work is not None:
            holder.signal.wake()


def _interrupted(node: Node, *, running: bool) -> BackendError:
    return BackendError("the caller was interrupted", node=node.name, abandoned=running)
