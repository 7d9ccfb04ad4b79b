"""A caller that sleeps while workers take its request on: through one node, or along a chain of nodes.

Where workers (runners, or the threads that own instances) serve a queue, the caller runs nothing itself. So
it need not wake up between two such nodes: the worker that has run the request at one node puts it into the
queue of the next node, and wakes the caller after the last node, or when the request has failed.

A worker may move the request on while the caller is interrupted and withdraws the request. The worker
sets `Sleeper.at` to the next entry first, and looks at `Sleeper.withdrawn` then, under the lock of
the next node; the caller sets `withdrawn` first and reads `at` then. Either the worker sees `withdrawn` and
fails the entry, or the caller finds the entry and fails it. In both orders the last entry is settled once,
and `over` is set then. The caller waits for `over`: from then on no other thread changes its dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._portable import caused, is_abandoned
from headrace._scheduling.admission import enter, held_here, interrupted, refuse_endless
from headrace._scheduling.calls import reset
from headrace._scheduling.entry import DONE, NEW, NOBODY, OUTSIDE, QUEUED, RUNNING, Entry
from headrace._scheduling.locks import Signal
from headrace._scheduling.threads import Blocked, cycle_of, kept_signals, may_be_cycle, waiting
from headrace.errors import BackendError

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from typing import TypeAlias

    from headrace._scheduling.node import Node
    from headrace._scheduling.threads import Place
    from headrace.keys import Request

    Rest: TypeAlias = "tuple[Any, Rest | None]"
    """The schedulers yet to come on a chain: the next one, and the rest after it; None for none."""


class Sleeper(Blocked):
    """A caller without deadline that sleeps until its request has ended, or workers move it no further.

    Args:
        ident: Identifier of the thread.
        request: The request.
        weight: The weight of the request at the first node.
        scheduler: The scheduler of the first node, a `SchedulerBase`.
        home: The scheduler of the node at which the request entered; None where that is the first node.
        rest: The nodes after the first one to which workers may move the request on.

    Attributes:
        at: The scheduler at which the request is or was last, its entry there, and the nodes after that.
        over: Whether no worker moves the request on any more: the entry in `at` has its outcome.
        withdrawn: Whether the caller was interrupted.
    """

    __slots__ = ("_home", "_quota", "_signal", "at", "ident", "over", "withdrawn")

    def __init__(
        self,
        ident: int,
        request: Request,
        weight: int,
        scheduler: Any,
        home: Any,
        rest: Rest | None,
    ) -> None:
        self.ident = ident
        self._home = home or scheduler
        self._quota = None if home is None else home._quota.of_one()
        self._signal = kept_signals.pop(ident, None) or Signal()
        self.at = (scheduler, Entry(request, self, weight, None, 0, self._quota), rest)
        self.over = self.withdrawn = False

    def places(self) -> tuple[Place, ...]:
        """Give the node where the request waits or runs; none while a thread moves the request on."""
        scheduler, entry, _ = self.at
        return ((scheduler._node, self),) if entry.state in (QUEUED, OUTSIDE, RUNNING) else ()

    def sleep(self, *, internal: bool) -> Rest | None:
        """Put the request into the queue, and sleep until `over`; raises the error of the request.

        Args:
            internal: The request comes from another node of this pipeline; closing does not refuse it.

        Returns:
            The nodes to which no worker has moved the request: the caller calls them itself.
        """
        me = self.ident
        outer = waiting.get(me)
        waiting[me] = self
        try:
            self._enter(internal=internal)
            while not self.over:
                self._signal.sleep()
        except BaseException as interrupt:
            try:
                interrupt.abandoned = self._withdraw()  # type: ignore[attr-defined]
            except BaseException as second:
                second.abandoned = True  # type: ignore[attr-defined]
                raise
            raise
        finally:
            reset(waiting, me, outer)
        kept_signals[me] = self._signal
        _, entry, rest = self.at
        entry.owner = NOBODY  # no cycle of references between this sleeper and its entry
        entry.give_back()
        entry.raise_error()
        return rest

    def took_outcome(self, entry: Entry, afterwards: deque[Callable[[], object]]) -> bool:
        """Have the caller woken, or the request moved on, once this thread has left the lock of the node.

        A caller that is woken under the lock waits for the interpreter until this thread runs its next batch.
        """
        _, current, rest = self.at
        if current is entry:
            if rest is not None and entry.error is None and not self.withdrawn:
                afterwards.append(self._move_on)
                return True
            self.over = True
            afterwards.append(self._signal.wake)
        return self.over

    def _move_on(self) -> None:
        """Do what `finished` does, also when an exception hits this thread meanwhile."""
        entry = self.at[1]
        try:
            try:
                self.finished(entry)
            except BaseException:  # noqa: BLE001 - perhaps an interrupt of this thread
                self.finished(entry)
        except BaseException as error:  # noqa: BLE001 - out of memory, say: the caller must not sleep for ever
            scheduler, entry, _ = self.at
            lost = entry.state in (QUEUED, OUTSIDE, RUNNING)
            what = BackendError("the request cannot go on", node=scheduler.name, abandoned=lost)
            entry.error = caused(what, error)
            self.over = True
            self._signal.wake()

    def finished(self, entry: Entry) -> None:
        """Move the request on to the next node, or wake the caller. A second call changes nothing."""
        if self.at[1] is entry and (self.over or not self._goes_on(entry)):
            self.over = True
            self._signal.wake()
        else:
            self._enter(internal=True)

    def _goes_on(self, entry: Entry) -> bool:
        """Make the entry for the next node if workers serve that, too; tell whether there is one."""
        _, _, rest = self.at
        if rest is None or entry.error is not None or self.withdrawn:
            return False
        scheduler, after = rest
        if not scheduler.served_by_workers:
            return False
        request = entry.request
        try:
            if "result" in request:  # else an interrupted first call has moved it
                request["data"] = request.pop("result")
            weight = scheduler.checked_again(request)
        except Exception as error:  # noqa: BLE001 - the caller's dict raised, or the node refuses it
            entry.error = error
            return False
        if self._quota is None:
            self._quota = self._home._quota.of_one()
        following = Entry(request, self, weight, None, 0, self._quota)
        self.at = (scheduler, following, after)
        return True

    def _enter(self, *, internal: bool) -> None:
        """Put the entry into the queue of its node; a second call does nothing."""
        scheduler, entry, _ = self.at
        node = scheduler._node
        entry.arrival = node.clock()
        entry.scheduler = scheduler
        with node.section, node.lock:
            if entry.state != NEW:
                return
            if self.withdrawn:
                node.fail(entry, interrupted)
            else:
                enter(node, (entry,), internal=internal)
            node.arrived(entry)
        # The caller is in `waiting`, and its entry in the queue, before this looks for other threads that
        # wait: see `headrace._scheduling.threads` for why one thread of every cycle then finds it.
        if may_be_cycle(node):
            self._refuse_cycle(node, entry)

    def _refuse_cycle(self, node: Node, entry: Entry) -> None:
        """Fail the entry if the caller would wait for ever: for itself, or in a cycle of threads."""
        with node.section, node.lock:
            if (
                entry.state in (QUEUED, OUTSIDE)
                and not node.has_idle
                and (held_here(node, self.ident) or cycle_of(self, self.ident) is not None)
            ):
                refuse_endless(node, [entry])

    def _withdraw(self) -> bool:
        """Fail the entry at whichever node the request is; True if a backend still runs on the request."""
        self.withdrawn = True
        abandoned = False
        while not self.over:
            scheduler, entry, _ = self.at
            node = scheduler._node
            with node.section, node.lock:
                if entry.state != DONE:
                    abandoned = node.fail(entry, interrupted)
                    node.dispatch(None)
            if not self.over:  # another thread moves the request on, or is about to set `over`
                self._signal.sleep()
        return abandoned or is_abandoned(self.at[1].error)
