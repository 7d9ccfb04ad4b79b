"""Prometheus is scraped for real, OpenTelemetry exports to memory; the values are those of `stats`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import http.server
import itertools
import os
import pickle
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import prometheus_client
import pytest
from distributions import tomllib
from opentelemetry import metrics as metrics_api
from opentelemetry import trace as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from processes import run_process
from prometheus_client.parser import text_string_to_metric_families

import headrace
import headrace_observe
from headrace.errors import ConfigError, InputError, MissingDependencyError, SetupError
from headrace.hookspecs import attached
from headrace_observe.probes import otel
from headrace_observe.probes.histograms import Histograms

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"


class Picky(headrace.Backend):
    max = 8

    def forward(self, batch):
        outcomes = []
        for request in batch:
            bad = request["data"] == "bad"
            outcomes.append(InputError("secret words") if bad else None)
            if not bad:
                request["result"] = request["data"]
        return outcomes


headrace.register("ExportsPicky", Picky, replace=True)


@pytest.fixture
def probe(monkeypatch):
    """Return the probe Prometheus of the pipeline that is built."""
    made = []
    begun = headrace_observe.Prometheus.pipeline_started

    def started(self, pipeline):
        made.append(self)
        begun(self, pipeline)

    monkeypatch.setattr(headrace_observe.Prometheus, "pipeline_started", started)
    return made


def get(port, path, accept="*/*"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def served(**config):
    config.setdefault("backend", "S[Identity,ExportsPicky]")
    return headrace.pipe({"max": 4, **config, "probes": ["Prometheus(port=0)", "ElementTimes"]})


def test_a_browser_guesses_no_type_of_an_answer_and_runs_nothing(probe):
    with served():
        for method, path in (("GET", "/metrics"), ("GET", "/no"), ("HEAD", "/live"), ("PUT", "/")):
            asked = http.client.HTTPConnection("127.0.0.1", probe[0].port, timeout=60)
            asked.request(method, path)
            answer = asked.getresponse()
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "sandbox" in answer.headers["Content-Security-Policy"]
            asked.close()


def test_a_scrape_says_what_stats_says(probe):
    with served(instance_num=2) as pipe:
        pipe([{"data": k} for k in range(10)])
        with pytest.raises(InputError):
            pipe({"data": "bad"})
        stats = pipe.stats()["nodes"]["main"]
        status, kind, text = get(probe[0].port, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    found = samples_of(text)
    main = ("node", "main")
    assert found["headrace_requests_total", main, ("outcome", "ok")] == 10
    assert found["headrace_requests_total", main, ("outcome", "input")] == 1
    assert found["headrace_requests_submitted_total", main] == 11
    assert found["headrace_requests_waiting", main] == 0
    assert found["headrace_batches_total", main] == stats["batches"]
    reasons = {n[2][1]: v for n, v in found.items() if n[0] == "headrace_batch_reasons_total"}
    assert reasons == stats["reasons"]
    assert sum(reasons.values()) == stats["batches"]
    assert found["headrace_batch_size_requests_sum", main] == 11
    assert found["headrace_batch_size_requests_count", main] == stats["batches"]
    sizes = {int(size): n for size, n in stats["batch_size"]["histogram"].items()}
    le2 = sum(n for size, n in sizes.items() if size <= 2)
    assert found["headrace_batch_size_requests_bucket", ("le", "2.0"), main] == le2
    bounds = [dict(name[1:])["le"] for name in found if name[0].endswith("size_requests_bucket")]
    assert bounds == [*(f"{2**k}.0" for k in range(11)), "+Inf"]  # the same in every process
    p99 = found["headrace_batch_duration_seconds", main, ("quantile", "0.99")]
    assert p99 == pytest.approx(stats["forward_ms"]["p99"] / 1000)
    assert found["headrace_state", ("state", "ready")] == 1
    assert found["headrace_ready",] == 1
    ups = [name for name in found if name[0] == "headrace_instance_up"]
    assert [dict(name[1:])["instance_index"] for name in ups] == ["0", "1"]
    labels = {label for name in found for label, _ in name[1:]}
    assert not labels & {"instance", "job"}  # Prometheus gives these to who it has asked
    assert ("headrace_element_p99_seconds", ("element", "S/1:ExportsPicky"), main) in found
    assert families["headrace_requests"].type == "counter"
    assert families["headrace_batch_size_requests"].type == "histogram"
    for family in families.values():
        assert family.documentation
        assert family.samples
    assert "secret" not in text


def samples_of(text):
    """Every sample of a scrape by name and labels, as prometheus-client's own parser reads it."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(port):
    return samples_of(get(port, "/metrics")[2])


