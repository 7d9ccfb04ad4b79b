"""Answers that tell the times of their requests, and what a server remembers of them."""

from __future__ import annotations

import json
import re
import time

import grpc
import httpx
import pytest

import headrace
from headrace.errors import InputError
from headrace_serve.monitoring.observe_probes import server_timing

METRIC = re.compile(
    r"main-wait;dur=\d+\.\d{3}, "
    r'main-run;dur=\d+\.\d{3};desc="1 in the batch, instance 0, formed by full"'
)
KEYS = (
    "[looks]\n"
    'sha256 = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"\n'  # key
    'rights = ["infer"]\n'
)


@pytest.fixture
def model():
    """Register a backend that refuses the data ``bad``; give a configuration with both probes."""

    class Picky(headrace.Backend):
        def forward(self, batch):
            outcomes = []
            for request in batch:
                request["result"] = request["data"]
                bad = request["data"] == b"bad"
                outcomes.append(InputError("bad data") if bad else None)
            return outcomes

    headrace.register("ServeTimingPicky", Picky, replace=True)
    probes = {"probes": ["Remember(64MiB)", "Times"]}
    return {"global": probes, "main": {"backend": "ServeTimingPicky"}}


def ask(server, content=b"good", **headers):
    return httpx.post(f"{server.url}/run/m", content=content, headers=headers)


def test_who_asks_is_told_the_times_also_of_a_failure(serving, model):
    server = serving({"m": model})
    answers = [ask(server, content, **{"X-Timing": "1"}) for content in (b"good", b"bad")]
    assert [one.status_code for one in answers] == [200, 400]
    for one in answers:
        assert METRIC.fullmatch(one.headers["server-timing"])
    assert "server-timing" not in ask(server).headers
    assert "server-timing" not in ask(server, **{"X-Timing": "0"}).headers


def test_tensors_are_told_them_too(serving, model):
    server = serving({"m": model})
    tensor = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    url = f"{server.url}/v2/models/m/infer"
    answer = httpx.post(url, json={"inputs": [tensor]}, headers={"X-Timing": "1"})
    assert answer.status_code == 200, answer.text
    assert METRIC.fullmatch(answer.headers["server-timing"])


def test_without_the_probe_it_is_an_error_of_who_asks(serving):
    server = serving({"m": {"backend": "Identity"}})
    answer = ask(server, **{"X-Timing": "1"})
    assert (answer.status_code, answer.json()["code"]) == (400, "input")
    assert "tells no times" in answer.json()["error"]


def test_a_key_needs_the_right_to_describe(serving, model, tmp_path):
    (tmp_path / "keys.toml").write_text(KEYS)
    server = serving({"m": model}, keys=tmp_path / "keys.toml")
    key = {"Authorization": "Bearer key"}
    assert ask(server, **key).status_code == 200
    assert ask(server, **key, **{"X-Timing": "1"}).status_code == 403
    assert httpx.get(f"{server.url}/v2/memory", headers=key).status_code == 403


def test_a_response_of_grpc_has_a_parameter(serving, model):
    messages = pytest.importorskip("tritonclient.grpc.service_pb2")
    server = serving({"m": model}, grpc_port=0)
    request = messages.ModelInferRequest(model_name="m", raw_input_contents=[b"\1\0\0\0x"])
    request.inputs.add(name="data", datatype="BYTES", shape=[1])
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        told = infer(request, metadata=(("x-timing", "1"),), timeout=60)
        plain = infer(request, timeout=60)
    assert METRIC.fullmatch(told.parameters["server_timing"].string_param)
    assert "server_timing" not in plain.parameters


def test_a_name_that_no_header_may_hold_is_written_otherwise():
    one = {"node": 'a "b', "instance": 0, "size": 2, "waited_ms": 1.0, "ran_ms": 2.0}
    found = server_timing([{**one, "reason": 'x"\r\ny'}] * 99)
    assert found.startswith('a__b-wait;dur=1.000, a__b-run;dur=2.000;desc="2 in the batch')
    assert "\n" not in found
    assert len(found) < 8000


def test_a_server_gives_what_it_remembers_around_a_request(serving, model):
    server = serving({"m": model})
    ask(server, **{"X-Request-Id": "abc"})
    lines = httpx.get(f"{server.url}/v2/memory", params={"request_id": "abc"}).text.splitlines()
    assert json.loads(lines[0])["kind"] == "headrace-memory"
    assert [json.loads(line)[0] for line in lines[1:]] == ["abc"]
    refused = httpx.get(f"{server.url}/v2/memory", params={"request_id": "nobody"})
    assert refused.status_code == 400
    assert "'nobody' is remembered" in refused.json()["error"]


def test_a_server_without_the_probe_says_so(serving):
    server = serving({"m": {"backend": "Identity"}})
    refused = httpx.get(f"{server.url}/v2/memory")
    assert refused.status_code == 501
    assert "Remember(64MiB)" in refused.json()["error"]


def test_the_live_page_lists_the_slowest(serving, model):
    server = serving({"m": model, "plain": {"backend": "Identity"}}, ui=True)
    ask(server, **{"X-Request-Id": "abc"})
    until = time.monotonic() + 60
    found = {}
    while not found.get("m:1") and time.monotonic() < until:
        models = httpx.get(f"{server.url}/ui/state.json").json()["models"]
        found = {one["id"]: one["slowest"] for one in models}
    assert [one["request_id"] for one in found["m:1"]] == ["abc"]
    assert found["plain:1"] is None
