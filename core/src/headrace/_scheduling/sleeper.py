"""A caller that sleeps while workers take its request on: through one node, or along a chain of nodes.

Where workers (runners, or the threads that own instances) serve a queue, the caller runs nothing
itself. So it need not wake up between two nodes that are served so: the thread that has run its request at
one puts it into the queue of the next, and wakes the caller at the end of the way, or with its error.

Two threads meet here. A worker moves the request on while the caller is interrupted and withdraws it:
the worker notes the next entry in `Sleeper.at` first and looks at `Sleeper.withdrawn` then, under the
lock of the next node; the caller sets `withdrawn` first and reads `at` then. Either the worker sees that
the request is withdrawn and settles the entry, or the caller finds the entry and takes it back. In both
orders the last entry is settled once, and the thread that settles it, or is notified of that, sets `over`:
for this the caller waits, so that no other thread changes its dict any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._portable import caused
from headrace._scheduling.admission import admit, enter, held_here, interrupted, refuse
from headrace._scheduling.entry import (
    DATA_ALONE,
    DONE,
    NEW,
    NOBODY,
    OUTSIDE,
    QUEUED,
    RUNNING,
    Entry,
)
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
    """A caller without deadline that sleeps until its request has ended or is to be taken on by itself.

    Args:
        ident: Identifier of the thread.
        request: The request.
        weight: What it weighs at the first node.
        scheduler: That of the first node, a `SchedulerBase`.
        home: That of the node at which the request entered; None where it enters at the first.
        rest: The nodes after it that the request may be moved on to.

    Attributes:
        at: The node at which the request is or was last, its entry there, and the nodes after it.
        over: Whether nobody moves the request on any more: the entry in `at` has its outcome.
        withdrawn: Whether the caller was interrupted.
    """

    __slots__ = ("_home", "_signal", "_waits", "at", "ident", "over", "withdrawn")

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
        self._waits = None if home is None else home._quota.of_one()
        self._signal = kept_signals.pop(ident, None) or Signal()
        self.at = (scheduler, Entry(request, self, weight, None, 0, self._waits), rest)
        self.over = self.withdrawn = False

    def places(self) -> tuple[Place, ...]:
        """Give where its request waits or runs; nowhere while a thread moves it on."""
        scheduler, entry, _ = self.at
        return ((scheduler._node, self),) if entry.state in (QUEUED, OUTSIDE, RUNNING) else ()

    def sleep(self, *, internal: bool) -> Rest | None:
        """Let the request in, and sleep until its way is over; raises its error.

        Args:
            internal: It comes from another node of this pipeline, which closing does not refuse.

        Returns:
            The nodes that it has not come to: the caller takes it there.
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
            if outer is None:
                del waiting[me]
            else:
                waiting[me] = outer
        kept_signals[me] = self._signal
        _, entry, rest = self.at
        entry.owner = NOBODY  # this knows the entry: together they would be garbage
        entry.give_back()
        if entry.error is not None:
            raise entry.take_error()  # type: ignore[misc]
        return rest

    def ends(self, entry: Entry, afterwards: deque[Callable[[], object]]) -> bool:
        """Let the caller be woken, or the request be moved on.

        Not under the lock: the caller would wait for the interpreter until this thread runs its next batch.
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
        """Do what `finished` does, whatever hits this thread meanwhile."""
        entry = self.at[1]
        try:
            try:
                self.finished(entry)
            except BaseException:  # noqa: BLE001 - it may be meant for the thread, and not for the request
                self.finished(entry)
        except BaseException as error:  # noqa: BLE001 - the memory ends, say: the caller is to hear of it
            scheduler, entry, _ = self.at
            lost = entry.state in (QUEUED, OUTSIDE, RUNNING)
            what = BackendError("the request cannot go on", node=scheduler.name, abandoned=lost)
            entry.error = caused(what, error)
            self.over = True
            self._signal.wake()

    def finished(self, entry: Entry) -> None:
        """Move the request on to the next node, or wake the caller. A second time changes nothing."""
        if self.at[1] is entry and (self.over or not self._goes_on(entry)):
            self.over = True
            self._signal.wake()
        else:
            self._enter(internal=True)

    def _goes_on(self, entry: Entry) -> bool:
        """Hand the request over to the next node if workers serve that, too; tell whether it was done."""
        _, _, rest = self.at
        if rest is None or entry.error is not None or self.withdrawn:
            return False
        scheduler, after = rest
        if not scheduler.served_by_workers:
            return False
        request = entry.request
        weight = 1
        try:
            if "result" in request:  # else this thread was hit after it had handed it over
                request["data"] = request.pop("result")
            if "request_size" in request or scheduler.needs is not DATA_ALONE:
                weight = scheduler.checked(request)
        except Exception as error:  # noqa: BLE001 - anybody's dict, or one that the node refuses
            entry.error = error
            return False
        if self._waits is None:
            self._waits = self._home._quota.of_one()
        following = Entry(request, self, weight, None, 0, self._waits)
        self.at = (scheduler, following, after)
        return True

    def _enter(self, *, internal: bool) -> None:
        """Let the entry into the queue of its node; a second time does nothing."""
        scheduler, entry, _ = self.at
        node = scheduler._node
        entry.arrival = node.clock()
        with node.section, node.lock:
            if entry.state != NEW:
                return
            if self.withdrawn:
                node.end(entry, interrupted)
            elif node.refusing is None and not node.lost:
                admit(node, entry)
            else:
                enter(node, (entry,), internal=internal)
            node.arrived(entry)
        # It is noted as waiting, and in the queue, before it looks for others that wait.
        if may_be_cycle(node):
            self._refuse_cycle(node, entry)

    def _refuse_cycle(self, node: Node, entry: Entry) -> None:
        """Fail the entry if the caller would wait for itself."""
        with node.section, node.lock:
            if (
                entry.state in (QUEUED, OUTSIDE)
                and not node.has_idle
                and (held_here(node, self.ident) or cycle_of(self, self.ident) is not None)
            ):
                refuse(node, [entry])

    def _withdraw(self) -> bool:
        """Take the request back wherever it is; True if a backend runs on it."""
        self.withdrawn = True
        abandoned = False
        while not self.over:
            scheduler, entry, _ = self.at
            node = scheduler._node
            with node.section, node.lock:
                if entry.state != DONE:
                    abandoned = node.end(entry, interrupted)
                    node.dispatch(None)
            if not self.over:  # another thread moves it on, or is about to say that it is over
                self._signal.sleep()
        return abandoned or getattr(self.at[1].error, "abandoned", False) is True