class TakesItsTime(headrace.Backend):
    """Answers when the test says so."""

    go_on = threading.Semaphore(0)

    def forward(self, batch):
        assert self.go_on.acquire(timeout=60)
        for request in batch:
            request["result"] = request["data"]


headrace.register("ExportsTakesItsTime", TakesItsTime, replace=True)


def test_histograms_count_every_request_and_its_wait(probe):
    """A million seconds is above everything, a nanosecond below: so the cumulated counts are known."""
    probes = ["Prometheus(port=0,bounds=[1e-9,1e6])"]
    with headrace.pipe({"backend": "ExportsTakesItsTime", "probes": probes}) as pipe:
        futures = pipe.submit([{"data": k} for k in range(3)])
        TakesItsTime.go_on.release(3)
        for one in futures:
            one.result(timeout=60)
        with pytest.raises(InputError):
            pipe({})
        found = scraped(probe[0].port)
    main = ("node", "main")
    for name, counted in (("request", 4), ("queue", 3)):
        of = f"headrace_{name}_duration_seconds"
        bounds = {dict(key[1:])["le"]: n for key, n in found.items() if key[0] == f"{of}_bucket"}
        assert bounds["1000000.0"] == bounds["+Inf"] == counted
        assert found[f"{of}_count", main] == counted
    # The one that was refused took no time at all; those that ran took some.
    assert found["headrace_request_duration_seconds_bucket", ("le", "1e-09"), main] == 1
    longest = found["headrace_request_duration_seconds_sum", main]
    assert longest > found["headrace_queue_duration_seconds_sum", main] >= 0


def test_the_buckets_are_cumulated_and_sorted_whoever_sorts_them():
    """Against a plain loop, more durations than are sorted at a time, from four threads."""
    bounds = [0.25, 0.5, 2.0]
    made = Histograms(bounds, ["idle"])
    durations = [k / 1000 for k in range(3000)]
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda _: [made.request_done("a", {}, 0.0, d, None) for d in durations], range(4)
            )
        )
    (request, queue) = made.families(prometheus_client.Metric)
    found = {
        (s.name.rpartition("_")[2], s.labels["node"], s.labels.get("le")): s.value
        for s in request.samples
    }
    for bound in bounds:
        assert found["bucket", "a", str(bound)] == 4 * sum(d <= bound for d in durations)
    assert found["bucket", "a", "+Inf"] == found["count", "a", None] == 4 * len(durations)
    assert found["sum", "a", None] == pytest.approx(4 * sum(durations))
    assert found["count", "idle", None] == 0
    assert {s.value for s in queue.samples} == {0}


def test_without_bounds_there_are_no_histograms_and_no_request_is_timed_for_them(probe):
    with headrace.pipe({"backend": "Identity", "probes": ["Prometheus(port=0,bounds=[])"]}) as pipe:
        pipe({"data": 1})
        found = scraped(probe[0].port)
        assert not hasattr(probe[0], "request_done")
    assert not [key for key in found if "duration_seconds_bucket" in key[0]]
    assert found["headrace_requests_total", ("node", "main"), ("outcome", "ok")] == 1


@pytest.mark.parametrize("bounds", ["[2,1]", "[1,1]", "[0]", "[-1]"])
def test_bounds_that_do_not_ascend_from_above_zero_are_refused(bounds):
    probes = [f"Prometheus(port=0,bounds={bounds})"]
    with pytest.raises(headrace.errors.ConfigError, match="bounds"):
        headrace.PipelineConfig.load({"backend": "Identity", "probes": probes})


@pytest.mark.skipif(sys.platform != "linux", reason="prometheus-client reads /proc")
def test_the_process_is_among_the_metrics(probe):
    with headrace.pipe({"backend": "Identity", "probes": ["Prometheus(port=0)"]}):
        found = scraped(probe[0].port)
    assert found["process_resident_memory_bytes",] > 1e6
    assert found["process_cpu_seconds_total",] > 0
    assert found["process_start_time_seconds",] > 1e9


