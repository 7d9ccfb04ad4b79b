"""``/metrics``: the counters of the server and of each pipeline, in one registry of Prometheus.

The metrics of a pipeline come from the probe ``Prometheus`` of headrace-observe, if that is installed. Each
sample gets the labels ``model`` and ``model_version``. What the code of a backend registers in the default registry
of prometheus-client is there as well, unless ``metrics`` is ``"server"``. The configurations need not name the probe. Its histograms hear of
each request, which costs some microseconds, so they count from the first time that the metrics are asked for.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import ClosedError
from headrace.hookspecs import attached
from headrace_serve.errors import UnsupportedError
from headrace_serve.monitoring.observe_probes import probe as probe_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace_serve.models.model import Model
    from headrace_serve.monitoring.counters import Counters
    from headrace_serve.service import Service

__all__ = ["Snapshot", "can_encode", "encoded"]

logger = logging.getLogger("headrace.serve")

_PROBE = "Prometheus"
_ATTACHING = threading.Lock()


class Snapshot:
    """The state of the server at one moment. The event loop copies it, and another thread encodes it.

    Attributes:
        counters, models, connections, ready, following: Of `Service`.
        own: Whether the metrics that code in this process has registered are left out.
        suffixed: Whether samples of counters get the suffix ``_total``, as OpenMetrics demands, whoever has named them.
        fixed: The label of all samples that names the worker process, whose numbers they are. Empty for a server of one.
    """

    suffixed = False

    def __init__(self, service: Service) -> None:
        self.counters: Counters = service.counters.copy()
        self.models: list[Model] = list(service.models)
        self.connections = service.connections()
        self.ready = service.ready
        self.following = service.following
        self.own = service.metrics == "server"
        worker = service.worker
        self.fixed: dict[str, str] = {} if worker is None else {"worker": str(worker)}

    def collect(self) -> Iterator[Any]:
        """Return the families of metrics, as a collector of Prometheus does."""
        yield from self._own()
        yield from self._of_memory()
        yield from _of_steps(self.models, self.fixed)
        of_process = _of_process(self.fixed, own=self.own)
        for family in _merged(chain(_of_pipelines(self.models, self.fixed), of_process)):
            yield _suffixed(family) if self.suffixed else family

    def _own(self) -> Iterator[Any]:
        now = self.counters
        rows: Mapping[Any, float]
        labels: tuple[str, ...]
        for name, labels, rows, text in (
            ("requests", ("route", "model", "status"), now.requests, "Requests that were answered."),
            ("received_bytes", ("route",), _rows(now.received_bytes), "Bytes of bodies that were received."),
            ("sent_bytes", ("route",), _rows(now.sent_bytes), "Bytes of bodies that were sent."),
            ("loads", ("kind", "outcome"), now.loads, "Reloads of everything, and loads and unloads of models by requests."),
        ):  # fmt: skip
            yield _family("counter", name, text, labels, rows, self.fixed)
        for name, labels, rows, text in (
            ("in_flight_requests", ("protocol",), _rows(now.in_flight), "Requests that are being received or answered."),
            ("connections", (), {(): self.connections}, "Open connections of HTTP."),
            ("ready", (), {(): float(self.ready)}, "Whether requests are accepted and every loaded model is ready."),
        ):  # fmt: skip
            yield _family("gauge", name, text, labels, rows, self.fixed)

    def _of_memory(self) -> Iterator[Any]:
        """Return the families of models that come and go, where models have a budget of memory."""
        of = self.following.memory_of
        told = {(m.name, m.version): of(m.name, m.version) for m in self.models}
        sizes = {p: about["memory"]["bytes"] for p, about in told.items() if about.get("memory")}
        if not sizes:
            return
        now, model = self.following.comings, ("model",)
        for name, counted, text in (
            ("models_loaded", now.loaded, "Loads of a model. A request without a load is a hit."),
            ("models_evicted", now.evicted, "How often a model has left for another one."),
            ("models_loading_seconds", now.took_s, "Seconds until it had come, in all."),
        ):
            yield _family("counter", name, text, model, _rows(counted), self.fixed)
        rows = {(*place, d): n for place, devices in sizes.items() for d, n in devices.items()}
        labels = ("model", "model_version", "device")
        text = "Bytes of the budget that a model takes when it is here."
        yield _family("gauge", "model_memory_bytes", text, labels, rows, self.fixed)
        here = {place: float(told[place]["state"] == "present") for place in sizes}
        text = "Whether a model is here."
        yield _family("gauge", "model_present", text, labels[:2], here, self.fixed)


def _rows(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(name,): value for name, value in values.items()}


def _family(
    kind: Literal["counter", "gauge"],
    name: str,
    text: str,
    labels: tuple[str, ...],
    rows: Mapping[Any, float],
    fixed: Mapping[str, str],
) -> Any:
    """Return a family of metrics with a sample for each row, whose key has the values of the labels."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    family: Any = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    family = family(f"headrace_serve_{name}", text, labels=[*labels, *fixed])
    for values, value in rows.items():
        family.add_metric([*values, *fixed.values()], value)
    return family


