"""See inside Headrace pipelines: traces, metrics, logs, measurements.

Nothing is imported until it is used: ``import headrace_observe`` loads none of the libraries of its
extras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_observe.bench.benchmark import Benchmark
    from headrace_observe.bench.gpus import gpus
    from headrace_observe.bench.one_backend import inspect
    from headrace_observe.bench.timer import Timer
    from headrace_observe.explain.causes import why
    from headrace_observe.logs import setup_logging
    from headrace_observe.probes.otel import OpenTelemetry
    from headrace_observe.probes.prometheus import Prometheus
    from headrace_observe.probes.remember import Remember
    from headrace_observe.probes.trace import Trace, trace

__version__ = "0.1.0"

_HOME = {
    "bench.benchmark": "Benchmark",
    "bench.gpus": "gpus",
    "bench.one_backend": "inspect",
    "bench.timer": "Timer",
    "explain.causes": "why",
    "logs": "setup_logging",
    "probes.otel": "OpenTelemetry",
    "probes.prometheus": "Prometheus",
    "probes.remember": "Remember",
    "probes.trace": "Trace trace",
}

__all__ = [
    "Benchmark",
    "OpenTelemetry",
    "Prometheus",
    "Remember",
    "Timer",
    "Trace",
    "__version__",
    "gpus",
    "inspect",
    "setup_logging",
    "trace",
    "why",
]

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
