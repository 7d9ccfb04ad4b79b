"""The probe OpenTelemetry: passes spans of requests and batches, and metrics, to the application's providers."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import headrace
from headrace.errors import code_of
from headrace_observe.codes import bounded
from headrace_observe.extras import library
from headrace_observe.probes.background import MOST_PENDING, WorkerThread
from headrace_observe.probes.metrics import tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.hookspecs import BatchRecord

__all__ = ["OpenTelemetry"]

_CARRIED = ("traceparent", "tracestate")


class _Current(str):
    """A header of the span that was current when a request entered. The next call with the same dict replaces it."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


_COUNTED = {
    "headrace_requests": "{request}",
    "headrace_requests_submitted": "{request}",
    "headrace_requests_waiting": "{request}",
    "batches": "{batch}",
    "errors": "{error}",
    "waiting": "{item}",
    "dropped": "{item}",
}
"""Units in the notation of OpenTelemetry, by the name of a metric or the last part of it."""

_MOST_FAILED = 1000
"""The most errors of the provider that wait to be counted."""

_PIPELINES: dict[int, weakref.ref[headrace.Pipeline]] = {}
"""The pipelines of the process that give metrics, each under the smallest number that was free."""

_METER: list[Any] = [None]
"""The meter that has the instruments."""

_OFFERED: set[str] = set()
"""The metrics that have an instrument of that meter."""

_OFFERING = [threading.RLock()]
"""Held while a pipeline is added."""


def _forget_in_child() -> None:
    """Drop the pipelines of the parent in a forked child, whose metric readers go on; its counts are the parent's."""
    _PIPELINES.clear()
    _OFFERING[0] = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)

_LOOK_S = 60.0
"""Seconds between two readings of the wall clock. Between them all times have the same offset, so spans keep their
order to the nanosecond."""


class _Batch(NamedTuple):
    number: int
    node: str
    instance: int
    started: float
    ended: float
    size: int
    weight: int
    failed: int
    reason: str
    parents: Sequence[dict[str, str] | None]


class _Request(NamedTuple):
    node: str
    started: float
    ended: float
    code: str | None
    parent: dict[str, str] | None
    batch: int | None


