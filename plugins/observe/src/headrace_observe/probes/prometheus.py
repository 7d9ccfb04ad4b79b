"""The probe Prometheus: metrics, readiness and liveness of a pipeline over HTTP."""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import threading
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

import pydantic

import headrace
from headrace.errors import SetupError
from headrace_formats.page import SANDBOXED
from headrace_observe.extras import library
from headrace_observe.probes.histograms import BOUNDS_S, Histograms
from headrace_observe.probes.metrics import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Prometheus"]

_log = logging.getLogger("headrace.observe.prometheus")

_TEXT = "text/plain; charset=utf-8"
_QUIET_S = 0.1

_LEAST_BOUND = 1024
"""The histogram of batch sizes has bounds at least up to this, so that several processes have the same bounds and
their histograms can be summed."""

_OWN = {"instance": "instance_index"}
"""Labels with another name here, because Prometheus itself uses ``instance`` for the scraped address."""


class Prometheus:
    """The probe that answers ``/metrics``, ``/ready`` and ``/live`` while its pipeline exists.

    Metrics are read from ``stats()`` when a client asks for ``/metrics``. The histograms of the times of requests hear of
    each request, which costs it some microseconds, without ``bounds`` there are none, and the probe costs nothing. Those of the
    process (``process_cpu_seconds_total``, ``process_resident_memory_bytes``, ...) are there on Linux.

    Attributes:
        port: The port on which the probe listens.
    """

    class Options(headrace.Options):
        """Where it listens.

        Attributes:
            port: The port; 0 for a free one.
            host: The address; "0.0.0.0", or "::" for IPv6, lets other machines ask, too.
            bounds: Upper bounds, in seconds and ascending, of the histograms of request and queue time; an empty list
                for no histograms.
        """

        port: int = pydantic.Field(9464, ge=0, le=65535)
        host: str = pydantic.Field("127.0.0.1", min_length=1)
        bounds: list[pydantic.PositiveFloat] = pydantic.Field(list(BOUNDS_S))

        @pydantic.field_validator("bounds")
        @classmethod
        def _ascend(cls, bounds: list[float]) -> list[float]:
            if bounds != sorted({*bounds}) or bounds[-1:] == [math.inf]:
                raise ValueError("the bounds ascend, and the last one is a number; +Inf is added")
            return bounds

    def __init__(self, options: Prometheus.Options) -> None:
        """Listen. ``/ready`` answers 503 until the pipeline is built.

        Raises:
            MissingDependencyError: prometheus-client is not installed.
            SetupError: The probe cannot listen on the address.
        """
        client = library("prometheus_client", "prometheus", "the probe Prometheus")
        library("prometheus_client.exposition", "prometheus", "the probe Prometheus")
        self._pipeline: weakref.ref[headrace.Pipeline] | None = None
        registry = client.CollectorRegistry(auto_describe=False)
        client.ProcessCollector(registry=registry)
        self._histograms = Histograms(options.bounds) if options.bounds else None
        if self._histograms is not None:  # core times every request for a probe with these methods
            self.request_done = self._histograms.request_done
            self.batch_ran = self._histograms.batch_ran
        registry.register(_Collector(client, self._look, self._histograms))
        host = f"[{options.host}]" if ":" in options.host else options.host
        try:
            self._server = _Server((options.host, options.port), _Handler)
        except OSError as error:
            hint = (
                "Choose another port: Prometheus(port=9465), or port=0 for a free one. With "
                "port=${METRICS_PORT:-9464} an environment variable sets it for one run. `headrace serve` has these "
                "metrics at its own /metrics: there the probe is not needed, and with it neither a reload nor "
                "--workers can build a second pipeline beside the first."
            )
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                hint = 'Give an address of this machine: Prometheus(host="127.0.0.1").'
            raise SetupError(
                f"Prometheus cannot listen on {host}:{options.port}: {error.strerror}", hint=hint
            ) from error
        self._server.look = self._look
        self._server.encode = lambda accept: _encoded(client, registry, accept)
        self.port: int = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": _QUIET_S},
            name="headrace-prometheus",
            daemon=True,
        )
        self._thread.start()
        _log.info("metrics at http://%s:%d/metrics", host, self.port)

    @staticmethod
    def families(pipeline: headrace.Pipeline) -> Iterator[Any]:
        """Return the metrics of a pipeline as families of prometheus-client, for a registry other than the probe's.

        Raises:
            MissingDependencyError: prometheus-client is not installed.
        """
        return _families(
            library("prometheus_client", "prometheus", "the probe Prometheus"), pipeline
        )

    @staticmethod
    def histograms(nodes: Sequence[str]) -> Histograms:
        """Return the histograms of request and queue time, for a registry other than the probe's.

        Attach them to a pipeline by `headrace.hookspecs.attached`. Their ``families(prometheus_client.Metric)`` are the
        metrics.

        Args:
            nodes: The nodes, which are shown from the beginning.
        """
        return Histograms(BOUNDS_S, nodes)

    def pipeline_started(self, pipeline: headrace.Pipeline) -> None:
        """Note the pipeline by a weak reference, which does not keep it alive."""
        self._pipeline = weakref.ref(pipeline)
        if self._histograms is not None:
            self._histograms.show([*pipeline.stats()["nodes"]])

    def _look(self) -> headrace.Pipeline | None:
        return self._pipeline() if self._pipeline is not None else None

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = os.name == "posix"
    look: Callable[[], headrace.Pipeline | None]
    encode: Callable[[str], tuple[str, bytes]]

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)
        _SERVERS.add(self)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name in HTTPServer, which may wait for a name server."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at DEBUG, because most errors here are clients that went away; the base class prints to stderr."""
        _log.debug("a request of %s failed", client_address, exc_info=True)


