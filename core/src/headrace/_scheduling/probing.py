"""Probes: a scheduler that reports every batch and request to them. Without probes none is made.

A probe hears of a request before its owner has the answer: a caller that is served counts its
outcome only when it is notified, as the owner of a future is. No probe is called under a lock.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import CancelledError
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling.calls import served_by
from headrace._scheduling.dispatch import Dispatcher
from headrace._scheduling.driving import Driver
from headrace._scheduling.locks import main_thread, taking
from headrace._scheduling.node import Node, take
from headrace._scheduling.record import BatchRecord, BatchRequest
from headrace._scheduling.scheduler import Scheduler
from headrace._scheduling.threads import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.batch import Outcome
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.locks import Signal
    from headrace._scheduling.threads import Work
    from headrace.keys import Request


_log = logging.getLogger("headrace.probes")


class _Guarded:
    """One probe: whatever it raises is counted and harms nobody."""

    def __init__(self, name: str, probe: Any) -> None:
        self.name = name
        self.probe = probe
        self.errors = 0
        self.last: str | None = None
        self._lock = threading.Lock()

    def call(self, method: Callable[..., Any], *args: Any) -> None:
        """Call a method of the probe; only Ctrl-C, where the main thread waits, is raised."""
        try:
            method(*args)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and _for_main_thread():
                raise
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        try:
            text = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - the text of an error is anybody's code
            text = type(error).__name__
        with self._lock:
            self.errors += 1
            self.last = text
            first = self.errors == 1
        if first:
            _log.warning(
                "the probe %s failed: %s; further errors are only counted, see stats()",
                self.name,
                text,
                exc_info=error,
            )


class Probes:
    """The probes of one pipeline, by the text that switched each on."""

    def __init__(self, probes: dict[str, Any]) -> None:
        self._all = [_Guarded(name, probe) for name, probe in probes.items()]
        self._batch = _with(self._all, "batch_done")
        self._request = _with(self._all, "request_done")
        self._others = {name: _with(self._all, name) for name in _OTHERS}
        self._in_service: dict[tuple[str, int], None] = {}
        self._closed = False

    def batch_done(
        self,
        node: str,
        instance: int,
        started: float,
        ended: float,
        errors: Sequence[BaseException | None],
    ) -> None:
        """Report one batch."""
        if not self._closed:
            for guarded, method in self._batch:
                guarded.call(method, node, instance, len(errors), started, ended, list(errors))

    def request_done(
        self, node: str, request: Any, started: float, ended: float, error: BaseException | None
    ) -> None:
        """Report one request at one node."""
        if not self._closed:
            for guarded, method in self._request:
                guarded.call(method, node, request, started, ended, error)

    def hears(self, what: str) -> bool:
        """Tell whether a probe has the method ``what``; what none has is not measured."""
        return bool(self._others[what])

    def tell(self, what: str, *args: Any) -> None:
        """Call the method ``what`` of each probe that has it."""
        if not self._closed:
            for guarded, method in self._others[what]:
                guarded.call(method, *args)

    def instance_changed(self, node: str, instance: int, state: str) -> None:
        """Report what has become of an instance: ready, lost, retired or closed."""
        if state == "ready":
            self._in_service[node, instance] = None
        else:
            self._in_service.pop((node, instance), None)
        self.tell("instance_changed", node, instance, state)

    def statistics(self) -> dict[str, Any]:
        """Give what ``stats()`` shows of the probes: how often each has failed, and how last."""
        return {one.name: {"errors": one.errors, "last": one.last} for one in self._all}

    def close(self) -> None:
        """Close those that have a ``close``, once; they hear of nothing any more."""
        if self._closed:
            return
        for node, instance in list(self._in_service):
            self.instance_changed(node, instance, "closed")
        self._closed = True
        for guarded, method in _with(self._all, "close"):
            guarded.call(method)


_OTHERS = (
    *("batch_ran", "element_began", "element_done", "span_done"),
    *("instance_changed", "pipeline_started"),
)
"""What a probe may have besides ``batch_done`` and ``request_done``."""


def _with(probes: list[_Guarded], name: str) -> list[tuple[_Guarded, Callable[..., Any]]]:
    methods = [(one, getattr(one.probe, name, None)) for one in probes]
    return [(one, method) for one, method in methods if callable(method)]


def _for_main_thread() -> bool:
    """Tell whether the calling thread is the main thread, or one that it waits for."""
    return main_thread.ident in served_by(get_ident())


class ProbedNode(Node):
    """A node whose outcomes the probes hear of before anybody else.

    Attributes:
        probes: The probes.
        reporting: The threads that are inside a probe; changed by each for itself.
        returning: What has its outcome, and whose dict is yet to be given back.
        cuts: When each entry that is to run was put into its batch; empty where no probe asks.
    """

    notifies_callers = True
    probes: Probes

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reporting: dict[int, int] = {}
        self.returning: dict[Entry, None] = {}
        self.cuts: dict[Entry, float] = {}

    def settle(self, entry: Entry, error: BaseException | None, at: Instance | None = None) -> None:
        """Give an entry its one outcome; `notify` is to follow."""
        self.returning[entry] = None
        self.cuts.pop(entry, None)
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
        ended = self.clock()
        try:
            while self.settled:
                (entry,) = map(take, (self.settled,))
                taken.append(entry)
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

    def ran(
        self,
        instance: Instance,
        requests: Sequence[BatchRequest],
        started: float,
        ended: float,
        errors: Sequence[BaseException | None],
    ) -> None:
        """Report a batch, with its requests, to the probes."""
        weight = sum(one.weight for one in requests)
        record = BatchRecord(
            self.name, instance.index, get_ident(), requests, started, ended, weight, list(errors)
        )
        self.probes.tell("batch_ran", record)

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


class ProbedDispatcher(Dispatcher):
    """A dispatcher that notes when it has put an entry into a batch."""

    _node: ProbedNode

    def _take_along(self, entries: Sequence[Entry]) -> None:
        super()._take_along(entries)
        if self._node.probes.hears("batch_ran"):
            self._node.cuts.update(dict.fromkeys(entries, self._node.clock()))


class ProbedDriver(Driver):
    """A driver that reports every batch it has run to the probes, while it still holds the instance."""

    _node: ProbedNode
    _dispatcher_type = ProbedDispatcher

    def _run(self, work: Work) -> Outcome:
        node = self._node
        started = node.clock()
        errors, interrupt = super()._run(work)
        ended, instance = node.clock(), work.instance
        each = errors or [None] * len(work.entries)
        try:
            node.probes.batch_done(node.name, instance.index, started, ended, each)
            if node.probes.hears("batch_ran"):
                requests = [
                    BatchRequest(e.request, e.arrival, node.cuts.pop(e, started), e.weight)
                    for e in work.entries
                ]
                node.ran(instance, requests, started, ended, each)
        except KeyboardInterrupt as raised:
            interrupt = interrupt or raised
        return errors, interrupt


class ProbedScheduler(Scheduler):
    """A scheduler whose batches and requests the probes hear of.

    Args:
        args, kwargs: As of `Scheduler`.
        probes: The probes of the pipeline.
    """

    _uses_idle_lists = False
    _node_type = ProbedNode
    _driver_type = ProbedDriver
    _node: ProbedNode

    def __init__(self, *args: Any, probes: Probes, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._node.probes = probes

    def _run_alone(self, instance: Instance, request: Request) -> BaseException | None:
        node = self._node
        data = request["data"]
        started = node.clock()
        error: BaseException | None
        try:
            error = super()._run_alone(instance, request)
        except BaseException as interrupt:
            self._alone_done(instance, request, started, interrupt)
            raise
        request["data"] = data
        if error is not None:
            request.pop("result", None)
        self._alone_done(instance, request, started, error)
        return error

    def _alone_done(
        self, instance: Instance, request: Request, started: float, error: BaseException | None
    ) -> None:
        node = self._node
        ended = node.clock()
        try:
            node.probes.batch_done(node.name, instance.index, started, ended, [error])
            if node.probes.hears("batch_ran"):
                weight = request.get("request_size", 1)
                alone = BatchRequest(request, started, started, weight)
                node.ran(instance, [alone], started, ended, [error])
        finally:
            node.hear(request, started, ended, error)

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
