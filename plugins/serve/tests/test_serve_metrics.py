"""``/metrics``, read by the parser of prometheus-client."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import httpx
import prometheus_client
import pytest
import tritonclient.grpc as triton
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace_serve import Server
from headrace_serve.models.described import statistics


def samples(server):
    answer = httpx.get(f"{server.url}/metrics")
    assert answer.status_code == 200
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for one in family.samples:
            key = (one.name, *sorted(one.labels.items()))
            assert key not in found
            found[key] = one.value
    return found


def test_requests_are_counted_by_route_model_and_status(serving):
    server = serving({"m": {"backend": "ServePicky"}}, grpc_port=0)
    for body in (b"a", b"bad", b"bb"):
        httpx.post(f"{server.url}/run/m", content=body)
    httpx.post(f"{server.url}/run/made-up-7", content=b"a")
    httpx.get(f"{server.url}/made/up/7")
    httpx.post(f"{server.url}/v2/repository/models/m/load")  # which is not allowed
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.get_model_metadata("m")
        with pytest.raises(triton.InferenceServerException):
            client.get_model_metadata("made-up-7")
    found = samples(server)
    run = "POST /run/{model}"

    def count(route, model, status):
        labels = (("model", model), ("route", route), ("status", status))
        return found[("headrace_serve_requests_total", *labels)]

    assert count(run, "m", "200") == 2
    assert count(run, "m", "400") == 1
    assert count(run, "", "404") == 1
    assert count("other", "", "404") == 1
    assert count("POST /v2/repository/models/{model}/load", "m", "403") == 1
    assert count("ModelMetadata", "m", "OK") == 1
    assert count("ModelMetadata", "", "NOT_FOUND") == 1
    assert found["headrace_serve_received_bytes_total", ("route", run)] == 6
    assert found["headrace_serve_in_flight_requests", ("protocol", "http")] == 1
    assert found["headrace_serve_in_flight_requests", ("protocol", "grpc")] == 0
    assert found[("headrace_serve_connections",)] == 1
    assert found[("headrace_serve_ready",)] == 1
    assert not any("made" in str(key) for key in found)


def test_the_numbers_of_each_pipeline_are_there_too(serving):
    server = serving({"m": {"backend": "Identity"}, "m:2": {"backend": "Identity"}})
    for _ in range(3):
        httpx.post(f"{server.url}/run/m", content=b"a")
    found = samples(server)
    for version, count in (("1", 0), ("2", 3)):
        labels = (("model", "m"), ("model_version", version), ("node", "main"), ("outcome", "ok"))
        assert found[("headrace_requests_total", *labels)] == count


def test_the_times_of_requests_are_counted_from_the_first_look_at_the_metrics_on(serving):
    given = headrace.pipe({"backend": "Identity"})
    server = serving({"m": {"backend": "Identity"}, "given": given})

    def counts(found, kind, model):
        labels = (("model", model), ("model_version", "1"), ("node", "main"))
        name = f"headrace_{kind}_duration_seconds"
        buckets = [
            (float(dict(key[1:])["le"]), value)
            for key, value in found.items()
            if key[0] == f"{name}_bucket" and ("model", model) in key
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == (float("inf"), found[(f"{name}_count", *labels)])
        assert found[(f"{name}_sum", *labels)] >= 0
        return buckets[-1][1]

    def send(model, times):
        for _ in range(times):
            assert httpx.post(f"{server.url}/run/{model}", content=b"a").status_code == 200

    send("m", 2)
    first = samples(server)
    send("m", 3)
    send("given", 1)
    later = samples(server)
    for kind in ("request", "queue"):
        assert counts(first, kind, "m") == 0
        assert (counts(later, kind, "m"), counts(later, kind, "given")) == (3, 1)
    server.reload()
    assert counts(samples(server), "request", "given") == 0  # it is a new model
    send("given", 2)
    assert counts(samples(server), "request", "given") == 2
    assert list(given.stats()["probes"]) == ["Histograms"]
    server.close(timeout=5.0)
    assert not given.stats().get("probes")  # whose pipeline it is pays for the server no more
    given.close()


@pytest.mark.skipif(
    sys.platform != "linux", reason="the metrics of the process are read from /proc"
)
def test_the_numbers_of_the_process_are_there(serving):
    server = serving({"m": {"backend": "Identity"}})
    found = samples(server)
    assert found[("process_resident_memory_bytes",)] > 1e6
    assert found[("process_cpu_seconds_total",)] > 0


def test_every_sample_names_the_worker_whose_number_it_is(serving):
    server = serving({"m": {"backend": "Identity"}})
    server._service.worker = 3  # as with --workers
    found = samples(server)
    assert any(key[0].startswith("headrace_requests") for key in found)
    assert all(("worker", "3") in key[1:] for key in found)


def test_the_format_is_the_one_that_is_asked_for(serving):
    server = serving({"m": {"backend": "Identity"}})
    asked = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = httpx.get(f"{server.url}/metrics", headers=asked)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_without_the_library_the_answer_says_what_to_install(serving, monkeypatch):
    server = serving({"m": {"backend": "Identity"}})
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = httpx.get(f"{server.url}/metrics")
    assert answer.status_code == 501
    assert "headrace-serve[metrics]" in answer.json()["error"]


def test_statistics_are_sums_worked_out_by_hand():
    def node(ok, submitted, queue_ms, batches, forward_ms, histogram):
        return {
            "ok": ok, "submitted": submitted, "queue_ms": {"mean": queue_ms}, "batches": batches,
            "forward_ms": {"mean": forward_ms}, "batch_size": {"histogram": histogram},
        }  # fmt: skip

    nodes = {
        "late": node(9, 9, 0.5, 9, 2.0, {"1": 9}),
        "first": node(10, 12, 0.25, 4, 3.0, {"2": 2, "3": 2}),
    }
    counts = SimpleNamespace(
        last_ns=7_999_999, inferences=20, ok=6, ok_ns=600, failed=1, failed_ns=100
    )
    called = SimpleNamespace(
        last_ns=8_999_999, inferences=5, ok=3, ok_ns=30, failed=2, failed_ns=20
    )
    model = SimpleNamespace(
        name="m",
        version="2",
        entry="first",
        stats=lambda: {"nodes": nodes},
        counts=counts,
        called=called,
    )
    none = {"count": 0, "ns": 0}
    copied = {"count": 10, "ns": 0}  # inputs and outputs are not moved anywhere
    (found,) = statistics([model])["model_stats"]
    assert found.pop("inference_stats") == {
        "success": {"count": 6 + 3, "ns": 600 + 30},
        "fail": {"count": 1 + 2, "ns": 100 + 20},
        "queue": {"count": 10, "ns": 9 * 500_000 + 12 * 250_000},
        "compute_input": copied,
        "compute_infer": {"count": 10, "ns": 9 * 2_000_000 + 4 * 3_000_000},
        "compute_output": copied,
        "cache_hit": none,
        "cache_miss": none,
    }
    still = {"count": 2, "ns": 0}
    assert found.pop("batch_stats") == [
        {
            "batch_size": size,
            "compute_input": still,
            "compute_infer": {"count": 2, "ns": 6_000_000},
            "compute_output": still,
        }
        for size in (2, 3)
    ]
    about = {"name": "m", "version": "2", "last_inference": 8}
    assert found == {**about, "inference_count": 20 + 5, "execution_count": 4}


class Down(headrace.Backend):
    """A step: one less, until it is 0."""

    max = 4

    def forward(self, batch):
        for request in batch:
            request["result"] = int(request["data"]) - 1
            if request["result"] == 0:
                request["landed"] = True


def test_steps_of_iterate_are_counted(serving):
    pytest.importorskip("headrace_flow")
    headrace.register("ServeDown", Down)
    server = serving(
        {"m": {"backend": "Iterate(until=landed)[ServeDown]"}, "n": {"backend": "Identity"}}
    )
    for steps in (3, 5):
        assert httpx.post(f"{server.url}/run/m", content=str(steps)).json() == {"result": 0}
    found = samples(server)
    labels = (("model", "m"), ("model_version", "1"), ("node", "main"))
    # One request at a time: a step has one, and takes one of four places.
    assert found[("headrace_serve_iterate_steps_total", *labels)] == 8
    assert found[("headrace_serve_iterate_requests_in_steps_total", *labels)] == 8
    assert found[("headrace_serve_iterate_occupancy", *labels)] == 0.25
    assert not any("iterate" in key[0] and ("model", "n") in key for key in found)


@pytest.fixture
def boxes():
    """A counter that code of a backend makes, as its library tells it to."""
    made = prometheus_client.Counter("serve_boxes", "Boxes that were found.", ["kind"])
    yield made
    prometheus_client.REGISTRY.unregister(made)


@pytest.mark.parametrize(
    ("settings", "is_there"),
    [({}, True), ({"metrics": "default"}, True), ({"metrics": "server"}, False)],
)
def test_what_a_backend_counts_is_there_unless_it_is_not_wanted(serving, boxes, settings, is_there):
    headrace.register("ServeCounts", lambda data: boxes.labels("cat").inc(3), replace=True)
    server = serving({"m": {"backend": "ServeCounts"}}, **settings)
    for _ in range(2):
        assert httpx.post(f"{server.url}/run/m", content=b"x").status_code == 200
    found = samples(server)
    assert found.get(("serve_boxes_total", ("kind", "cat"))) == (6 if is_there else None)
    assert (("process_open_fds",) in found) == (sys.platform == "linux")
    accept = {"accept": "application/openmetrics-text"}
    assert httpx.get(f"{server.url}/metrics", headers=accept).text.endswith("# EOF\n")


def test_a_registered_collector_that_fails_hides_nothing_else(serving, caplog):
    class Broken:
        def describe(self):
            return []

        def collect(self):
            raise ZeroDivisionError

    broken = Broken()
    server = serving({"m": {"backend": "Identity"}})
    prometheus_client.REGISTRY.register(broken)
    try:
        assert samples(server)[("headrace_serve_ready",)] == 1
    finally:
        prometheus_client.REGISTRY.unregister(broken)
    assert "default registry" in caplog.text


def test_metrics_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="'default' or 'server'"):
        Server({"m": {"backend": "Identity"}}, metrics="all")
