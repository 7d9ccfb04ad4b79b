"""The probes of a pipeline, and what they are told. An error of a probe fails no request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

from headrace._run.steps.box import main
from headrace._texts import error_text
from headrace.keys import Request

_log = logging.getLogger("headrace.probes")

_METHODS = """
batch_done request_done batch_ran request_failed request_entered
element_began element_done span_done instance_changed pipeline_started
"""
PROBE_METHODS = tuple(_METHODS.split())
"""A probe is a class with any of these methods. See `headrace.hookspecs.headrace_probes`."""


class BatchRequest(NamedTuple):
    """One request of a batch.

    Attributes:
        request: The dict that ``request_done`` is given as well. Read it, do not keep it.
        arrival: When it arrived at the node, in seconds.
        cut: When it was put into the batch. The arrival where its caller ran it itself.
        weight: Its ``request_size``.
        priority, deadline: Those of its call. The deadline is on the clock of the other times.
            None for none.
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
        reason: Why it was formed: what `headrace.policies.Cut` says, or ``"other"`` for the 17th
            reason of a node and later ones.
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

    def call(self, method: Callable[..., Any], *args: Any) -> None:
        """Call a method of the probe, unless it is gone; count an error of it."""
        if not self.gone:
            try:
                method(*args)
            except BaseException as error:  # an error of a probe fails no request
                self.count_failure(error)

    def enter(self, request: Request) -> None:
        """Tell the probe of a request that enters; it stands among the classes with ``enter``."""
        self.call(self.probe.request_entered, request)

    def count_failure(self, error: BaseException) -> None:
        """Count an error of the probe; Ctrl-C in the main thread goes on."""
        if isinstance(error, KeyboardInterrupt) and get_ident() == main:
            raise error
        with self._lock:
            self.errors += 1
            self.last, is_first = error_text(error), self.errors == 1
        if is_first:
            text = "the probe %s failed: %s; further errors are only counted, see stats()"
            _log.warning(text, self.name, self.last, exc_info=error)


class Probes:
    """The probes of a pipeline.

    Args:
        probes: The probes, each with the name that ``stats()`` shows.

    Attributes:
        all: The probes.
        calls: What is called for each method of a probe. A new dict when the probes change.
        in_service: The instances reported as ready, and not as gone since, by node and index.
    """

    def __init__(self, probes: Sequence[GuardedProbe] = ()) -> None:
        self.in_service: dict[tuple[str, int], None] = {}
        self.set(probes)

    def set(self, probes: Sequence[GuardedProbe]) -> None:
        """Let these probes, and no others, be told from now on."""
        self.all = probes
        self.calls = {
            name: [partial(probe.call, method) for probe, method in _with(probes, name)]
            for name in PROBE_METHODS
        }

    def hears(self, method: str) -> bool:
        """Tell whether a probe has this method; if none has it, nothing is measured for it."""
        return bool(self.calls[method])

    def notify(self, method: str, *args: Any) -> None:
        """Call this method of each probe that has it."""
        for call in self.calls[method]:
            call(*args)

    def enters(self) -> dict[Any, Any]:
        """Return the probes that receive requests on entry, as `Entrance.use` takes them."""
        return {probe: probe for probe, _ in _with(self.all, "request_entered")}

    def instance_changed(self, node: str, instance: int, state: str) -> None:
        """Report what has become of an instance: ready, paused, lost or closed."""
        if state == "ready":
            self.in_service[node, instance] = None
        elif state != "paused":
            self.in_service.pop((node, instance), None)
        self.notify("instance_changed", node, instance, state)

    def statistics(self) -> dict[str, Any]:
        """Return what ``stats()`` shows of the probes: their errors, and what each says itself."""
        shown: dict[str, Any] = {}
        for probe in self.all:
            shown[probe.name] = {"errors": probe.errors, "last": probe.last}
        for probe, method in _with(self.all, "statistics"):
            probe.call(lambda into, read: into.update(read()), shown[probe.name], method)
        return shown

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
    """Subscribes to the events of one node (`Events`) that its probes receive, and to no others."""

    def __init__(self, node: str, probes: Probes) -> None:
        self._calls = probes.calls
        if probes.hears("batch_done") or probes.hears("batch_ran"):
            self.on_ended = self._tell_ended
        if probes.hears("request_done"):
            self.on_settled = partial(probes.notify, "request_done", node)
        if probes.hears("request_failed"):
            self.on_failed = partial(probes.notify, "request_failed", node)

    def _tell_ended(self, record: BatchRecord) -> None:
        """Tell those that were there as the batch began."""
        about = record.node, record.instance, len(record.errors), record.started, record.ended
        for call in self._calls["batch_done"]:
            call(*about, [*record.errors])
        for call in self._calls["batch_ran"]:
            call(record)


def _with(probes: Sequence[GuardedProbe], name: str) -> list[tuple[GuardedProbe, Any]]:
    methods = [(probe, getattr(probe.probe, name, None)) for probe in probes]
    return [(probe, method) for probe, method in methods if callable(method)]