def own_code(name):
    """Return an error of a request, with a code of its own: somebody's mistake."""
    error = InputError("secret words")
    error.code = f"secret-{name}"
    return error


class ExportsOwnError(InputError):
    code = "a_class_of_mine"


class MakesUpCodes(headrace.Backend):
    max = 8

    def forward(self, batch):
        return [
            ExportsOwnError("no") if request["data"] == "mine" else own_code(request["data"])
            for request in batch
        ]


headrace.register("ExportsMakesUpCodes", MakesUpCodes, replace=True)


def test_codes_that_single_errors_make_up_are_one_label(probe, spans):
    config = {"backend": "ExportsMakesUpCodes", "max": 4}
    probes = ["Prometheus(port=0)", "Prometheus", "OpenTelemetry"]
    probes[1] = f"Prometheus(port={free_port()})"
    with headrace.pipe({**config, "probes": probes}) as pipe:
        for data in ("a", "b", "c", "mine"):
            with pytest.raises(InputError):
                pipe({"data": data})
        _, _, text = get(probe[0].port, "/metrics")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'headrace_requests_total{node="main",outcome="other"} 3.0' in lines
    assert 'headrace_requests_total{node="main",outcome="a_class_of_mine"} 1.0' in lines
    assert lines.count('headrace_probe_errors_total{probe="Prometheus"} 0.0') == 1
    codes = [one.attributes["error.type"] for one in named(spans(), "request")]
    assert sorted(codes) == ["a_class_of_mine", "other", "other", "other"]
    assert "secret" not in text


def free_port():
    """Return a port that the system gives to nobody who asks for any, as other tests do meanwhile."""
    for port in range(20_000 + os.getpid() % 10_000, 32_768):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("all are taken")


def test_the_dashboard_asks_for_metrics_that_there_are(probe):
    board = Path(__file__).parents[3] / "docs" / "grafana" / "headrace.json"
    written = board.read_text(encoding="utf-8")
    asked, shown = (set(re.findall(one, written)) for one in (r"headrace_\w+", r"{{(\w+)}}"))
    with served() as pipe:
        pipe({"data": 1})
        samples = scraped(probe[0].port)
    assert asked - {name for name, *_ in samples} == set()
    labels = {label for _, *labels in samples for label, _ in labels}
    # The one that Prometheus adds, and those of a server's models.
    assert shown - labels == {"instance", "model", "model_version"}
    assert len(asked) >= 8


def test_open_metrics_are_given_to_who_asks_for_them(probe):
    from prometheus_client.openmetrics.parser import (
        text_string_to_metric_families as of_open_metrics,
    )

    accept = "application/openmetrics-text; version=1.0.0"
    with served() as pipe:
        pipe({"data": 1})
        _, kind, text = get(probe[0].port, "/metrics", accept)
    assert kind.startswith("application/openmetrics-text")
    assert {family.name for family in of_open_metrics(text)} >= {"headrace_requests", "headrace"}


def test_ready_and_live_and_paths_that_are_none(probe):
    with served():
        port = probe[0].port
        assert get(port, "/live")[0] == 200
        assert get(port, "/ready")[::2] == (200, "ready\n")
        assert get(port, "/")[0] == 404
        pipeline, probe[0]._pipeline = probe[0]._pipeline, None
        assert get(port, "/ready")[::2] == (503, "starting\n")
        probe[0]._pipeline = pipeline
    with pytest.raises(urllib.error.URLError):
        get(port, "/live")


def test_it_is_not_ready_while_it_closes(probe):
    holds, goes = threading.Event(), threading.Event()

    class Slow(headrace.Backend):
        def forward(self, batch):
            holds.set()
            goes.wait(30)
            for request in batch:
                request["result"] = 1

    headrace.register("ExportsSlow", Slow, replace=True)
    pipe = served(backend="ExportsSlow")
    pipe.submit({"data": 1})
    holds.wait(30)
    closer = threading.Thread(target=pipe.close)
    closer.start()
    try:
        for _ in range(1000):
            status, _, said = get(probe[0].port, "/ready")
            if status != 200:
                break
        assert (status, said) == (503, "closing\n")
    finally:
        goes.set()
        closer.join()


