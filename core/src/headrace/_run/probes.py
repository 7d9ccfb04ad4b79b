"""The probes of a pipeline, and what is reported to them. An error of a probe is counted, and fails no request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._run import batch
from headrace._run.box import main, post
from headrace._run.checked import PENDING
from headrace._texts import error_text
from headrace.keys import Request

if TYPE_CHECKING:
    from headrace._run.batch import Errors
    from headrace._run.entry import Entry
    from headrace._run.instance import Instance
    from headrace._run.node import Node

_log = logging.getLogger("headrace.probes")
_make = tuple.__new__

PROBE_METHODS = (
    *("batch_done", "request_done", "batch_ran", "request_entered"),
    *("element_began", "element_done", "span_done", "instance_changed", "pipeline_started"),
)
"""A probe is a class with any of these methods. See `headrace.hookspecs.headrace_probes`. The first three tell of batches
and requests, the last of the pipeline alone."""


class BatchRequest(NamedTuple):
    """One request of a batch.

    Attributes:
        request: The request: the dict that ``request_done`` is given as well. Read it, do not keep it.
        arrival: When it arrived at the node, in seconds.
        cut: When it was put into the batch. The arrival where its caller ran it itself.
        weight: Its ``request_size``.
        priority, deadline: Those of its call. The deadline is on the clock of the other times, None for none.
    """

    request: Request
    arrival: float
    cut: float
    weight: int
    priority: int = 0
    deadline: float | None = None


class BatchRecord(NamedTuple):
    """A batch that has run.

    Attributes:
        node: The node.
        instance: Index of the instance, from 0.
        thread: Identifier of the thread that ran it, as `threading.get_ident`.
        requests: Its requests, in order. Copies that ``pad`` added are none.
        started, ended: Before and after its run, in seconds on the clock of ``time.monotonic()``.
        weight: The sum of their weights.
        errors: One exception or None per request, in order.
        reason: Why it was formed: what `headrace.policies.Cut` says, or ``"other"`` for the 17th reason of a node and later ones.
    """

    node: str
    instance: int
    thread: int
    requests: Sequence[BatchRequest]
    started: float
    ended: float
    weight: int
    errors: Sequence[BaseException | None]
    reason: str = ""


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
                except BaseException as error:  # an error of a probe fails no request
                    self.count_failure(error)

        return notify

    def count_failure(self, error: BaseException) -> None:
        """Count an error of the probe; Ctrl-C in the main thread goes on."""
        if isinstance(error, KeyboardInterrupt) and get_ident() == main:
            raise error
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


class EnteringProbe(NamedTuple):
    """Stands among the classes with ``enter`` for a probe that receives requests on entry."""

    guarded: GuardedProbe

    @property
    def enter(self) -> Callable[..., None]:
        """What is called for each request; it raises nothing."""
        return self.guarded.guarding(self.guarded.probe.request_entered)


class Probes:
    """The probes that a pipeline has at one time. When the probes change, a new object replaces this one.

    Args:
        probes: The probes, each with the name that ``stats()`` shows.

    Attributes:
        all: The argument ``probes``.
        reports: Whether any probe receives batches or requests, so that these are timed.
        in_service: The instances reported as ready, and not as gone since, by node and index.
    """

    def __init__(self, probes: Sequence[GuardedProbe] = ()) -> None:
        self.all = probes
        self.in_service: dict[tuple[str, int], None] = {}
        self._calls = {
            name: [one.guarding(method) for one, method in _with(probes, name)]
            for name in PROBE_METHODS
        }
        self.reports = any(map(self.hears, PROBE_METHODS[:3]))

    def hears(self, what: str) -> bool:
        """Tell whether a probe has the method ``what``; if none has it, nothing is measured for it."""
        return bool(self._calls[what])

    def notify(self, what: str, *args: Any) -> None:
        """Call the method ``what`` of each probe that has it."""
        for call in self._calls[what]:
            call(*args)

    def instance_changed(self, node: str, instance: int, state: str) -> None:
        """Report what has become of an instance: ready, paused, lost or closed."""
        if state == "ready":
            self.in_service[node, instance] = None
        elif state != "paused":
            self.in_service.pop((node, instance), None)
        self.notify("instance_changed", node, instance, state)

    def instances_changed(self, node: str, instances: Iterable[Instance], state: str) -> None:
        """Report that several instances of a node have come into ``state``."""
        for instance in instances:
            self.instance_changed(node, instance.index, state)

    def statistics(self) -> dict[str, Any]:
        """Return what ``stats()`` shows of the probes: how often each has failed, and how last, and what it says itself."""
        found = {one.name: {"errors": one.errors, "last": one.last} for one in self.all}
        for guarded, method in _with(self.all, "statistics"):
            guarded.guarding(lambda: found[guarded.name].update(method()))()  # noqa: B023 - called at once
        return found

    def close(self) -> None:
        """Call ``close`` of each probe that has it, once; no probe is called after that."""
        for node, instance in list(self.in_service):
            self.instance_changed(node, instance, "closed")
        left = [probe for probe in self.all if not probe.gone]
        for guarded in left:
            guarded.gone = True
        for guarded, method in _with(left, "close"):
            try:
                method()
            except BaseException as error:  # an error of a probe fails no request
                guarded.count_failure(error)


class Reporter:
    """Tells the probes what becomes of batches and requests at one node. In no step.

    Args:
        node: The name of the node.
        clock: The clock of the node.
        probes: The probes.
    """

    def __init__(self, node: str, clock: Callable[[], float], probes: Probes) -> None:
        self._probes = probes
        self._node = node
        self._clock = clock

    def report_outcome(self, node: Node, entry: Entry, ended: float) -> None:
        """Report a settled entry, and then tell its caller."""
        try:
            if entry.then is not None or entry.lock is not None:
                entry.give_back()
            self._end(entry.request, entry.arrival, ended, entry.error)
        finally:
            post(node.box, node.tell, entry)

    def report_refused(self, request: Any, error: BaseException) -> None:
        """Report a request that was refused before it entered."""
        now = self._clock()
        self._end(request, now, now, error)

    def _end(self, request: Any, started: float, ended: float, error: BaseException | None) -> None:
        self._probes.notify("request_done", self._node, request, started, ended, error)

    def run(self, instance: Instance, entries: Sequence[Entry], node: Node) -> Errors:
        """Run a batch as `headrace._run.batch.run` does, and report it while its thread holds the instance."""
        started = self._clock()
        errors = batch.run(instance, entries, node)
        requests = [
            (e.request, e.arrival, e.cut, e.weight, e.priority, e.deadline) for e in entries
        ]
        self._ran(instance, requests, started, errors or [None] * len(requests))
        return errors

    def run_alone(self, instance: Instance, request: Request, node: Node) -> BaseException | None:
        """Run a caller's own request as `headrace._run.batch.run_alone` does, and report it."""
        data, started, interrupt = request["data"], self._clock(), None
        error: BaseException | None
        try:
            error = batch.run_alone(instance, request, node, timed=False)
            if error is not PENDING:
                request["data"] = data
                if error is not None:
                    request.pop("result", None)
        except BaseException as raised:  # raised again below
            error = interrupt = raised
        alone = [(request, started, started, request.get("request_size", 1), 0, None)]
        try:
            ended = self._ran(instance, alone, started, [error])
            instance.note_duration(ended - started)
            if error is not PENDING:
                self._end(request, started, ended, error)
            if interrupt is not None:
                raise interrupt
            return error
        finally:
            del error, interrupt  # see `Entry.take_error`

    def _ran(
        self,
        instance: Instance,
        requests: Sequence[tuple[Any, ...]],
        started: float,
        errors: Sequence[BaseException | None],
    ) -> float:
        """Report a batch that has run until now; give the time."""
        node, probes, ended = self._node, self._probes, self._clock()
        errors = [None if error is PENDING else error for error in errors]
        probes.notify("batch_done", node, instance.index, len(errors), started, ended, [*errors])
        if probes.hears("batch_ran"):
            made = [_make(BatchRequest, ran) for ran in requests]
            weight = sum([ran.weight for ran in made])
            about = (node, instance.index, get_ident(), made, started, ended, weight)
            probes.notify("batch_ran", _make(BatchRecord, (*about, [*errors], instance.reason)))
        return ended


def _with(
    probes: Sequence[GuardedProbe], name: str
) -> list[tuple[GuardedProbe, Callable[..., Any]]]:
    methods = [(one, getattr(one.probe, name, None)) for one in probes]
    return [(one, method) for one, method in methods if callable(method)]
