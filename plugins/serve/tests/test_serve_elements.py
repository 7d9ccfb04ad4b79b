"""Many elements of BYTES: bounded for all inputs and outputs together, and read and written beside the event loop."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http

import headrace
from headrace_serve import Limits, datatypes
from headrace_serve.inference import tensors

TWO = {
    "inputs": {
        name: {"datatype": "BYTES", "shape": [-1], "each": False} for name in ("first", "second")
    },
    "outputs": {"counts": {"datatype": "INT64", "shape": [2]}},
}


class Counting(headrace.Backend):
    """Return the number of elements of each input."""

    reads = ("first", "second")

    def forward(self, batch):
        for request in batch:
            request["result"] = np.array([len(request["first"]), len(request["second"])])


class Many(headrace.Backend):
    """Return as many texts as the request says."""

    def forward(self, batch):
        for request in batch:
            request["result"] = [b""] * int(request["data"])


headrace.register("ServeCounting", Counting)
headrace.register("ServeMany", Many)


def sent(client, kind, counts, *, binary=True):
    """Send empty elements with one of Triton's clients; give the answer."""
    inputs = []
    for name, count in zip(("first", "second"), counts, strict=True):
        made = kind.InferInput(name, [count], "BYTES")
        more = {} if kind is triton else {"binary_data": binary}
        made.set_data_from_numpy(np.full(count, b"", object), **more)
        inputs.append(made)
    return client.infer("m", inputs).as_numpy("counts").tolist()


def test_the_elements_of_all_inputs_together_are_bounded_over_both_protocols(serving):
    models = {"m": {"config": {"backend": "ServeCounting"}, **TWO}}
    server = serving(models, grpc_port=0, limits=Limits(max_elements=5))
    rest = triton_http.InferenceServerClient(server.url.removeprefix("http://"))
    grpc = triton.InferenceServerClient(server.grpc_url.removeprefix("grpc://"))
    with rest, grpc:
        asked = [
            (rest, triton_http, {}),
            (rest, triton_http, {"binary": False}),
            (grpc, triton, {}),
        ]
        for client, kind, more in asked:
            for counts in ((2, 3), (0, 5)):
                assert sent(client, kind, counts, **more) == list(counts)
            with pytest.raises(Exception, match=r"6 elements together.* 5 that one request"):
                sent(client, kind, (3, 3), **more)


def test_a_model_may_have_a_smaller_bound_on_elements(serving):
    server = serving({"m": {"config": {"backend": "ServeCounting"}, "max_elements": 4, **TWO}})
    with triton_http.InferenceServerClient(server.url.removeprefix("http://")) as client:
        assert sent(client, triton_http, (2, 2)) == [2, 2]
        with pytest.raises(Exception, match="5 elements together"):
            sent(client, triton_http, (2, 3))


def test_the_elements_of_an_answer_are_bounded(serving):
    outputs = {"texts": {"datatype": "BYTES", "shape": [-1, -1]}}
    models = {"m": {"config": {"backend": "ServeMany"}, "outputs": outputs}}
    server = serving(models, limits=Limits(max_elements=3), debug_errors=True)
    for count, status in ((3, 200), (4, 500)):
        tensor = {"name": "data", "datatype": "BYTES", "shape": [1], "data": [str(count)]}
        answer = httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": [tensor]})
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["outputs"][0]["shape"] == [1, 3]
        else:
            assert "4 elements together" in answer.json()["error"]


def test_a_request_with_many_inputs_or_outputs_is_refused_before_they_are_read(serving):
    server = serving({"m": {"config": {"backend": "ServeCounting"}, **TWO}})
    one = {"name": "x", "datatype": "BYTES", "shape": [0], "data": []}
    for body in ({"inputs": [one] * 65}, {"inputs": [one], "outputs": [{"name": "y"}] * 65}):
        answer = httpx.post(f"{server.url}/v2/models/m/infer", json=body)
        assert answer.status_code == 400
        assert "65" in answer.json()["error"]


@pytest.mark.parametrize("side", ["read", "written"])
def test_health_is_answered_while_many_elements_are_read_or_written(serving, monkeypatch, side):
    begun, go_on = threading.Event(), threading.Event()
    module, name = (datatypes, "read_elements") if side == "read" else (tensors, "join_elements")
    usual = getattr(module, name)

    def slow(*args):
        begun.set()
        assert go_on.wait(60)
        return usual(*args)

    monkeypatch.setattr(module, name, slow)
    port = {"datatype": "BYTES", "shape": [-1], "each": False}
    model = {"config": {"backend": "Identity"}, "inputs": {"x": port}}
    model["outputs"] = {"y": {"datatype": "BYTES", "shape": [-1]}}
    server = serving({"m": model})
    count = 5000
    tensor = {"name": "x", "datatype": "BYTES", "shape": [count]}
    head = {"inputs": [{**tensor, "parameters": {"binary_data_size": 4 * count}}]}
    text = json.dumps({**head, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    with ThreadPoolExecutor(1) as pool:
        url = f"{server.url}/v2/models/m/infer"
        sending = pool.submit(httpx.post, url, content=text + bytes(4 * count), headers=headers)
        try:
            assert begun.wait(60)
            assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
        finally:
            go_on.set()
        answer = sending.result()
    assert answer.status_code == 200
    assert answer.content.endswith(bytes(4 * count))


@pytest.mark.parametrize(("limit", "live"), [("", True), ("restart_limit=1", False)])
def test_liveness_fails_where_a_process_dies_more_often_than_its_limit(serving, limit, live):
    """With the answers of protobuf: a field of type bool is there where it is true."""
    pytest.importorskip("headrace_process")
    word = f"Process({limit})[Call(os:_exit)]" if limit else "Process[Call(os:_exit)]"
    with headrace.pipe({"backend": word}) as pipe:
        server = serving({"m": pipe}, grpc_port=0)
        with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
            ask = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            for deaths in range(3):
                alive = live or deaths < 2
                answer = httpx.get(f"{server.url}/v2/health/live")
                assert (answer.status_code, answer.json()) == (
                    200 if alive else 503,
                    {"live": alive},
                )
                assert ask(b"", timeout=60) == (b"\x08\x01" if alive else b"")
                with pytest.raises(headrace.errors.InstanceLostError):
                    pipe({"data": 7})