def test_a_port_that_is_taken_is_a_setup_error_that_says_what_to_write():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match="cannot listen") as caught:
            headrace.pipe({"backend": "Identity", "probes": [f"Prometheus(port={port})"]})
    assert "port=0" in str(caught.value)
    assert "`headrace serve` has these metrics at its own /metrics" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("Prometheus(port=0)", "prometheus_client", "prometheus"),
        ("OpenTelemetry", "opentelemetry.trace", "otel"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(name, library, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError) as caught:
        headrace.pipe({"backend": "Identity", "probes": [name]})
    assert f"headrace-observe[{extra}]" in str(caught.value)


def test_every_extra_that_an_error_names_brings_the_library():
    table = Path(__file__).parents[1] / "pyproject.toml"
    extras = tomllib.loads(table.read_text("utf-8"))["project"]["optional-dependencies"]
    brought = {
        "cuda": "cuda-bindings",
        "headrace_testing": "headrace-testing",
        "opentelemetry": "opentelemetry-sdk",
        "prometheus_client": "prometheus-client",
        "pynvml": "nvidia-ml-py",
    }
    sources = Path(headrace_observe.__file__).parent.rglob("*.py")
    calls = [
        (module.partition(".")[0], extra)
        for source in sources
        for module, extra in re.findall(
            r'\blibrary\(\s*"([\w.]+)",\s*"(\w+)"', source.read_text("utf-8")
        )
    ]
    assert {"cuda", "nvtx", "matplotlib", *brought} - {one for one, _ in calls} == set()
    for module, extra in calls:
        names = [re.split(r"[<>=; ]", one)[0] for one in extras[extra]]
        assert brought.get(module, module) in names, (module, extra)


def test_only_the_loopback_is_listened_on_unless_asked(probe, monkeypatch):
    monkeypatch.setattr(socket, "getfqdn", None)  # no name server is asked, which may not answer
    with served():
        assert probe[0]._server.server_address[0] == "127.0.0.1"
    with pytest.raises(ConfigError, match="host"):  # an empty variable is nobody's wish for all
        headrace.pipe({"backend": "Identity", "probes": ['Prometheus(port=0,host="")']})


def test_an_address_of_ipv6_is_listened_on_and_one_of_elsewhere_refused(probe):
    config = {"backend": "Identity", "probes": ['Prometheus(port=0,host="::1")']}
    with contextlib.suppress(SetupError), headrace.pipe(config):  # some machines have no IPv6
        address = f"http://[::1]:{probe[0].port}/metrics"
        assert urllib.request.urlopen(address, timeout=60).status == 200
    with pytest.raises(SetupError, match=r'host="127\.0\.0\.1"'):
        headrace.pipe({"backend": "Identity", "probes": ['Prometheus(port=0,host="203.0.113.1")']})


# OpenTelemetry


class Spans(InMemorySpanExporter):
    """Keep spans in memory, and tell when the first one of a batch has come."""

    def __init__(self):
        super().__init__()
        self.batch_ended = threading.Event()

    def export(self, spans):
        done = super().export(spans)
        if named(spans, "batch"):
            self.batch_ended.set()
        return done


@pytest.fixture
def exporter():
    return Spans()


@pytest.fixture
def spans(monkeypatch, exporter):
    """Let spans go to memory; give a function that yields those that have ended."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(api, "get_tracer", provider.get_tracer)
    yield exporter.get_finished_spans
    provider.shutdown()


def named(spans, kind):
    return [span for span in spans if span.name.startswith(f"headrace.{kind}")]


def test_a_span_per_request_and_node_with_its_parent_and_its_batch(spans):
    config = {
        "global": {"probes": ["OpenTelemetry"]},
        "a": {"backend": "ExportsPicky", "next": "b", "max": 4},
        "b": {"backend": "Identity"},
    }
    with headrace.pipe(config) as pipe:
        pipe({"data": 1, "context": {"traceparent": f"{PARENT}-01", "user": "secret name"}})
        pipe({"data": 2})
        with pytest.raises(InputError):
            pipe({"data": "bad"})
    found = spans()
    requests, batches = named(found, "request"), named(found, "batch")
    assert sorted(span.name for span in requests) == [
        *["headrace.request a"] * 3,
        *["headrace.request b"] * 2,
    ]
    known = {span.context.span_id: span for span in batches}
    for span in requests:
        (link,) = span.links
        batch = known[link.context.span_id]
        assert batch.attributes["headrace.node"] == span.attributes["headrace.node"]
        assert span.start_time <= batch.start_time <= batch.end_time <= span.end_time
    parents = [span.parent for span in requests if span.parent is not None]
    assert [format(one.span_id, "016x") for one in parents] == ["b7ad6b7169203331"] * 2
    assert all(batch.parent is None for batch in batches)
    (failed,) = [span for span in requests if span.status.status_code is api.StatusCode.ERROR]
    assert failed.attributes["error.type"] == "input"
    assert "secret" not in " ".join(span.to_json() for span in found)


def test_a_request_that_is_left_while_it_runs_links_to_its_batch(
    spans, exporter, left_while_it_runs
):
    left_while_it_runs({"probes": ["OpenTelemetry"]})
    assert exporter.batch_ended.wait(600)
    (batch,) = named(spans(), "batch")
    links = [[one.context.span_id for one in span.links] for span in named(spans(), "request")]
    assert sorted(links) == [[], [batch.context.span_id]]


def test_the_main_thread_runs_its_requests_itself_beside_probes_that_take_no_lock(spans):
    ran_by = []

    class Noting(headrace.Backend):
        def forward(self, batch):
            ran_by.append(threading.current_thread())
            batch[0]["result"] = 1

    headrace.register("ExportsNoting", Noting, replace=True)
    with headrace.pipe({"backend": "ExportsNoting", "probes": ["OpenTelemetry", "Trace"]}) as pipe:
        pipe({"data": 1})
    assert ran_by == [threading.current_thread()]


def test_a_parent_that_is_not_sampled_means_no_span(spans):
    with headrace.pipe({"backend": "Identity", "probes": ["OpenTelemetry"]}) as pipe:
        pipe({"data": 1, "context": {"traceparent": f"{PARENT}-00"}})
    assert spans() == ()


def by_await(pipe, request):
    async def handle():
        with api.get_tracer("application").start_as_current_span("handler"):
            await asyncio.gather(pipe.call_async(request))

    asyncio.run(handle())


def within(ask):
    """Ask within a span of the application."""

    def call(pipe, request):
        with api.get_tracer("application").start_as_current_span("handler"):
            ask(pipe, request)

    return call


ASKED = {
    "call": within(lambda pipe, request: pipe(request)),
    "list": within(lambda pipe, request: pipe([request])),
    "deadline": within(lambda pipe, request: pipe(request, timeout=300)),
    "submit": within(lambda pipe, request: pipe.submit(request).result()),
    "stream": within(lambda pipe, request: [*pipe.stream(request)]),
    "await": by_await,
}


@pytest.mark.parametrize("how", ASKED)
@pytest.mark.parametrize(
    "config",
    [
        {"main": {"backend": "ExportsPicky", "max": 4}},
        {"main": {"backend": "Identity", "next": "last"}, "last": {"backend": "ExportsPicky"}},
        {
            "main": {"backend": "Call(builtins:list)", "next": "one"},
            "one": {"backend": "Identity", "each": "data"},
        },
    ],
)
def test_the_span_that_is_current_where_a_pipeline_is_called_is_the_parent(spans, how, config):
    with headrace.pipe({**config, "global": {"probes": ["OpenTelemetry"]}}) as pipe:
        ASKED[how](pipe, {"data": "ab"})
    (handler,) = [span for span in spans() if span.name == "handler"]
    found = named(spans(), "request")
    assert len(found) == {1: 1, 2: 2}[len(config)] + ("one" in config)
    assert {span.parent.span_id for span in found} == {handler.context.span_id}
    assert {span.context.trace_id for span in found} == {handler.context.trace_id}


def test_a_dict_that_is_sent_again_belongs_to_the_span_of_that_call(spans):
    shared = {"user": "a"}
    request = {"data": 1, "context": shared}
    tracer = api.get_tracer("application")
    with headrace.pipe({"backend": "Identity", "probes": ["OpenTelemetry"]}) as pipe:
        for name in ("first", "second"):
            with tracer.start_as_current_span(name):
                pipe(request)
        pipe(request)
    assert shared == {"user": "a"}  # requests may share it
    assert request["context"] == shared
    at = {span.name: span.context.span_id for span in spans()}
    parents = [span.parent and span.parent.span_id for span in named(spans(), "request")]
    assert parents == [at["first"], at["second"], None]


def test_what_the_request_says_comes_before_the_current_span(spans):
    tracer = api.get_tracer("application")
    with headrace.pipe({"backend": "Identity", "probes": ["OpenTelemetry"]}) as pipe:
        with tracer.start_as_current_span("handler"):
            pipe({"data": 1, "context": {"traceparent": f"{PARENT}-01"}})
        unsampled = api.SpanContext(1, 2, is_remote=False, trace_flags=api.TraceFlags(0))
        with api.use_span(api.NonRecordingSpan(unsampled)):
            pipe({"data": 1})
    (found,) = named(spans(), "request")
    assert f"{found.parent.span_id:016x}" == PARENT.rpartition("-")[2]


def test_a_backend_finds_the_current_span_of_its_caller_in_another_process_too(spans):
    tracer = api.get_tracer("application")
    found = []

    class Noting:
        def forward(self, batch):
            for request in batch:
                found.append(dict(request["context"]))
                request["result"] = None

    headrace.register("ExportsContext", Noting, replace=True)
    config = {"backend": "ExportsContext", "probes": ["OpenTelemetry"]}
    with headrace.pipe(config) as pipe, tracer.start_as_current_span("handler") as span:
        pipe({"data": 1})
    about = span.get_span_context()
    header = f"00-{about.trace_id:032x}-{about.span_id:016x}-{about.trace_flags:02x}"
    assert found == [{"traceparent": header}]
    again = pickle.loads(pickle.dumps(found[0]))
    assert type(again["traceparent"]) is str  # which needs nothing where it is read


def test_a_probe_that_is_attached_knows_the_current_span(spans):
    with headrace.pipe({"backend": "Identity"}) as pipe:
        probe = otel.OpenTelemetry(otel.OpenTelemetry.Options())
        with api.get_tracer("application").start_as_current_span("handler") as span:
            with attached(pipe, probe):
                pipe({"data": 1})
            after = pipe({"data": 1})
        probe.close()
    assert "context" not in after
    (found,) = named(spans(), "request")
    assert found.parent.span_id == span.get_span_context().span_id


def test_a_provider_that_fails_costs_a_span_is_counted_and_harms_no_request(spans, monkeypatch):
    tracer, fails = api.get_tracer("headrace"), [None]

    def start_span(name, **about):
        if fails and "request" in name:
            fails.pop()
            raise IndexError("of the provider")
        return tracer.start_span(name, **about)

    monkeypatch.setattr(api, "get_tracer", lambda *_: SimpleNamespace(start_span=start_span))
    errors = []
    config = {"backend": "Identity", "probes": ["OpenTelemetry"]}
    with headrace.pipe(config) as pipe:
        for k in itertools.count():
            assert pipe({"data": k})["result"] == k
            errors.append(pipe.stats()["probes"]["OpenTelemetry"])
            if errors[-1]["errors"]:
                break
    assert errors[-1] == {"errors": 1, "last": "IndexError: of the provider"}
    assert len(named(spans(), "request")) == len(errors) - 1


def test_a_context_that_is_odd_harms_nothing(spans):
    with headrace.pipe({"backend": "Identity", "probes": ["OpenTelemetry"]}) as pipe:
        for context in ({"traceparent": "nonsense"}, {"traceparent": 7}, {}, None, "text"):
            pipe({"data": 1, "context": context})
        assert pipe.stats()["probes"]["OpenTelemetry"]["errors"] == 0
    assert len(named(spans(), "request")) == 5


@pytest.fixture
def reader(monkeypatch):
    """Let metrics go to memory, and read them there."""
    memory = InMemoryMetricReader()
    provider = MeterProvider([memory])
    monkeypatch.setattr(metrics_api, "get_meter", provider.get_meter)
    yield memory
    provider.shutdown()


def test_metrics_are_those_of_stats(reader):
    config = {"backend": "ExportsPicky", "max": 4, "probes": ["OpenTelemetry(spans=false)"]}
    with headrace.pipe(config) as pipe:
        pipe([{"data": k} for k in range(7)])
        (resource,) = reader.get_metrics_data().resource_metrics
        (scope,) = resource.scope_metrics
    found = {
        metric.name: {tuple(sorted(p.attributes.items())): p.value for p in metric.data.data_points}
        for metric in scope.metrics
    }
    main = ("headrace.node", "main")
    own = ("headrace.pipeline", max(key[-1][1] for key in found["headrace.ready"]))
    assert found["headrace.requests"][main, ("headrace.outcome", "ok"), own] == 7
    assert found["headrace.requests_waiting"][main, own] == 0
    units = {metric.name: metric.unit for metric in scope.metrics}
    assert len(units) == len(scope.metrics)  # no two of one name
    assert (units["headrace.instance_busy"], units["headrace.instance_busy_time"]) == ("1", "s")
    assert set(units.values()) == {"1", "s", "{request}", "{batch}", "{error}"}
    assert units["headrace.requests_waiting"] == units["headrace.requests"] == "{request}"
    assert units["headrace.batch_duration"] == "s"


def test_metrics_tell_the_pipelines_of_a_process_apart_and_go_on_with_later_ones(reader):
    # Other tests may still have theirs. Another dict in its place would lose a number whenever one of them is collected.
    otel._PIPELINES.clear()

    def started(node, backend="S[Identity,Identity]", **settings):
        config = {"global": {"probes": ["OpenTelemetry(spans=false)"], **settings}}
        pipe = headrace.pipe({**config, node: {"backend": backend}})
        pipe({"data": node})
        return pipe

    def read(name="headrace.requests", label="node"):
        found = reader.get_metrics_data()
        for resource in found.resource_metrics if found else []:
            metrics = {metric.name: metric.data for metric in resource.scope_metrics[0].metrics}
            points = [point.attributes for point in metrics[name].data_points]
            return {one[f"headrace.{label}"]: one["headrace.pipeline"] for one in points}
        return {}

    first, second = started("a"), started("b")
    assert read() == {"a": 0, "b": 1}
    first.close()
    del first
    gc.collect()
    assert read() == {"b": 1}
    second.close()
    del second
    gc.collect()
    with started("c", probes=["OpenTelemetry(spans=false)", "ElementTimes"]):
        assert read() == read("headrace.element_mean") == {"c": 0}
    with started("d", backend="S[Identity,Observer(late)]"):
        assert read("headrace.named_queue_waiting", "queue") == {"late": 0}


def test_metrics_are_read_while_the_garbage_collector_removes_pipelines(monkeypatch):
    class Gone:
        ready = True

        def stats(self):
            return {"nodes": {}, "state": "ready"}

    def remember(number):
        one = Gone()
        one.itself = one  # only the garbage collector frees it
        alive.append(one)
        pipelines[number] = weakref.ref(one, lambda _: pipelines.pop(number, None))

    alive, pipelines, callbacks = [], {}, []
    monkeypatch.setattr(otel, "_PIPELINES", pipelines)
    meter = SimpleNamespace(
        create_observable_gauge=lambda *_, **told: callbacks.extend(told["callbacks"])
    )
    otel._make_instrument(meter, "headrace_ready", "gauge", "Whether requests are accepted.")
    before = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        for number in range(2000):
            remember(number)
        gc.collect(0)
        alive.clear()
        gc.set_threshold(1000, 1, 1)
        gc.enable()
        (read,) = callbacks
        next(iter(read(None)), None)
    finally:
        gc.set_threshold(*before)
        gc.enable()


FORKS = """
import os, sys, urllib.request, warnings
import headrace
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

warnings.simplefilter("ignore")
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
probes = [f"Prometheus(port={sys.argv[1]})", "OpenTelemetry(spans=false)"]

def started(node):
    return headrace.pipe({"global": {"probes": probes}, node: {"backend": "Identity"}})

def seen():
    found = reader.get_metrics_data()
    return [
        point.attributes["headrace.node"]
        for resource in (found.resource_metrics if found else [])
        for metric in resource.scope_metrics[0].metrics
        if metric.name == "headrace.batches"
        for point in metric.data.data_points
    ]

told, tell = os.pipe()
wait, go_on = os.pipe()
with started("parent"):
    if not os.fork():
        os.close(go_on)
        os.write(tell, repr(seen()).encode())
        os.read(wait, 1)  # until the parent has ended
        os._exit(0)
    print(os.read(told, 99).decode(), seen())
with started("second"):
    print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/ready", timeout=60).status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_keeps_the_port_nor_gives_the_metrics_of_its_parent():
    command = [sys.executable, "-c", FORKS, str(free_port())]
    done = run_process(command, timeout=60)
    assert (done.stdout, done.returncode) == ("[] ['parent']\n200\n", 0), done.stderr
