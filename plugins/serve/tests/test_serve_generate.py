"""``generate`` and ``generate_stream``: fields that become inputs and parameters, parts, errors."""

from __future__ import annotations

import json
import threading

import httpx
import numpy as np
import pytest

import headrace
from headrace.errors import InputError
from headrace_serve.http import events

PORTS = {
    "inputs": {
        "text_input": {"datatype": "BYTES", "shape": [1], "key": "data", "each": False},
        "scale": {"datatype": "FP32", "shape": [2]},
    },
    "outputs": {"text_output": {"datatype": "BYTES", "shape": [1]}},
}


class Echo(headrace.Backend):
    """Gives the words of ``data`` as parts; the result is what it was asked."""

    reads = ("data", "scale")
    left = threading.Event()

    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        (request,) = batch
        text = request["data"].item().decode()
        for word in text.split():
            if word == "bad":
                raise InputError("this word is bad")
            if word == "wait":
                while not self.context.request.unwanted(self.context.request.keep(request)):
                    threading.Event().wait(0.005)
                self.left.set()
                return
            self.context.request.emit(self.context.request.keep(request), word)
        given = request.get("context", {}).get("parameters", {})
        asked = [request["scale"].tolist(), dict(given), request.get("request_id")]
        request["result"] = None if text.endswith("nothing") else json.dumps(asked)


headrace.register("ServeEcho", Echo)


@headrace.register("ServeRange")
def ranged(data):
    for number in range(int(data)):
        yield {"at": number}
    return np.arange(int(data), dtype=np.int32)


@pytest.fixture
def url(serving):
    Echo.left = threading.Event()
    models = {
        "echo": {"config": {"backend": "ServeEcho"}, **PORTS},
        "range": {"backend": "ServeRange"},
    }
    return f"{serving(models).url}/v2/models"


BODY = {"text_input": "one two", "scale": [0.5, 1], "parameters": {"temperature": 0, "n": "x"}}


def data_of(response):
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(one.startswith("data: ") for one in blocks)
    return [json.loads(one[6:]) for one in blocks]


@pytest.mark.parametrize("path", ["echo/generate", "echo/versions/1/generate"])
def test_generate_gives_the_result_as_plain_json(url, path):
    answer = httpx.post(f"{url}/{path}", json={**BODY, "id": "mine"})
    assert answer.status_code == 200
    found = answer.json()
    asked = json.loads(found.pop("text_output"))
    assert found == {"model_name": "echo", "model_version": "1", "id": "mine"}
    assert asked == [[0.5, 1.0], {"temperature": 0, "n": "x"}, "mine"]


def test_generate_stream_gives_an_event_a_part_and_the_result(url):
    found = data_of(httpx.post(f"{url}/echo/generate_stream", json=BODY))
    assert [one["model_name"] for one in found] == ["echo"] * 3
    assert [one["text_output"] for one in found[:2]] == ["one", "two"]
    assert json.loads(found[2]["text_output"])[0] == [0.5, 1.0]


def test_a_result_of_nothing_is_no_event(url):
    body = {**BODY, "text_input": "say nothing"}
    found = data_of(httpx.post(f"{url}/echo/generate_stream", json=body))
    assert [one["text_output"] for one in found] == ["say", "nothing"]


def test_inputs_among_the_parameters_are_inputs(url):
    body = {"text_input": ["a"], "parameters": {"scale": [1, 2]}}
    assert json.loads(httpx.post(f"{url}/echo/generate", json=body).json()["text_output"])[:2] == [
        [1.0, 2.0],
        {},
    ]


def test_several_elements_are_a_list_and_what_is_no_tensor_is_json(url):
    found = data_of(httpx.post(f"{url}/range/generate_stream", json={"data": "3"}))
    assert [one["result"] for one in found] == [{"at": 0}, {"at": 1}, {"at": 2}, [0, 1, 2]]
    assert httpx.post(f"{url}/range/generate", json={"data": "1"}).json()["result"] == 0


def test_a_stream_is_of_one_item(url):
    answer = httpx.post(f"{url}/range/generate_stream", json={"data": ["3", "4"]})
    assert (answer.status_code, answer.json()["code"]) == (400, "input")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[]", "JSON object"),
        ("{", "no JSON"),
        ('{"text_input": "a"}', "input 'scale' of model 'echo' is missing"),
        ('{"text_input": "a", "scale": [1, 2, 3]}', "values for [2]"),
        ('{"text_input": "a", "scale": 1}', "values for [2]"),
        ('{"text_input": "a", "scale": ["b", "c"]}', "scale"),
        ('{"text_input": "a", "scale": [1, 2], "parameters": 1}', "parameters"),
        ('{"text_imput": ["a"], "scale": [1, 2]}', "Did you mean 'text_input'?"),
        ('{"text_input": "a", "scale": [1, 2], "parameters": {"scale": [1, 2]}}', "there twice"),
        ('{"text_input": "a", "scale": [1, 2], "n": 1, "parameters": {"n": 1}}', "there twice"),
        ('{"text_input": "a", "scale": [1, 2], "id": 1}', "a string"),
        ('{"text_input": "a", "scale": [1, 2], "sequence_id": 1}', "sequences"),
        ('{"text_input": "a", "scale": [1, 2], "binary_data_output": true}', "JSON"),
    ],
)
@pytest.mark.parametrize("end", ["generate", "generate_stream"])
def test_a_wrong_body_is_answered_before_anything_runs(url, end, body, words):
    answer = httpx.post(f"{url}/echo/{end}", content=body)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert words in answer.json()["error"]


def test_an_error_after_parts_is_the_last_event(url):
    answer = httpx.post(f"{url}/echo/generate_stream", json={**BODY, "text_input": "one bad"})
    first, last = data_of(answer)
    assert answer.status_code == 200
    assert first["text_output"] == "one"
    assert "this word is bad" in last["error"]
    assert "text_output" not in last


def test_a_part_that_is_not_what_the_entry_declares_ends_the_stream(serving):
    outputs = {"outputs": {"result": {"datatype": "INT32", "shape": [1]}}}
    server = serving({"range": {"config": {"backend": "ServeRange"}, **outputs}})
    answer = httpx.post(f"{server.url}/v2/models/range/generate_stream", json={"data": "3"})
    assert (answer.status_code, answer.json()["code"]) == (500, "contract")


def test_a_client_that_hangs_up_cancels_its_request(url, monkeypatch):
    monkeypatch.setattr(events, "SILENCE_S", 0.01)  # a comment tells that nobody reads
    body = {**BODY, "text_input": "one wait"}
    with httpx.stream("POST", f"{url}/echo/generate_stream", json=body) as response:
        assert any("one" in line for line in response.iter_lines())
        assert not Echo.left.is_set()
    assert Echo.left.wait(60)


def test_a_client_that_closes_is_found_before_the_next_comment_of_silence(url):
    body = {**BODY, "text_input": "one wait"}
    with httpx.stream("POST", f"{url}/echo/generate_stream", json=body) as response:
        assert any("one" in line for line in response.iter_lines())
    assert Echo.left.wait(events.SILENCE_S / 2)
