"""The probes of a pipeline, and what is reported to them. An error of a probe is counted, and fails no request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._checked import PENDING
from headrace._portable import error_text
from headrace._scheduling import batch
from headrace._scheduling.entry import NOBODY
from headrace._scheduling.threads import call_of_main, main_thread, reset, served_by
from headrace.keys import Request

if TYPE_CHECKING:
    from headrace._scheduling.batch import Outcome, Place, Work
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance

_log = logging.getLogger("headrace.probes")
_make = tuple.__new__

PROBE_METHODS = (
    *("batch_done", "request_done", "batch_ran"),
    *("element_began", "element_done", "span_done", "instance_changed", "pipeline_started"),
)
"""A probe is a class with any of these methods; see `headrace.hookspecs.headrace_probes`. The first three tell of batches
and requests, the last of the pipeline alone."""


class BatchRequest(NamedTuple):
    """One request of a batch.

    Attributes:
        request: The request: the dict that ``request_done`` is given as well; read it, do not keep it.
        arrival: When it arrived at the node, in seconds.
        cut: When it was put into the batch; the arrival where its caller ran it itself.
        weight: Its ``request_size``.
    """

    request: Request
    arrival: float
    cut: float
    weight: int


class BatchRecord(NamedTuple):
    """A batch that has run.

    Attributes:
        node: The node.
        instance: Index of the instance, from 0.
        thread: Identifier of the thread that ran it, as `threading.get_ident`.
        requests: Its requests, in order; copies that ``pad`` added are none.
        started, ended: Before and after its run, in seconds on the clock of ``time.monotonic()``.
        weight: The sum of their weights.
        errors: One exception or None per request, in order.
    """

    node: str
    instance: int
    thread: int
    requests: Sequence[BatchRequest]
    started: float
    ended: float
    weight: int
    errors: Sequence[BaseException | None]


class GuardedProbe:
    """One probe, the errors of which are counted and fail no request.

    Attributes:
        name: The name that ``stats()`` shows.
        gone: Whether the probe is closed, so that none of its methods is called any more.
    """

    def __init__(self, name: str, probe: Any) -> None:
        self.name = name
        self.probe = probe
        self.gone = False
        self.errors = 0
        self.last: str | None = None
        self._lock = threading.RLock()

    def guarding(self, method: Callable[..., Any]) -> Callable[..., None]:
        """Wrap a method of the probe, so that an error of it goes to `failed`."""

        def notify(*args: Any) -> None:
            if not self.gone:
                try:
                    method(*args)
                except BaseException as error:  # noqa: BLE001 - an error of a probe fails no request
                    self.failed(error)

        return notify

    def failed(self, error: BaseException) -> None:
        """Count an error of the probe; a `KeyboardInterrupt` goes to the main thread where that waits for this one."""
        if isinstance(error, KeyboardInterrupt):
            if get_ident() == main_thread.ident:
                raise error
            call = call_of_main(get_ident())
            if call is not None:
                call.interrupt = error
                return
        text = error_text(error)
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
    """The probes that a pipeline has at one time; when the probes change, a new object replaces this one.

    Args:
        probes: The probes, each with the name that ``stats()`` shows.

    Attributes:
        all: The argument ``probes``.
        reentrant: Whether all probes that hear of requests say that a signal handler may call them meanwhile.
        reports: Whether any probe hears of batches or requests, so that these are timed.
        listening: Whether a node needs a `Reporter`: for that, for instances, or to keep the main thread away.
        in_service: The instances reported as ready, and not as gone since, by node and index.
    """

    def __init__(self, probes: Sequence[GuardedProbe] = ()) -> None:
        self.all = probes
        self.in_service: dict[tuple[str, int], None] = {}
        self._heard = {name: _with(probes, name) for name in PROBE_METHODS}
        hearing = [one.probe for name in PROBE_METHODS[:-1] for one, _ in self._heard[name]]
        self.reentrant = all(getattr(probe, "reentrant", False) is True for probe in hearing)
        self.reports = any(map(self.hears, PROBE_METHODS[:3]))
        self.listening = self.reports or self.hears("instance_changed") or not self.reentrant
        self.batch_done = self.notifier("batch_done") if self.hears("batch_done") else None
        self.batch_ran = self.notifier("batch_ran") if self.hears("batch_ran") else None
        self.request_done = self.notifier("request_done")

    def hears(self, what: str) -> bool:
        """Tell whether a probe has the method ``what``; if none has it, nothing is measured for it."""
        return bool(self._heard[what])

    def notify(self, what: str, *args: Any) -> None:
        """Call the method ``what`` of each probe that has it."""
        self.notifier(what)(*args)

    def notifier(self, what: str, *about: Any) -> Callable[..., None]:
        """Return a function that calls the method ``what`` of each probe that has it, with ``about`` first."""
        heard = self._heard[what]
        calls = [one.guarding(partial(call, *about) if about else call) for one, call in heard]
        if len(calls) == 1:
            return calls[0]

        def notify(*args: Any) -> None:
            for call in calls:
                call(*args)

        return notify

    def instance_changed(self, node: str, instance: int, state: str) -> None:
        """Report what has become of an instance: ready, lost, retired or closed."""
        if state == "ready":
            self.in_service[node, instance] = None
        else:
            self.in_service.pop((node, instance), None)
        self.notify("instance_changed", node, instance, state)

    def statistics(self) -> dict[str, Any]:
        """Return what ``stats()`` shows of the probes: how often each has failed, and how last."""
        return {one.name: {"errors": one.errors, "last": one.last} for one in self.all}

    def close(self) -> None:
        """Call ``close`` of each probe that has it, once; no probe is called after that."""
        for node, instance in list(self.in_service):
            self.instance_changed(node, instance, "closed")
        left = [one for one in self.all if not one.gone]
        for guarded in left:
            guarded.gone = True
        for guarded, method in _with(left, "close"):
            try:
                method()
            except BaseException as error:  # noqa: BLE001 - an error of a probe fails no request
                guarded.failed(error)


class Reporter:
    """Tells the probes what happens at one node. Only `settled` is called under a lock.

    The probes hear of an outcome before the owner does: see `headrace._scheduling.node.Node.settle`.

    Args:
        node: The name of the node.
        clock: The clock of the node's scheduler.
        probes: The probes.

    Attributes:
        probes: The probes that listen now.
        returning: The entries that are settled and not yet reported, each with the time of its outcome.
    """

    def __init__(self, node: str, clock: Callable[[], float], probes: Probes) -> None:
        self.probes = probes
        self.returning: dict[Entry, float] = {}
        self._node = node
        self._clock = clock
        # The threads that are inside a probe; a thread changes only its own entry.
        self._inside: dict[int, bool] = {}

    def settled(self, entry: Entry) -> None:
        """Note the time at which an entry is settled; `answers` is called once the lock is left."""
        if self.probes.reports:
            self.returning[entry] = self._clock()

    def answers(self, entry: Entry) -> None:
        """Report a settled entry before its owner is notified; a second call does nothing.

        The dict of a request that was withdrawn is left to the owner who has done so.
        """
        if entry in self.returning:
            try:
                if entry.owner is not NOBODY:
                    entry.give_back()
            finally:
                ended = self.returning.pop(entry)
            self._end(entry.request, entry.arrival, ended, entry.error)

    def refused(self, request: Any, error: BaseException) -> None:
        """Report a request that was refused before it entered."""
        now = self._clock()
        self._end(request, now, now, error)

    def _end(self, request: Any, started: float, ended: float, error: BaseException | None) -> None:
        me = get_ident()
        outer, self._inside[me] = self._inside.get(me), True
        try:
            self.probes.request_done(self._node, request, started, ended, error)
        finally:
            reset(self._inside, me, outer)

    def changed(self, state: str, instances: Iterable[Instance]) -> None:
        """Report that instances have come into ``state``: see `Probes.instance_changed`."""
        for instance in instances:
            self.probes.instance_changed(self._node, instance.index, state)

    def holds(self, ident: int) -> bool:
        """Tell whether thread ``ident``, or one that waits for it, is inside a probe."""
        inside = self._inside  # looked up, not iterated: other threads change it meanwhile
        return any(one in inside for one in served_by(ident))

    def run(self, work: Work, node: Place) -> Outcome:
        """Run a batch as `headrace._scheduling.batch.run` does, and report it while its thread holds the instance."""
        if not self.probes.reports:
            return batch.run(work, node)
        started = self._clock()
        errors, interrupt = batch.run(work, node)
        requests = [(e.request, e.arrival, e.cut, e.weight) for e in work.entries]
        self._ran(work.instance.index, requests, started, errors or [None] * len(requests))
        return errors, interrupt

    def run_alone(self, instance: Instance, request: Request, node: Place) -> BaseException | None:
        """Run a caller's own request as `headrace._scheduling.batch.run_alone` does, and report it."""
        if not self.probes.reports:
            return batch.run_alone(instance, request, node)
        data, started, interrupt = request["data"], self._clock(), None
        error: BaseException | None
        try:
            error = batch.run_alone(instance, request, node, may_time=False)
            if error is not PENDING:
                request["data"] = data
                if error is not None:
                    request.pop("result", None)
        except BaseException as raised:  # noqa: BLE001 - raised again below
            error = interrupt = raised
        alone = [(request, started, started, request.get("request_size", 1))]
        try:
            ended = self._ran(instance.index, alone, started, [error])
            instance.timed(ended - started)
            instance.waited.add(0.0)
            if error is not PENDING:
                self.probes.request_done(self._node, request, started, ended, error)
            if interrupt is not None:
                raise interrupt
            return error
        finally:
            del error, interrupt  # see `Entry.take_error`

    def _ran(
        self,
        instance: int,
        requests: Sequence[tuple[Request, float, float, int]],
        started: float,
        errors: Sequence[BaseException | None],
    ) -> float:
        """Report a batch that has run until now; give the time."""
        node, probes, ended = self._node, self.probes, self._clock()
        errors = [None if error is PENDING else error for error in errors]
        if probes.batch_done is not None:
            probes.batch_done(node, instance, len(errors), started, ended, [*errors])
        if probes.batch_ran is not None:
            made = [_make(BatchRequest, one) for one in requests]
            weight = sum([one.weight for one in made])
            about = (node, instance, get_ident(), made, started, ended, weight, [*errors])
            probes.batch_ran(_make(BatchRecord, about))
        return ended


def _with(
    probes: Sequence[GuardedProbe], name: str
) -> list[tuple[GuardedProbe, Callable[..., Any]]]:
    methods = [(one, getattr(one.probe, name, None)) for one in probes]
    return [(one, method) for one, method in methods if callable(method)]
