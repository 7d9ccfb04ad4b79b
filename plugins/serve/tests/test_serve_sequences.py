"""Sequences as Triton has them, over both protocols and a stream: `StateFul` keeps their state."""

from __future__ import annotations

import queue

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

import headrace

WAIT_S = 60.0


@headrace.register("ServeSum")
class Sum(headrace.Backend):
    """Adds INPUT to what the sequence had before, and tells the key of the sequence."""

    reads = ("data", "session")
    max = 8

    def forward(self, batch):
        for request in batch:
            total = request.get("before", 0) + request["data"]
            name = np.array([[str(request["session"]).encode()]], object)
            request["result"] = {"total": total, "OUTPUT": total, "NAME": name}


MODELS = {
    "sums": {
        "config": {"backend": "StateFul(session)[ServeSum]", "keep": {"total": "before"}},
        "inputs": {"INPUT": {"datatype": "INT32", "shape": [-1, 1], "batched": True}},
        "outputs": {
            "OUTPUT": {"datatype": "INT32", "shape": [-1, 1]},
            "NAME": {"datatype": "BYTES", "shape": [-1, 1]},
        },
    },
    "items": {"config": {"backend": "StateFul(session)[ServeWords]", "keep": {"result": "before"}}},
    "alone": {"config": {"backend": "Identity"}},
}


@headrace.register("ServeWords")
class Words(headrace.Backend):
    """Appends an item to those that the sequence had before."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request.get("before", b"") + request["data"]


@pytest.fixture
def server(serving):
    return serving(MODELS, grpc_port=0)


@pytest.fixture(params=[triton, triton_http], ids=["grpc", "http"])
def client(request, server):
    address = server.grpc_url if request.param is triton else server.url
    with request.param.InferenceServerClient(address.partition("://")[2]) as made:
        made.kind = request.param
        yield made


def given(kind, value, name="INPUT"):
    array = np.array([[value]], "i4") if name == "INPUT" else np.array(value, object)
    made = kind.InferInput(name, array.shape, "INT32" if name == "INPUT" else "BYTES")
    made.set_data_from_numpy(array)
    return [made]


def ask(client, value, **sequence):
    answer = client.infer("sums", given(client.kind, value), **sequence)
    return int(answer.as_numpy("OUTPUT")[0, 0]), answer.as_numpy("NAME")[0, 0].decode()


def test_each_sequence_has_its_state_from_start_to_end(client):
    assert ask(client, 1, sequence_id=7, sequence_start=True) == (1, "7")
    assert ask(client, 10, sequence_id="seven", sequence_start=True) == (10, "seven")
    assert ask(client, 2, sequence_id=7) == (3, "7")
    assert ask(client, 20, sequence_id="seven", sequence_end=True) == (30, "seven")
    assert ask(client, 3, sequence_id=7, sequence_start=True) == (3, "7")
    assert ask(client, 5, sequence_id="seven", sequence_start=True) == (5, "seven")


def test_a_model_of_sequences_refuses_a_request_of_none_and_others_refuse_sequences(client):
    with pytest.raises(InferenceServerException, match="sequence_id"):
        client.infer("sums", given(client.kind, 1))
    with pytest.raises(InferenceServerException, match="not supported by this model"):
        client.infer("alone", given(client.kind, [b"a"], "data"), sequence_id=3)


def test_the_items_of_a_request_run_in_order_between_start_and_end(client):
    def words(*items, **sequence):
        answer = client.infer("items", given(client.kind, [*items], "data"), **sequence)
        return answer.as_numpy("result").tolist()

    assert words(b"a", b"b", sequence_id=1, sequence_start=True) == [b"a", b"ab"]
    assert words(b"c", b"d", sequence_id=1, sequence_end=True) == [b"abc", b"abcd"]
    assert words(b"e", sequence_id=1, sequence_start=True, sequence_end=True) == [b"e"]


def test_sequences_that_share_a_stream_and_wait_for_no_answer_stay_in_order(server):
    answers = queue.Queue()
    with triton.InferenceServerClient(server.grpc_url.partition("://")[2]) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for step in range(50):
            for name in (1000, 1001, "text"):
                edges = {"sequence_start": step == 0, "sequence_end": step == 49}
                marks = {"request_id": f"{name}_{step}", "sequence_id": name}
                client.async_stream_infer("sums", given(triton, step), **marks, **edges)
        found = {}
        for _ in range(150):
            result, error = answers.get(timeout=WAIT_S)
            assert error is None
            found[result.get_response().id] = int(result.as_numpy("OUTPUT")[0, 0])
    sums = np.cumsum(range(50)).tolist()
    for name in (1000, 1001, "text"):
        assert [found[f"{name}_{step}"] for step in range(50)] == sums


def test_the_page_of_the_server_says_which_model_takes_sequences(server):
    found = httpx.get(server.url + "/openapi.json").json()["paths"]

    def parameters(name):
        body = found[f"/v2/models/{name}/infer"]["post"]["requestBody"]["content"]
        return body["application/json"]["schema"]["properties"]["parameters"]["properties"]

    assert parameters("sums")["sequence_start"] == {"type": "boolean"}
    assert parameters("alone")["sequence_start"] is False