class OpenTelemetry:
    """The probe that gives spans and metrics to the global providers of OpenTelemetry.

    A request at a node is a span, whose parent is ``request["context"]["traceparent"]`` (W3C Trace
    Context). Without it the parent is the span that is current where the pipeline is called, and the probe puts it there, so that
    backends and other servers find it. If the parent is not sampled, the request has no span. A batch is a span of a trace of its own, to
    which the spans of its requests link. The pipeline only notifies the probe, and a thread of the probe makes the
    spans, so that requests do not wait. Metrics are read from ``stats()`` when the metric reader asks.

    The application, or ``opentelemetry-instrument``, sets the providers, without providers the probe does nothing.
    """

    class Options(headrace.Options):
        """What is exported.

        Attributes:
            spans: Whether requests and batches are spans.
            metrics: Whether stats() is given as metrics.
        """

        spans: bool = True
        metrics: bool = True

    def __init__(self, options: OpenTelemetry.Options) -> None:
        """Find the library.

        Raises:
            MissingDependencyError: opentelemetry-api is not installed.
        """
        self._api = library("opentelemetry.trace", "otel", "the probe OpenTelemetry")
        self._numbers = iter(range(1, 2**63))
        # A request is identified by its node and its dict's identity, because `Forward` passes a dict on to another
        # node.
        self._ran: dict[tuple[str, int], tuple[int, float]] = {}
        self._early: dict[tuple[str, int], _Request] = {}
        self._links: dict[int, Any] = {}
        self._failed: deque[Exception] = deque(maxlen=_MOST_FAILED)
        self._looked = -_LOOK_S
        self._offset_ns = 0
        self._worker: WorkerThread[_Batch | _Request] | None = None
        if options.spans:
            name = "opentelemetry.trace.propagation.tracecontext"
            propagation = library(name, "otel", "the probe OpenTelemetry")
            propagator = propagation.TraceContextTextMapPropagator()
            self._extract, self._inject = propagator.extract, propagator.inject
            self._root = library(
                "opentelemetry.context", "otel", "the probe OpenTelemetry"
            ).Context()
            self._tracer = self._api.get_tracer("headrace", headrace.__version__)
            self._worker = WorkerThread(self._make, lambda: None, name="headrace-opentelemetry")
            # The pipeline calls only methods that a probe has, so without spans these two cost nothing.
            self.batch_ran = self._batch_ran
            self.request_done = self._request_done
            self.request_entered = self._request_entered
        self._metrics = options.metrics

    def pipeline_started(self, pipeline: headrace.Pipeline) -> None:
        """Register the pipeline's statistics as metrics; a weak reference does not keep the pipeline alive."""
        if self._metrics:
            api = library("opentelemetry.metrics", "otel", "the probe OpenTelemetry")
            _offer(api.get_meter("headrace", headrace.__version__), pipeline)

    # What the pipeline calls.

    def _request_entered(self, request: dict[str, Any]) -> None:
        context = request.get("context")
        if context is not None and not isinstance(context, Mapping):
            return
        parent = (context or {}).get("traceparent")
        is_own = isinstance(parent, _Current)
        if isinstance(parent, str) and not is_own:
            return
        context_ids: dict[str, str] = {}
        self._inject(context_ids)
        if not context_ids and not is_own:
            return
        current = {key: _Current(value) for key, value in context_ids.items()}
        if (
            isinstance(context, dict) and type(context) is not dict
        ):  # of a class that its owner looks for
            entry = context
        else:  # a copy: requests may share it
            entry = request["context"] = dict(context or {})
        for key in _CARRIED:
            entry.pop(key, None)
        entry.update(current)

    def _batch_ran(self, record: BatchRecord) -> None:
        if self._worker is None:
            return
        number = next(self._numbers)
        failed = len(record.errors) - record.errors.count(None)
        parents = [_carried(entry.request) for entry in record.requests]
        about = (record.node, record.instance, record.started, record.ended)
        self._worker.put(
            _Batch(
                *(number, *about, len(record.errors), record.weight),
                *(failed, record.reason, parents),
            )
        )
        # Entries remain for requests whose owners stopped waiting between the cut of the batch and its start.
        if len(self._ran) > MOST_PENDING:
            self._ran.clear()
        for entry in record.requests:
            key = record.node, id(entry.request)
            self._ran[key] = number, record.started
            early = self._early.pop(key, None)
            if early is not None:
                self._ran.pop(key, None)
                self._worker.put(early._replace(batch=number))

    def _request_done(
        self, node: str, request: Any, started: float, ended: float, error: BaseException | None
    ) -> None:
        if self._worker is None:
            return
        key, code = (node, id(request)), None if error is None else code_of(error)
        heard = _Request(node, started, ended, code, _carried(request), None)
        # A request may time out while it runs; its span waits for the batch, so that it can link to it. The race:
        # this thread records the request and then looks for the batch, while the batch's thread records the batch and
        # then looks for the request. If this thread is first, the batch's thread finds the request; if it is second,
        # it finds the batch. If both find something, only one of them gets it from `_early`.
        abandoned = getattr(error, "abandoned", False) is True
        if abandoned:
            self._early[key] = heard
        number, began = self._ran.pop(key, (None, started))
        if abandoned and (number is None or self._early.pop(key, None) is None):
            return
        self._worker.put(heard._replace(batch=number if began >= started else None))
        self._raise_failed()

    def _raise_failed(self) -> None:
        """Raise an error of the provider, which the pipeline then counts as one of this probe."""
        if self._failed:
            try:
                error = self._failed.popleft()
            except IndexError:  # another thread was first
                return
            raise error

    def close(self) -> None:
        """Make the spans that are left."""
        if self._worker is not None:
            for early in [*self._early.values()]:  # the pipeline has abandoned their batches
                self._worker.append(early)
            self._worker.finish()
            self._raise_failed()

    # In the thread of the probe.

    def _epoch_ns(self, at: float) -> int:
        """Convert a time of ``time.monotonic()`` to nanoseconds of the wall clock, read every `_LOOK_S` seconds."""
        if at - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            self._offset_ns = time.time_ns() - round(self._looked * 1e9)
        return self._offset_ns + round(at * 1e9)

    def _make(self, records: list[_Batch | _Request]) -> None:
        for heard in records:
            try:
                if isinstance(heard, _Batch):
                    self._make_batch(heard)
                else:
                    self._make_request(heard)
            except Exception as error:  # noqa: BLE001 - of a provider; one span is lost, the next are made
                self._failed.append(error)

    def _make_batch(self, heard: _Batch) -> None:
        contexts = [self._parent(parent) for parent in heard.parents]
        if contexts and all(unsampled for _, unsampled in contexts):
            return
        if len(self._links) > MOST_PENDING:
            self._links.clear()
        span = self._tracer.start_span(
            f"headrace.batch {heard.node}",
            context=self._root,
            attributes={
                "headrace.node": heard.node,
                "headrace.instance": heard.instance,
                "headrace.batch.size": heard.size,
                "headrace.batch.weight": heard.weight,
                "headrace.batch.failed": heard.failed,
                "headrace.batch.reason": heard.reason,
            },
            start_time=self._epoch_ns(heard.started),
        )
        span.end(end_time=self._epoch_ns(heard.ended))
        if span.get_span_context().is_valid:
            self._links[heard.number] = [span.get_span_context(), heard.size]

    def _make_request(self, heard: _Request) -> None:
        link = self._link(heard.batch)
        context, unsampled = self._parent(heard.parent)
        if unsampled:
            return
        attributes: dict[str, Any] = {"headrace.node": heard.node}
        if heard.code is not None:
            attributes["error.type"] = bounded(heard.code)
        span = self._tracer.start_span(
            f"headrace.request {heard.node}",
            context=context,
            attributes=attributes,
            links=[] if link is None else [self._api.Link(link)],
            start_time=self._epoch_ns(heard.started),
        )
        if heard.code is not None:
            span.set_status(self._api.StatusCode.ERROR)
        span.end(end_time=self._epoch_ns(heard.ended))

    def _link(self, batch: int | None) -> Any:
        """Return the span context of a batch, and drop it after the batch's last request."""
        link = self._links.get(batch) if batch is not None else None
        if link is None:
            return None
        link[1] -= 1
        if not link[1]:
            del self._links[batch]  # type: ignore[arg-type]
        return link[0]

    def _parent(self, carried: dict[str, str] | None) -> tuple[Any, bool]:
        """Return the context for a request's trace headers, and whether its parent is known and not sampled."""
        context = self._extract(carrier=carried or {}, context={})
        parent = self._api.get_current_span(context).get_span_context()
        return context, parent.is_valid and not parent.trace_flags.sampled