def can_encode() -> bool:
    """Return whether `encoded` finds what it needs, prometheus-client."""
    return importlib.util.find_spec("prometheus_client") is not None


def encoded(snapshot: Snapshot, accept: str) -> tuple[str, bytes]:
    """Return the type and the text of the metrics, as ``Accept`` asks (OpenMetrics, or Prometheus' text).

    Raises:
        UnsupportedError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
    except ImportError as error:
        raise UnsupportedError(
            'metrics need prometheus-client on the server: pip install "headrace-serve[metrics]"'
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(snapshot)
    encoder, kind = choose_encoder(accept)
    snapshot.suffixed = str(kind).startswith("application/openmetrics-text")
    return str(kind), bytes(encoder(registry))


def _of_pipelines(models: Iterable[Model], fixed: Mapping[str, str]) -> Iterator[Any]:
    """Return the families of each pipeline; ``fixed`` labels are the same for all of them."""
    probe = probe_of(_PROBE, "families", "histograms")
    if probe is None:
        return
    for model in models:
        labels = {**fixed, "model": model.name, "model_version": model.version}
        for family in (*probe.families(model.pipe), *_times(probe, model)):
            yield _labelled(family, labels)


def _of_steps(models: Iterable[Model], fixed: Mapping[str, str]) -> Iterator[Any]:
    """Return the families of nodes that run step by step, by ``Iterate`` of headrace-flow; without one there are none."""
    loops = {
        (model.name, model.version, node): loop
        for model in models
        for node, loop in model.stats().get("iterate", {}).items()
    }
    labels = ("model", "model_version", "node")
    if loops:
        text = "Steps that were run on all requests in flight."
        rows = {values: loop["steps"] for values, loop in loops.items()}
        yield _family("counter", "iterate_steps", text, labels, rows, fixed)
        text = "Requests in these steps, each once a step: where a step writes a token, the tokens."
        rows = {values: round(loop["steps"] * loop["in_flight"]) for values, loop in loops.items()}
        yield _family("counter", "iterate_requests_in_steps", text, labels, rows, fixed)
        text = "The mean share of the places of a step that requests took."
        known = {v: loop["occupancy"] for v, loop in loops.items() if loop["occupancy"] is not None}
        yield _family("gauge", "iterate_occupancy", text, labels, known, fixed)


def _of_process(fixed: Mapping[str, str], *, own: bool) -> Iterable[Any]:
    """Return the families of this process, which are there on Linux, and what its code has registered unless ``own``."""
    from prometheus_client import REGISTRY, ProcessCollector

    source: Any = ProcessCollector(registry=None) if own else REGISTRY
    try:
        return [_labelled(family, fixed) for family in source.collect()]
    except Exception:  # of a collector of somebody
        logger.warning("the default registry of prometheus-client is left out", exc_info=True)
        return ()


def _times(probe: Any, model: Model) -> Iterable[Any]:
    """Return the histograms of the times of requests, which count from the first call for the model on."""
    from prometheus_client import Metric

    with _ATTACHING:  # two clients may ask at a time
        if model.histograms is None:
            measured = probe.histograms([*model.pipe.stats()["nodes"]])
            try:
                model.measured.enter_context(attached(model.pipe, measured))
            except ClosedError:
                return ()
            model.histograms = measured
    families: Iterable[Any] = model.histograms.families(Metric)
    return families


def _labelled(family: Any, labels: Mapping[str, str]) -> Any:
    family.samples = [each._replace(labels={**labels, **each.labels}) for each in family.samples]
    return family


def _suffixed(family: Any) -> Any:
    """Return a family whose samples have ``_total`` if they are of a counter."""
    if str(family.type) == "counter":
        named = {family.name: f"{family.name}_total"}
        family.samples = [
            sample._replace(name=named.get(sample.name, sample.name)) for sample in family.samples
        ]
    return family


def _merged(families: Iterable[Any]) -> Iterable[Any]:
    """Join the families of one name, because the text may contain a name only once."""
    merged: dict[str, Any] = {}
    for family in families:
        known = merged.setdefault(family.name, family)
        if known is not family:
            known.samples.extend(family.samples)
    return merged.values()
