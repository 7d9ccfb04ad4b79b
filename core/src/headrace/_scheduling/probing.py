"""Probes: a scheduler that reports every batch and request to them. Without probes none is made.

A probe hears of a request before its owner has the answer: a caller that is served counts its
outcome only when it is notified, as the owner of a future is. No probe is called under a lock.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling.batch import run, run_untimed
from headrace._scheduling.calls import served_by
from headrace._scheduling.driving import Driver
from headrace._scheduling.entry import MISSING
from headrace._scheduling.instance import FAST_S, SAMPLED
from headrace._scheduling.locks import main_thread, taking
from headrace._scheduling.node import Node, take
from headrace._scheduling.probes import BatchRecord, BatchRequest
from headrace._scheduling.scheduler import Scheduler
from headrace._scheduling.threads import Caller

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace._scheduling.base import SchedulerBase
    from headrace._scheduling.batch import Outcome
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.locks import Signal
    from headrace._scheduling.probes import Probes
    from headrace._scheduling.sleeper import Rest
    from headrace._scheduling.threads import Work
    from headrace.keys import Request


class ProbedNode(Node):
    """A node whose outcomes the probes hear of before anybody else.

    Attributes:
        probes: The probes.
        reporting: The threads that are inside a probe; changed by each for itself.
        returning: What has its outcome, and whose dict is yet to be given back.
    """

    notifies_callers = True
    probes: Probes

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reporting: dict[int, int] = {}
        self.returning: dict[Entry, None] = {}

    def settle(self, entry: Entry, error: BaseException | None, at: Instance | None = None) -> None:
        """Give an entry its one outcome; `notify` is to follow."""
        self.returning[entry] = None
        super().settle(entry, error, at)

    def lose(self, instance: Instance) -> None:
        """Take an instance out of service that serves no more; the probes hear of it afterwards."""
        super().lose(instance)
        if instance.retired is None:
            told = partial(self.probes.instance_changed, self.name, instance.index, "lost")
            self.afterwards.append(told)

    def _notify_owners(self) -> None:
        """Let the probes hear of what was settled, then notify the owners. Without the lock."""
        interrupt: BaseException | None = None
        entry: Entry | None = None
        taken: list[Entry] = []
        try:
            while self.settled:
                (entry,) = map(take, (self.settled,))
                taken.append(entry)
                # Read once it is taken: another thread may have settled it since this one came here, and
                # a time read before would lie before its arrival.
                ended = self.clock()
                try:
                    entry.give_back()
                finally:
                    del self.returning[entry]
                try:
                    self.hear(entry.request, entry.arrival, ended, entry.error)
                except KeyboardInterrupt as raised:
                    interrupt = raised
        except IndexError:  # another thread was quicker
            pass
        finally:
            if entry is not None and entry not in taken:
                taken.append(entry)
            self._answer([entry for entry in taken if isinstance(entry.owner, Caller)])
            for entry in taken:
                if not isinstance(entry.owner, Caller):
                    self._notify_one(entry)
        if interrupt is not None:
            raise interrupt

    def hear(self, request: Any, started: float, ended: float, error: BaseException | None) -> None:
        """Report one request to the probes."""
        me = get_ident()
        self.reporting[me] = self.reporting.get(me, 0) + 1
        try:
            self.probes.request_done(self.name, request, started, ended, error)
        finally:
            self.reporting[me] -= 1
            if not self.reporting[me]:
                del self.reporting[me]

    def _answer(self, entries: Sequence[Entry]) -> None:
        """Let callers that wait count their outcomes."""
        if not entries:
            return
        with taking(self.lock):
            for entry in entries:
                if entry in self._unnotified:
                    caller: Any = entry.owner
                    # atomic: an interrupt finds both, or none.
                    caller.pending -= 1
                    del self._unnotified[entry]
                    # end atomic
                    caller.release()
            self.look_if_quiet()


class ProbedDriver(Driver):
    """A driver that reports every batch it has run to the probes, while it still holds the instance."""

    _node: ProbedNode

    @staticmethod
    def _run(work: Work, node: ProbedNode) -> Outcome:  # type: ignore[override]
        started = node.clock()
        errors, interrupt = run(work, node)
        requests = ((e.request, e.arrival, e.cut, e.weight) for e in work.entries)
        each = errors or [None] * len(work.entries)
        try:
            _report(node, work.instance, requests, started, node.clock(), each)
        except KeyboardInterrupt as raised:
            interrupt = interrupt or raised
        return errors, interrupt


def _report(
    node: ProbedNode,
    instance: Instance,
    requests: Iterable[tuple[Any, ...]],
    started: float,
    ended: float,
    errors: Sequence[BaseException | None],
) -> None:
    """Report a batch that has run, to probes that may not call its instance meanwhile.

    Of each request it is given what makes a `BatchRequest`.
    """
    name, index, probes = node.name, instance.index, node.probes
    if probes.batch_done is not None:
        probes.batch_done(name, index, len(errors), started, ended, [*errors])
    if probes.batch_ran is not None:
        batch, me = [*map(BatchRequest._make, requests)], get_ident()
        weight = sum([one.weight for one in batch])
        probes.batch_ran(BatchRecord(name, index, me, batch, started, ended, weight, [*errors]))


class ProbedScheduler(Scheduler):
    """A scheduler whose batches and requests the probes hear of.

    Args:
        args, kwargs: As of `Scheduler`.
        probes: The probes of the pipeline.
    """

    _runs_in_main = False  # a probe takes locks of its own, and so may a signal handler that calls
    _node_type = ProbedNode
    _driver_type = ProbedDriver
    _node: ProbedNode

    def __init__(self, *args: Any, probes: Probes, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._node.probes = probes
        for instance in self.instances:
            instance.sampling = 0  # every request goes through `_run_alone`

    def call(
        self,
        request: Request,
        *,
        internal: bool = False,
        home: SchedulerBase | None = None,
        rest: Rest | None = None,
    ) -> Rest | None:
        """Run one request, as `FastPath.call`, but that of the main thread by a helper."""
        if get_ident() != main_thread.ident:
            return super().call(request, internal=internal, home=home, rest=rest)
        weight = self.checked(request)
        request.pop("result", None)
        data = request.get("data", MISSING)
        return self._call_slowly(request, data, weight, internal, home, rest)

    def _run_alone(self, instance: Instance, request: Request) -> BaseException | None:
        node, data = self._node, request["data"]
        started = node.clock()
        error: BaseException | None
        try:
            error = run_untimed(instance, request, node)
        except BaseException as interrupt:
            self._alone_done(instance, request, started, node.clock(), interrupt)
            raise
        ended = node.clock()
        if instance.unqueued & SAMPLED and instance.mean_s < FAST_S:
            instance.busy_s += ended - started
        else:
            instance.timed(ended - started)
            instance.waited.add(0.0)
        request["data"] = data
        if error is not None:
            request.pop("result", None)
        self._alone_done(instance, request, started, ended, error)
        try:
            return error
        finally:
            del error  # see `Entry.take_error`

    def _alone_done(
        self,
        instance: Instance,
        request: Request,
        started: float,
        ended: float,
        error: BaseException | None,
    ) -> None:
        """Report a request that its caller ran."""
        weight = request.get("request_size", 1)
        alone = [(request, started, started, weight)]
        try:
            _report(self._node, instance, alone, started, ended, [error])
        finally:
            self._node.probes.request_done(self.name, request, started, ended, error)

    def count_refused(self, request: Any, error: BaseException) -> None:
        """Count a request that was refused before it entered."""
        super().count_refused(request, error)
        now = self._node.clock()
        self._node.hear(request, now, now, error)

    def exchange(self, new: Scheduler, retired: Signal, *, keeps_policies: bool) -> list[Instance]:
        """Put the instances and the keys of ``new`` in place of its own."""
        old = super().exchange(new, retired, keeps_policies=keeps_policies)
        for state, instances in (("retired", old), ("ready", new.instances)):
            for instance in instances:
                change = (self.name, instance.index, state)
                self._node.afterwards.append(partial(self._node.probes.instance_changed, *change))
        return old

    def cancel(self, entry: Entry) -> bool:
        """Take an entry that waits out of the queue; False when it runs or is done."""
        taken = super().cancel(entry)
        if taken:
            self._cancelled(entry)
        return taken

    def abandon(self, entry: Entry) -> bool:
        """Forget an entry whose owner was freed; True when its dict may still be changed."""
        running = super().abandon(entry)
        if running and entry.error is None:  # else it has an outcome that the probes hear of
            self._cancelled(entry)
        return running or entry in self._node.returning

    def _cancelled(self, entry: Entry) -> None:
        self._node.hear(entry.request, entry.arrival, self._node.clock(), CancelledError())

    def held_by_this_thread(self) -> bool:
        """Tell whether the calling thread runs a batch of this node, or is inside a probe of it."""
        reporting = not served_by(get_ident()).isdisjoint(self._node.reporting)
        return reporting or super().held_by_this_thread()
