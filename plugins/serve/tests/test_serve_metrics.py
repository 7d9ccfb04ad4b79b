"""``/metrics``, read by the parser of prometheus-client."""

from __future__ import annotations

import sys

import httpx
import pytest
import tritonclient.grpc as triton
from prometheus_client.parser import text_string_to_metric_families


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