def _carried(request: Any) -> dict[str, str] | None:
    """Copy ``traceparent`` and ``tracestate`` out of a request's ``context``; nothing else of it is kept."""
    context = request.get("context") if isinstance(request, dict) else None
    if not isinstance(context, Mapping):
        return None
    values = {key: context.get(key) for key in _CARRIED}
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _offer(meter: Any, pipeline: headrace.Pipeline) -> None:
    """Add a pipeline to those whose statistics the asynchronous instruments of the process give.

    An instrument is made once, for all pipelines: of a second one with the same name a meter takes no notice.

    Args:
        meter: The meter of the global provider, or the stand-in that the API gives until there is a provider.
        pipeline: The pipeline. A weak reference does not keep it alive.
    """
    with _OFFERING[0]:
        number = next(free for free in itertools.count() if free not in _PIPELINES)
        _PIPELINES[number] = weakref.ref(pipeline, lambda _: _PIPELINES.pop(number, None))
        # A stand-in passes its instruments on to the provider's meter once there is one.
        known = _METER[0]
        same = known is not None and meter in (known, getattr(known, "_real_meter", None))
        if known is None or not (same or hasattr(meter, "_real_meter")):
            _METER[0] = meter
            _OFFERED.clear()
        for name, kind, text, _ in tables(pipeline.stats(), ready=pipeline.ready):
            if name not in _OFFERED:
                _OFFERED.add(name)
                _make_instrument(_METER[0], name, kind, text)


def _make_instrument(meter: Any, name: str, kind: str, text: str) -> None:
    api = library("opentelemetry.metrics", "otel", "the probe OpenTelemetry")

    def observe(_: Any) -> Iterator[Any]:
        # `copy` is one step. Tuples of `items()` may start the garbage collector before Python 3.12; it calls the
        # function of a weak reference, which removes a pipeline.
        for number, reference in _PIPELINES.copy().items():
            pipeline = reference()
            if pipeline is None:
                continue
            for table, _kind, _text, samples in tables(pipeline.stats(), ready=pipeline.ready):
                if table == name:
                    for labels, value in samples:
                        named = {f"headrace.{label}": text for label, text in labels.items()}
                        yield api.Observation(value, {"headrace.pipeline": number, **named})

    counted = _COUNTED.get(name, _COUNTED.get(name.rpartition("_")[2], "1"))
    unit = "s" if name.endswith("_seconds") else counted
    # OpenTelemetry names counters of seconds "...time", as in system.cpu.time.
    ending = "_time" if kind == "counter" and unit == "s" else ""
    dotted = name.replace("_", ".", 1).removesuffix("_seconds") + ending
    make = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
    make(dotted, callbacks=[observe], unit=unit, description=text)
