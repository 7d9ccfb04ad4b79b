"""Callers that wait in the queue, and run batches meanwhile."""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

from headrace._scheduling.admission import enter, interrupted, refuse
from headrace._scheduling.base import SchedulerBase
from headrace._scheduling.calls import call_run_here, errand, reentrant
from headrace._scheduling.cycles import cycle_of, waiting
from headrace._scheduling.driving import earliest
from headrace._scheduling.entry import DONE, NEW, RUNNING, Entry
from headrace._scheduling.helpers import errands
from headrace._scheduling.locks import main_thread
from headrace._scheduling.workers import Caller, Work
from headrace.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from headrace.keys import Request

__all__ = ["WaitingCallers", "refuse_inside"]


def refuse_inside(scheduler: SchedulerBase, *_: Any, **__: Any) -> None:
    """Refuse a call that would wait, in a destructor that runs while its thread holds a lock."""
    raise ContractError(
        "a destructor called a pipeline that would have to wait, in the midst of its scheduler",
        node=scheduler.name,
        hint="Use submit, which does not wait.",
    )


class WaitingCallers(SchedulerBase):
    """What a scheduler does for callers that wait in their own threads."""

    def _queue_up(
        self, request: Request, weight: int, home: SchedulerBase | None, *, internal: bool
    ) -> None:
        caller = Caller(get_ident(), pending=1)
        entry = Entry(request, caller, weight=weight)
        if home is not None:
            entry.waits = home.waits()
        deadline = None
        entry.arrival = now = self._node.clock()
        if self.limits.timeout_ms is not None:
            deadline = self._set_times(entry, now)
            caller.runs = False
        self._wait(caller, (entry,), deadline, internal=internal)
        entry.give_back()
        if entry.error is not None:
            raise entry.take_error()  # type: ignore[misc]

    def _queue_up_in_main(
        self, request: Request, weight: int, home: SchedulerBase | None, *, internal: bool
    ) -> None:
        """Let a request of the main thread pass the queue, and run it here if an instance is idle."""
        entry = Entry(request, weight=weight)
        if home is not None:
            entry.waits = home.waits()
        self.call_many((entry,), internal=internal)
        if entry.error is not None:
            raise entry.take_error()  # type: ignore[misc]

    def call_many(
        self,
        entries: Sequence[Entry],
        *,
        internal: bool = False,
        groups: Sequence[list[Entry]] = (),
    ) -> None:
        """Run entries of one calling thread and wait for them; their outcomes are in them.

        Args:
            entries: New entries; those that are DONE already keep their outcome.
            internal: They come from a backend of this pipeline, which closing does not refuse.
            groups: Entries that are cancelled while they wait when one of their group has failed.
        """
        if get_ident() != main_thread.ident or not self._uses_idle_lists:
            self._call_many(entries, groups, internal=internal)
            return
        try:
            # What takes the lock is done by a helper. A batch of all the entries comes back.
            work = self._call_many(entries, groups, internal=internal, hands_over=True)
            if work is not None:
                self._driver.run_and_finish(work)
        except BaseException as raised:
            errands.add((self._give_back, entries))
            errand(self._give_back, entries)
            raised.abandoned = abandoned = any(  # type: ignore[attr-defined]
                entry.state != DONE or getattr(entry.error, "abandoned", False) is True
                for entry in entries
            )
            for entry in () if abandoned else entries:
                entry.give_back()
            raise
        if work is not None:
            for entry in work.entries:
                entry.give_back()

    @reentrant(later=refuse_inside)
    def _call_many(
        self,
        entries: Sequence[Entry],
        groups: Sequence[list[Entry]],
        *,
        internal: bool,
        hands_over: bool = False,
    ) -> Work | None:
        """Run entries; with ``hands_over`` give a batch of them all back, which the main thread runs."""
        now = self._node.clock()
        fresh = [entry for entry in entries if entry.state == NEW]
        for entry in fresh:
            self._set_times(entry, now)
        deadline = earliest(fresh)
        caller = Caller(get_ident(), runs=deadline is None, pending=len(fresh))
        if groups:
            caller.groups = {
                entry: own for group in groups for own in [list(group)] for entry in own
            }
        for entry in fresh:
            entry.owner = caller
        work = self._wait(caller, fresh, deadline, internal=internal, hands_over=hands_over)
        if work is None:
            for entry in fresh:
                entry.give_back()
        caller.groups = None  # its entries know it: together they would be garbage
        return work

    def _give_back(self, entries: Sequence[Entry]) -> None:
        """Give back the instance that stands ready for entries of the main thread, which was interrupted.

        Either this comes first, and what has not entered never does; or the batch was cut first, and
        is found here. A second time does nothing.
        """
        node = self._node
        with node.section, node.lock:
            for instance in node.every:
                mine = instance.entries
                if mine and mine[0] in entries and instance.ident == main_thread.ident:
                    self._dispatcher.fail(Work(instance, mine), interrupted(node, running=False))
            for entry in entries:
                if entry.state == NEW:
                    node.entered += 1
                    node.settle(entry, interrupted(node, running=False))
            self._dispatcher.dispatch(None)

    def _wait(
        self,
        caller: Caller,
        entries: Sequence[Entry],
        deadline: float | None,
        *,
        internal: bool,
        hands_over: bool = False,
    ) -> Work | None:
        """Let the entries of a caller in and wait for them, the earliest until ``deadline``.

        Returns:
            With ``hands_over``, a batch of all the entries that the main thread is to run.
        """
        node, me = self._node, caller.ident
        caller.node = node
        outer = waiting.get(me)
        waiting[me] = caller
        try:
            call = call_run_here()
            if call is not None:
                call.withdrawn_by(partial(self._withdraw, caller, entries))
            with node.section, node.lock:
                node.callers.add(caller)
                enter(node, entries, self._make_room, internal=internal, waits=True)
                work = self._dispatcher.dispatch(caller) if node.has_idle else None
                if hands_over and work is not None and caller.has_all_in(work):
                    # The main thread holds the instance from now on.
                    caller.ident = work.instance.ident = main_thread.ident or 0
                parks = caller.parked = work is None and caller.pending > 0
                if parks and not node.has_idle and cycle_of(caller) is not None:
                    refuse(node, entries)
                    parks = caller.parked = caller.pending > 0
            if caller.ident != me:
                return work
            self._driver.wait(caller, entries, work, parks=parks, deadline=deadline)
        except BaseException as interrupt:
            with node.section, node.lock:
                self._driver.leave(caller)
            abandoned = self._withdraw(caller, entries)
            interrupt.abandoned = abandoned  # type: ignore[attr-defined]
            raise
        finally:
            if outer is None:
                del waiting[me]
            else:
                waiting[me] = outer
            node.callers.discard(caller)
            caller.end()
        return None

    def _withdraw(self, caller: Caller, entries: Sequence[Entry]) -> bool:
        """Take back what a caller waits for no more; True if a backend runs on any."""
        node = self._node
        abandoned = False
        with node.section, node.lock:
            for entry in entries:
                if entry.state == DONE:
                    node.forget(entry)
                else:
                    running = entry.state == RUNNING
                    abandoned = abandoned or running
                    if entry.state == NEW:
                        node.entered += 1
                    node.take_out(entry)
                    node.settle(entry, interrupted(node, running=running))
            node.let_in()
            self._dispatcher.dispatch(None)
        return abandoned