_SERVERS: weakref.WeakSet[_Server] = weakref.WeakSet()


def _stop_in_child() -> None:
    """Close the sockets that a forked child has of its parent: it answers nobody, and would keep the ports."""
    for server in [*_SERVERS]:
        server.socket.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stop_in_child)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "headrace"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer the three paths."""
        path = self.path.partition("?")[0]
        pipeline = self.server.look()
        if path == "/live":
            self._answer(200, _TEXT, b"live\n")
        elif path == "/ready":
            ready = pipeline is not None and pipeline.ready
            state = "starting" if pipeline is None else str(pipeline.stats()["state"])
            self._answer(200 if ready else 503, _TEXT, f"{state}\n".encode())
        elif path == "/metrics":
            kind, body = self.server.encode(self.headers.get("Accept", ""))
            self._answer(200, kind, body)
        else:
            self._answer(404, _TEXT, b"there are /metrics, /ready and /live\n")

    def do_HEAD(self) -> None:
        """Answer as `do_GET`, without the text."""
        self.do_GET()

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        """Add the headers of every answer, also to those that the base class gives."""
        for name, value in SANDBOXED.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the standard library
        """Log each request at DEBUG, instead of printing it to stderr as the base class does."""
        _log.debug(format, *args)


class _Collector:
    """The collector of the registry: reads the pipeline's statistics each time the metrics are asked for."""

    def __init__(
        self,
        client: Any,
        look: Callable[[], headrace.Pipeline | None],
        histograms: Histograms | None,
    ) -> None:
        self._client = client
        self._look = look
        self._histograms = histograms

    def collect(self) -> Iterator[Any]:
        """Return the metrics."""
        pipeline = self._look()
        if pipeline is not None:
            yield from _families(self._client, pipeline)
        if self._histograms is not None:
            yield from self._histograms.families(self._client.Metric)


def _families(client: Any, pipeline: headrace.Pipeline) -> Iterator[Any]:
    metric = client.Metric
    stats = pipeline.stats()
    for name, kind, text, samples in tables(stats, ready=pipeline.ready):
        family = metric(name, text, kind)
        suffix = "_total" if kind == "counter" else ""
        for labels, value in samples:
            own = {_OWN.get(label, label): text for label, text in labels.items()}
            family.add_sample(name + suffix, own, value)
        yield family
    yield _batch_sizes(metric, stats["nodes"])
    family = metric("headrace", "The version of Headrace.", "info")
    family.add_sample("headrace_info", {"version": headrace.__version__}, 1.0)
    yield family


def _batch_sizes(metric: Any, nodes: Mapping[str, Any]) -> Any:
    """Return the exact sizes of batches as a histogram with powers of two as bounds."""
    family = metric("headrace_batch_size_requests", "Requests in a batch.", "histogram")
    for node, statistics in nodes.items():
        sizes = {int(size): n for size, n in statistics["batch_size"]["histogram"].items()}
        bounds, largest = [1], max([_LEAST_BOUND, *sizes])
        while bounds[-1] < largest:
            bounds.append(2 * bounds[-1])
        for bound in bounds:
            count = sum(n for size, n in sizes.items() if size <= bound)
            labels = {"node": node, "le": f"{bound}.0"}
            family.add_sample("headrace_batch_size_requests_bucket", labels, count)
        total = sum(sizes.values())
        last = {"node": node, "le": "+Inf"}
        family.add_sample("headrace_batch_size_requests_bucket", last, total)
        family.add_sample("headrace_batch_size_requests_count", {"node": node}, total)
        weighed = sum(size * n for size, n in sizes.items())
        family.add_sample("headrace_batch_size_requests_sum", {"node": node}, weighed)
    return family


def _encoded(client: Any, registry: Any, accept: str) -> tuple[str, bytes]:
    encoder, kind = client.exposition.choose_encoder(accept)
    return str(kind), bytes(encoder(registry))
