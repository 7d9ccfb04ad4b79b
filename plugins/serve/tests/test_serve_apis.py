"""APIs of other servers: their clients unmodified, their refusals, and what holds for every route."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import api_models
import httpx
import numpy as np
import pytest
from api_models import TEXTS
from environments import environment_with
from serve_helpers import until
from typing_extensions import NotRequired, TypedDict

import headrace
from headrace.errors import ConfigError, InputError
from headrace_serve import Limits, asgi
from headrace_serve.apis.routes import routes_of

HERE = Path(__file__).parent

KEYS = """
[all]
sha256 = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"  # of "key"
[words]
sha256 = "{words}"
models = ["words"]
[tells]
sha256 = "{tells}"
rights = ["describe"]
"""
SAID = [{"role": "user", "content": "one two"}]


@pytest.fixture
def served(serving):
    return serving(api_models.MODELS, apis=["openai"])


def post(server, path, body, **headers):
    return httpx.post(f"{server.url}{path}", json=body, headers=headers)


def expected():
    """Return what numpy alone gives for the texts."""
    vectors = [api_models.vector_of([*one.encode()]) for one in TEXTS]
    short = [one[:2] / np.linalg.norm(one[:2]) for one in vectors]
    found = {
        name: np.array(rows).tolist() for name, rows in (("vectors", vectors), ("short", short))
    }
    return {"texts": TEXTS, **found}


@pytest.mark.peers
def test_the_clients_of_openai_and_langchain(served):
    api_models.Endless.left.clear()
    python = environment_with("openai>=3,<4", "langchain-openai>=1,<2") / "python"
    command = [python, HERE / "openai_calls.py", served.url, json.dumps(expected())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert api_models.Endless.left.wait(60)


def test_each_text_is_a_request_that_shares_batches_with_others(served):
    api_models.Vectors.sizes.clear()
    made = post(served, "/v1/embeddings", {"model": "vectors", "input": TEXTS * 4}).json()
    found = np.array([one["embedding"] for one in made["data"]])
    assert np.allclose(found, expected()["vectors"] * 4, atol=1e-5)
    assert made["usage"]["prompt_tokens"] == 4 * sum(len(one.encode()) for one in TEXTS)
    assert max(api_models.Vectors.sizes) == 8
    assert served._service.models.find("vectors").counts.inferences == 16


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "the body"),
        (b'{"model": "vectors", "input": "\\ud800"}', "no JSON"),
        (b'{"model": 1, "input": "a"}', "model"),
        (b'{"input": "a"}', "model"),
        (b'{"model": "vectors", "input": "a", "encoding_format": "int8"}', "encoding_format"),
        (b"nothing", "no JSON"),
    ],
)
def test_wrong_bodies_are_refused_in_the_form_of_openai(served, body, words):
    answer = httpx.post(f"{served.url}/v1/embeddings", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert words in error["message"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "input",
        None,
    )


def test_fields_that_change_no_answer_are_taken_and_told_once(served, caplog):
    body = {"model": "words", "messages": SAID, "user": "me", "store": False, "presence_penalty": 0}
    with caplog.at_level("INFO"):
        for _ in range(2):
            made = post(served, "/v1/chat/completions", body)
            assert made.json()["choices"][0]["message"]["content"] == "one two "
    assert caplog.text.count("'presence_penalty' is taken") == 1
    vectors = {"model": "vectors", "input": TEXTS, "user": "me"}
    assert post(served, "/v1/embeddings", vectors).status_code == 200
    for field in ({"presence_penalty": 1}, {"seed": 1}, {"logprobs": True}, {"tools": [{}]}):
        refused = post(served, "/v1/chat/completions", {**body, **field})
        assert refused.status_code == 400
        assert next(iter(field)) in refused.json()["error"]["message"]


class WithUser(TypedDict):
    data: str
    user: NotRequired[str]


@headrace.register("ApiUser")
class User(headrace.Backend):
    """Gives the user whom the client names."""

    reads = WithUser

    def forward(self, batch):
        """Give it."""
        for request in batch:
            request["result"] = request.get("user", "nobody")


def test_a_model_that_declares_such_a_field_gets_it(serving):
    server = serving({"m": {"backend": "ApiUser"}}, apis=["openai"])
    body = {"model": "m", "prompt": "a", "metadata": {}}
    for more, text in (({}, "nobody"), ({"user": "me"}, "me")):
        made = post(server, "/v1/completions", {**body, **more})
        assert made.json()["choices"][0]["text"] == text


def test_each_of_several_prompts_has_a_choice(served):
    body = {"model": "words", "prompt": ["a b", "c", "d e f"]}
    made = post(served, "/v1/completions", body).json()
    assert [(one["index"], one["text"]) for one in made["choices"]] == [
        (0, "a b "),
        (1, "c "),
        (2, "d e f "),
    ]
    assert made["usage"]["completion_tokens"] == 6
    for wrong in ([], ["a", 1], ["a", ""], [["a"]]):
        assert post(served, "/v1/completions", {**body, "prompt": wrong}).status_code == 400
    assert post(served, "/v1/completions", {**body, "stream": True}).status_code == 400


@pytest.mark.parametrize(
    ("route", "fields", "words"),
    [
        ("/v1/embeddings", {"input": "a", "encoding_format": []}, "encoding_format: expected"),
        (
            "/v1/embeddings",
            {"input": "a", "encoding_format": {"a": 1}},
            "encoding_format: expected",
        ),
        ("/v1/embeddings", {"input": "a", "data": ["b"]}, "no field 'data'"),
        ("/v1/chat/completions", {"messages": SAID, "data": []}, "no field 'data'"),
        ("/v1/completions", {"prompt": "a", "data": "b"}, "no field 'data'"),
        ("/v1/chat/completions", {"messages": ["a"]}, "message 0: expected"),
        ("/v1/chat/completions", {"messages": [*SAID, {"content": "a"}]}, "message 1: expected"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": 1, "content": "a"}]},
            "message 0: expected",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user"}]},
            "content of message 0: expected",
        ),
        (
            "/v1/chat/completions",
            {"messages": [*SAID, {"role": "user", "content": 1}]},
            "content of message 1: expected a text, or a list of objects, got 1",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": ["a"]}]},
            "content of message 0: expected",
        ),
        ("/v1/completions", {"prompt": "a", "stream": "false"}, "stream: expected true or false"),
        ("/v1/completions", {"prompt": "a", "stream": 1}, "stream: expected true or false"),
        ("/v1/completions", {"prompt": "a", "n": True}, "n: expected 1, got True"),
        ("/v1/completions", {"prompt": "a", "n": [[]]}, "n: expected 1"),
        (
            "/v1/completions",
            {"prompt": "a", "stream": True, "stream_options": {"include_usage": "no"}},
            "include_usage: expected true or false",
        ),
        ("/v1/completions", {"prompt": "a", "stream_options": False}, "stream_options: expected"),
    ],
)
def test_a_field_of_another_type_or_with_the_name_of_a_key_is_refused_by_name(
    served, route, fields, words
):
    model = "vectors" if "input" in fields else "words"
    answer = post(served, route, {"model": model, **fields})
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("parts", "result", "text"),
    [
        ([], None, ""),
        ([b"Zo\xc3", b"\xab \xf0\x9f", b"\x98", b"\x80"], None, "Zoë 😀"),
        ([], b"Zo\xc3\xab", "Zoë"),
        ([b"a\xc3"], None, "a\ufffd"),
        (["a", ""], "b", "a"),
    ],
)
def test_the_text_of_an_answer_is_that_of_its_parts_wherever_they_are_cut(
    serving, parts, result, text, stream
):
    class Emits:
        def init(self, options, context):
            self.asks = context.request

        def forward(self, batch):
            for request in batch:
                handle = self.asks.keep(request)
                for part in parts:
                    self.asks.emit(handle, part)
                request["result"] = result

    headrace.register("ApiEmits", Emits, replace=True)
    server = serving({"m": {"backend": "ApiEmits"}}, apis=["openai"])
    answer = post(server, "/v1/completions", {"model": "m", "prompt": "a", "stream": stream})
    if not stream:
        assert answer.json()["choices"][0]["text"] == text
        return
    *events, done = (one[6:] for one in answer.text.strip().split("\n\n"))
    assert done == "[DONE]"
    assert "".join(json.loads(one)["choices"][0]["text"] for one in events) == text


def test_an_answer_that_nobody_reads_in_parts_may_have_any_number_of_them(served):
    said = [{"role": "user", "content": "a " * 20_000}]
    for _ in range(3):
        answer = post(served, "/v1/chat/completions", {"model": "words", "messages": said}).json()
        assert answer["usage"]["completion_tokens"] == 20_001
        assert answer["choices"][0]["message"]["content"] == said[0]["content"] + " "


def test_only_the_first_part_of_a_stream_names_the_role(served):
    body = {"model": "words", "messages": SAID, "stream": True}
    *events, _ = post(served, "/v1/chat/completions", body).text.strip().split("\n\n")
    deltas = [json.loads(one[6:])["choices"][0]["delta"] for one in events]
    first = {"role": "assistant", "content": "one "}
    assert deltas == [first, {"content": "two "}, {}]


def test_messages_of_all_kinds_come_as_they_were_sent(serving):
    headrace.register("ApiRoles", lambda data: " ".join(one["role"] for one in data), replace=True)
    said = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "tool_calls": []},
        {"role": "tool", "content": "", "tool_call_id": "1"},
    ]
    server = serving({"m": {"backend": "ApiRoles"}}, apis=["openai"])
    made = post(server, "/v1/chat/completions", {"model": "m", "messages": said}).json()
    assert made["choices"][0]["message"]["content"] == " ".join(one["role"] for one in said)


def test_an_error_within_a_stream_is_its_last_event(serving):
    class Breaks:
        def init(self, options, context):
            self.asks = context.request

        def forward(self, batch):
            self.asks.emit(self.asks.keep(batch[0]), "a")
            raise InputError("this is bad")

    headrace.register("ApiBreaks", Breaks, replace=True)
    server = serving({"m": {"backend": "ApiBreaks"}}, apis=["openai"])
    body = {"model": "m", "messages": SAID, "stream": True}
    answer = post(server, "/v1/chat/completions", body)
    first, last = (json.loads(one[6:]) for one in answer.text.strip().split("\n\n"))
    assert answer.status_code == 200
    assert first["choices"][0]["delta"]["content"] == "a"
    assert "this is bad" in last["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/responses", 404),
        ("GET", "/v1/models/", 404),
        ("DELETE", "/v1/models/words", 405),
        ("GET", "/v1/chat/completions", 405),
    ],
)
def test_what_an_api_does_not_have_is_told_in_its_form(serving, method, path, status):
    for api, place in (("openai", ["message"]), ("kserve-v1", [])):
        server = serving(api_models.MODELS, apis=[api])
        answer = httpx.request(method, f"{server.url}{path}")
        told = answer.json()["error"]
        for key in place:
            told = told[key]
        assert answer.status_code == (404 if api == "kserve-v1" and "chat" in path else status)
        assert path in told
        assert ("allow" in answer.headers) == (answer.status_code == 405)
        other = httpx.request(method, f"{server.url}/v3/nothing")
        assert set(other.json()) == {"error", "code", "node", "id"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_request(served, stream):
    api_models.Endless.left.clear()
    api_models.Endless.begun.clear()
    body = json.dumps({"model": "endless", "messages": SAID, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(head.encode() + body)
        assert api_models.Endless.begun.wait(60)
    assert api_models.Endless.left.wait(60)
    until(lambda: not served._service.counters.in_flight["http"])
    model = served._service.models.find("endless")
    until(lambda: (model.inside, model.receiving) == (0, 0))


def test_a_deadline_in_milliseconds(served):
    body = {"model": "endless", "messages": SAID}
    late = post(served, "/v1/chat/completions", body, **{"x-request-timeout-ms": "20"})
    assert (late.status_code, late.json()["error"]["type"]) == (504, "server_error")
    for wrong in ("0", "-1", "1.5", "9" * 5000, f"{1:012}{'9' * 5000}", f"{1:030}", "soon"):
        answer = post(served, "/v1/chat/completions", body, **{"x-request-timeout-ms": wrong})
        assert answer.status_code == 400
        assert "X-Request-Timeout-Ms" in answer.json()["error"]["message"]


def test_a_key_holds_for_the_model_in_the_body(serving, tmp_path):
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("words", "tells")}
    (tmp_path / "keys.toml").write_text(KEYS.format(**hashes))
    server = serving(api_models.MODELS, apis=["openai"], keys=tmp_path / "keys.toml")

    def ask(key, model="vectors"):
        body = {"model": model, "input": "a"}
        return post(server, "/v1/embeddings", body, authorization=f"Bearer {key}").status_code

    def names(key):
        headers = {"authorization": f"Bearer {key}"}
        rows = httpx.get(f"{server.url}/v1/models", headers=headers).json()["data"]
        return {one["id"] for one in rows}

    assert post(server, "/v1/embeddings", {"model": "vectors", "input": "a"}).status_code == 401
    assert [ask("key"), ask("words"), ask("tells"), ask("no")] == [200, 403, 403, 401]
    assert ask("words", "words") == 400  # it gives no vectors
    assert names("words") == {"words"}
    assert names("key") == set(api_models.MODELS)
    headers = {"authorization": "Bearer words"}
    assert httpx.get(f"{server.url}/v1/models/vectors", headers=headers).status_code == 403


def test_host_origin_limits_metrics_and_the_document_are_those_of_every_route(serving):
    limits = Limits(max_json_bytes=4000)
    server = serving(api_models.MODELS, apis=["openai"], limits=limits)
    body = {"model": "vectors", "input": "a"}
    assert post(server, "/v1/embeddings", body, host="evil.example").status_code == 403
    assert post(server, "/v1/embeddings", body, origin="http://evil.example").status_code == 403
    assert post(server, "/v1/embeddings", {**body, "input": "a" * 5000}).status_code == 413
    assert post(server, "/v1/embeddings", {**body, "input": [[1] * 80]}).status_code == 413
    done = post(server, "/v1/embeddings", body, **{"x-request-id": "mine"})
    assert (done.status_code, done.headers["x-request-id"]) == (200, "mine")
    document = httpx.get(f"{server.url}/openapi.json").json()
    assert {"/v1/models", "/v1/embeddings", "/v1/chat/completions"} <= {*document["paths"]}
    counted = server._service.counters.requests
    assert ("POST /v1/embeddings", "vectors", "200") in counted
    until(lambda: not server._service._inflight_bytes)


def test_the_limits_of_a_model_named_in_the_body(serving):
    models = {
        "vectors": {"config": {"backend": "ApiVectors"}, "max_items": 2, "max_body_bytes": 1000}
    }
    server = serving(models, apis=["openai"])
    body = {"model": "vectors", "input": ["a"] * 3}
    answer = post(server, "/v1/embeddings", body)
    assert (answer.status_code, "at most 2" in answer.text) == (400, True)
    answer = post(server, "/v1/embeddings", {**body, "input": "a" * 1000})
    assert answer.status_code == 413


IDENTITY = {"backend": "Identity"}
DECLARED = {
    "config": {"backend": "Identity", "max": 8},
    "inputs": {"x": {"datatype": "FP32", "shape": [-1, 2], "batched": True, "key": "data"}},
    "outputs": {"result": {"datatype": "FP32", "shape": [-1, 2]}},
}


def test_arrays_have_the_type_of_the_input(serving):
    models = {"m": DECLARED, "b": IDENTITY, "shout": {"backend": "ApiShout"}}
    server = serving(models, apis=["kserve-v1"])
    made = post(server, "/v1/models/shout:predict", {"instances": ["a", {"data": "b"}]})
    assert made.json() == {"predictions": ["A", "B"]}
    answer = post(server, "/v1/models/m:predict", {"instances": [[1, 2], {"x": [3, 4.5]}]})
    assert answer.json() == {"predictions": [[1.0, 2.0], [3.0, 4.5]]}
    assert httpx.get(f"{server.url}/v1/models/m").json() == {"name": "m", "ready": True}
    assert post(server, "/v1/models/b:predict", {"instances": [{"b64": "AQ=="}]}).status_code == 200
    for wrong in (
        [[1, 2, 3]],
        ["a"],
        [[1, "a"]],
        [[[1, 2]]],
        [[]],
        [{"y": [1, 2]}],
        "a",
        {},
        [{}, 1],
    ):
        answer = post(server, "/v1/models/m:predict", {"instances": wrong})
        assert answer.status_code == 400, wrong
        assert set(answer.json()) == {"error"}
    assert post(server, "/v1/models/b:predict", {"instances": [{"b64": "!"}]}).status_code == 400
    assert post(server, "/v1/models/none:predict", {"instances": []}).status_code == 404
    assert httpx.get(f"{server.url}/v1/models/none").status_code == 404


class File(TypedDict):
    data: bytes
    n: NotRequired[int]


@headrace.register("ApiFile")
class Files(headrace.Backend):
    """Gives the file back."""

    reads = File

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


class Text(TypedDict):
    data: bytes | str


@headrace.register("ApiText")
class Texts(Files):
    """Gives a text back, or a file."""

    reads = Text


TWO = {
    "config": {"backend": "Identity"},
    "inputs": {
        "image": {"datatype": "BYTES", "shape": [-1], "each": True, "key": "data"},
        "size": {"datatype": "INT32", "shape": [1]},
        "scale": {"datatype": "FP32", "shape": [1], "optional": True},
    },
}
FIELDS = {"config": {"backend": "Identity"}, "request": {"data": "str"}}
FILE = {"backend": "ApiFile"}
TEXT = {"backend": "ApiText"}


@pytest.mark.parametrize(
    ("model", "instance", "words"),
    [
        (DECLARED, {"x": [1, 2], "data": [3, 4]}, "input 'x' is there twice"),
        (DECLARED, {}, "input 'x' of model 'm' is missing"),
        (DECLARED, {"b64": "AAAAAAAAAAA="}, "input 'x': expected FP32 [2], got dict"),
        (DECLARED, {"x": {"b64": "AA=="}}, "input 'x': expected FP32 [2], got dict"),
        (DECLARED, None, "input 'x': expected FP32 [2], got NoneType"),
        (TWO, "a", "input 'size' of model 'm' is missing"),
        (TWO, {"size": [1]}, "input 'image' of model 'm' is missing"),
        (
            TWO,
            {"image": "a", "size": {"b64": "AA=="}},
            "input 'size': expected INT32 [1], got dict",
        ),
        (TWO, {"image": "a", "data": "b", "size": [1]}, "input 'image' is there twice"),
    ],
)
def test_an_instance_has_each_input_once_and_in_its_type(serving, model, instance, words):
    server = serving({"m": model}, apis=["kserve-v1"])
    answer = post(server, "/v1/models/m:predict", {"instances": [instance]})
    assert (answer.status_code, words in answer.json()["error"]) == (400, True)


def test_an_instance_may_lack_what_is_optional(serving):
    server = serving({"m": TWO}, apis=["kserve-v1"])
    made = post(server, "/v1/models/m:predict", {"instances": [{"image": "a", "size": [1]}]})
    assert made.json() == {"predictions": ["a"]}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (DECLARED, "input 'x': expected FP32 [2], got bytes"),
        (TWO, "input 'size' of model 'm' is missing"),
        (FIELDS, "takes JSON, not a file"),
        (TEXT, None),
        (FILE, None),
        (IDENTITY, None),
    ],
)
def test_a_file_goes_to_a_model_that_takes_one(serving, model, words):
    server = serving({"m": model}, apis=["sagemaker"])
    answer = httpx.post(f"{server.url}/invocations", content=b"\xff\0")
    if words is None:
        assert answer.content == b"\xff\0"
    else:
        text = answer.json()["error"]
        assert (answer.status_code, words in text) == (415, True)
        assert "application/json, text/csv, application/jsonlines, application/x-npy" in text


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/csv", b"1,2\n3,4.5\n"),
        ("text/csv; charset=utf-8", b"\xef\xbb\xbf1,2\r\n\r\n3,4.5"),
        ("text/csv", b'"1",2\n 3,4.5\n'),
        ("application/jsonlines", b"[1, 2]\n[3, 4.5]\n"),
        ("application/jsonlines", b'[1, 2]\n\n{"x": [3, 4.5]}'),
    ],
)
@pytest.mark.parametrize("accept", ["*/*", "text/csv", "application/jsonlines"])
def test_rows_and_lines_are_instances_of_sagemaker(serving, kind, body, accept):
    server = serving({"m": DECLARED}, apis=["sagemaker"])
    headers = {"content-type": kind, "accept": accept}
    answer = httpx.post(f"{server.url}/invocations", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    wanted = [[1.0, 2.0], [3.0, 4.5]]
    if accept == "*/*":
        assert answer.json() == {"predictions": wanted}
        return
    assert answer.headers["content-type"].partition(";")[0] == accept
    read = {"text/csv": lambda one: [*map(float, one.split(","))]}.get(accept, json.loads)
    assert [*map(read, answer.text.splitlines())] == wanted


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("text/csv", b"1,2\n3,x\n", "row 2, column 2 of the body: expected a number, got 'x'"),
        ("text/csv", b"1,2,3\n", "input 'x'"),
        ("text/csv", b"\xff,1", "UTF-8"),
        ("application/jsonlines", b"[1, 2]\n[3,", "no JSON"),
        ("application/jsonlines", b'{"y": 1}', "has no 'y'"),
    ],
)
def test_rows_and_lines_that_are_none_are_told(serving, kind, body, words):
    server = serving({"m": DECLARED}, apis=["sagemaker"])
    answer = httpx.post(f"{server.url}/invocations", content=body, headers={"content-type": kind})
    assert (answer.status_code, words in answer.json()["error"]) == (400, True), answer.text


def test_kserve_lists_its_models(serving):
    server = serving({"a": IDENTITY, "b": IDENTITY}, apis=["kserve-v1"])
    assert httpx.get(f"{server.url}/v1/models").json() == {"models": ["a", "b"]}


@pytest.mark.parametrize(
    ("more", "status", "found"),
    [
        ({}, 200, ["a"]),
        ({"signature_name": "serving_default"}, 200, ["a"]),
        ({"signature_name": None, "parameters": None}, 200, ["a"]),
        ({"parameters": {"size": [2]}}, 200, ["a"]),
        ({"parameters": {"image": "b", "size": [2]}}, 200, ["a"]),
        ({"signature_name": "other"}, 400, "signature_name: expected 'serving_default'"),
        ({"parameters": [1]}, 400, "parameters: expected an object"),
        ({"parameters": {"none": 1}}, 400, "has no 'none'"),
        ({"inputs": []}, 400, "the body has 'inputs'"),
    ],
)
def test_keys_of_kserve_beside_the_instances(serving, more, status, found):
    """The instance says what it says itself, and the parameters the rest."""
    server = serving({"m": TWO}, apis=["kserve-v1"])
    sized = {} if "size" in (more.get("parameters") or {}) else {"size": [1]}
    sent = {"instances": [{"image": "a", **sized}], **more}
    answer = post(server, "/v1/models/m:predict", sent)
    assert answer.status_code == status, answer.text
    if status == 200:
        assert answer.json() == {"predictions": found}
    else:
        assert found in answer.json()["error"]


@pytest.mark.peers
def test_the_client_of_kserve_in_its_first_protocol(serving):
    server = serving({"m": DECLARED}, apis=["kserve-v1"])
    command = [environment_with("kserve>=0.15") / "python", HERE / "kserve_calls.py", server.url]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=bare)
    assert done.returncode == 0, done.stdout + done.stderr


def npy(array, **how):
    made = io.BytesIO()
    np.save(made, array, **how)
    return made.getvalue()


def test_sagemaker(serving):
    server = serving({"m": DECLARED}, apis=["sagemaker"])

    def invoke(body, kind, accept="*/*"):
        headers = {"content-type": kind, "accept": accept}
        return httpx.post(f"{server.url}/invocations", content=body, headers=headers)

    assert httpx.get(f"{server.url}/ping").status_code == 200
    assert invoke(b'{"instances": [[1, 2]]}', "application/json").json() == {
        "predictions": [[1.0, 2.0]]
    }
    rows = np.arange(6, dtype=np.float64).reshape(3, 2)
    kind = "application/x-npy"
    assert invoke(npy(rows), kind).json() == rows.tolist()
    assert invoke(npy(np.asfortranarray(rows)), kind).json() == rows.tolist()
    found = np.load(io.BytesIO(invoke(npy(rows), kind, kind).content))
    assert (found.dtype, found.tolist()) == (np.float32, rows.tolist())
    objects = npy(np.array([{}, {}]), allow_pickle=True)
    huge = npy(rows).replace(b"(3, 2)", b"(3000000000000, 2)")
    unread = [b"(" * 5000, b"{'a': (\n", b"  x\n y\n", b"'''", b"[" * 9000]
    fields = ", 'fortran_order': False, 'shape': (3, 2)}"
    unread += [f"{{'descr': {one}{fields}".encode() for one in ("()", "('a',)", "','")]
    for wrong in (
        b"",
        b"\x93NUMPY",
        npy(rows)[:-1],
        objects,
        huge,
        npy(rows[:, :1]),
        npy(rows * 1j),
        *(b"\x93NUMPY\1\0" + len(one).to_bytes(2, "little") + one + bytes(48) for one in unread),
    ):
        assert invoke(wrong, kind).status_code == 400
    many = serving({"a": IDENTITY, "b": IDENTITY}, apis=["sagemaker"])
    assert httpx.post(f"{many.url}/invocations", content=b"x").status_code == 400
    one = serving({"a": IDENTITY}, apis=["sagemaker"])
    assert httpx.post(f"{one.url}/invocations", content=b"\xff\x00").content == b"\xff\x00"


@pytest.mark.parametrize(
    ("datatype", "given", "fits"),
    [
        ("INT32", np.array([1, -(2**31)]), True),
        ("INT32", np.array([1, 2**31]), False),
        ("INT32", np.array([1, 2**40], ">i8"), False),
        ("INT64", np.array([1, 2**63], np.uint64), False),
        ("UINT8", np.array([1, 256], np.uint16), False),
        ("FP32", np.array([1, 1e300]), False),
        ("FP32", np.array([1, 2**40]), True),
        ("FP32", np.array([1.5, -3e38]), True),
    ],
)
def test_an_array_of_a_wider_type_comes_whole_or_is_refused(serving, datatype, given, fits):
    port = {"datatype": datatype, "shape": [-1, 2], "batched": True, "key": "data"}
    model = {"config": {"backend": "Identity"}, "inputs": {"x": port}}
    server = serving({"m": model}, apis=["sagemaker"])
    headers = {"content-type": "application/x-npy"}
    answer = httpx.post(f"{server.url}/invocations", content=npy(given[None]), headers=headers)
    if fits:
        assert np.allclose(answer.json(), given)
    else:
        told = f"input 'x': it holds values outside of {datatype}"
        assert (answer.status_code, answer.json()["error"]) == (400, told)


def test_health_needs_no_key_and_is_refused_until_all_is_ready(tmp_path, serving):
    (tmp_path / "keys.toml").write_text(KEYS.format(words="1" * 64, tells="2" * 64))
    models = {"words": IDENTITY}
    server = serving(models, apis=["sagemaker"], keys=tmp_path / "keys.toml")
    assert httpx.get(f"{server.url}/ping").status_code == 200
    server._service.leaving = True
    assert httpx.get(f"{server.url}/ping").status_code == 503
    assert httpx.post(f"{server.url}/invocations", content=b"x").status_code == 401


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install a plugin whose hook names tables of a module with this code."""

    def install(code, **apis):
        place = tmp_path / "site"
        info = place / "headrace_mine-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-mine\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[headrace.plugins]\nhooks = api_mine_hooks\n")
        (place / "api_mine_hooks.py").write_text(
            "from headrace.hookspecs import hookimpl\n\n\n@hookimpl\ndef headrace_apis():\n"
            f"    return {apis!r}\n"
        )
        (place / "api_mine.py").write_text(code)
        monkeypatch.syspath_prepend(str(place))
        for name in ("api_mine", "api_mine_hooks"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        headrace.plugins.refresh()

    yield install
    monkeypatch.undo()
    headrace.plugins.refresh()


MINE = """
async def shout(asked):
    '''Shout.'''
    body = await asked.json()
    if body.get("closed"):
        from headrace.errors import ClosedError

        raise ClosedError("not now")
    said = await asked.run(asked.path["model"], {"data": body["say"]})
    return {"said": said, "by": asked.header("X-By"), "query": asked.query}


async def page(asked):
    return b"<script>", "text/html"


async def lines(asked):
    yield "one\\ntwo"
    yield {"three": 3}


ROUTES = {"POST /shout/{model}": shout, "GET /page": page, "GET /lines": lines}
SAME = {"POST /v1/embeddings": shout}
OWN = {"GET /v2/mine": shout}
WRONG = {"/mine": shout}
LIST = [shout]
"""


def test_a_table_of_a_plugin_imports_nothing_of_the_server(plugin, serving):
    plugin(MINE, mine="api_mine:ROUTES")
    server = serving(api_models.MODELS, apis=["mine"])
    answer = post(server, "/shout/shout?a=b", {"say": "hey"}, **{"x-by": "me"})
    assert answer.json() == {"said": "HEY", "by": "me", "query": {"a": "b"}}
    assert post(server, "/shout/none", {"say": "hey"}).json()["code"] == "unknown_model"
    assert post(server, "/shout/shout", {"closed": True}).status_code == 503
    assert httpx.get(f"{server.url}/page").status_code == 500
    assert httpx.get(f"{server.url}/lines").text == 'data: one\ndata: two\n\ndata: {"three":3}\n\n'
    document = httpx.get(f"{server.url}/openapi.json").json()["paths"]["/shout/{model}"]["post"]
    assert document["summary"] == "mine: Shout."
    assert document["parameters"][0]["name"] == "model"


def test_the_api_of_the_documents_answers_by_a_coroutine_and_by_a_generator(plugin, serving):
    text = (Path(__file__).parents[3] / "docs" / "other_apis.md").read_text()
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "def loud" in block
    )
    plugin(code, mine="api_mine:ROUTES")
    server = serving(api_models.MODELS, apis=["mine"])
    for _ in range(3):
        assert post(server, "/shout/shout", {"say": "hey"}).json() == {"said": "HEY"}
        assert post(server, "/loud/shout", {"say": ["hey"]}).json() == {"said": ["HEY"]}
    assert post(server, "/loud/shout", {"say": ["a", "b"]}).json() == {"said": ["A", "B"]}
    assert post(server, "/loud/none", {"say": ["hey"]}).json()["code"] == "unknown_model"


TWICE = """
def twice(asked, body):
    yield asked.path["model"], ["hey"]
    yield asked.path["model"], ["you"]


ROUTES = {"POST /twice/{model}": twice}
"""


def test_a_generator_that_yields_twice_is_told(plugin, serving):
    plugin(TWICE, mine="api_mine:ROUTES")
    server = serving(api_models.MODELS, apis=["mine"], debug_errors=True)
    for _ in range(2):
        answer = post(server, "/twice/shout", {})
        assert (answer.status_code, "a second time" in answer.text) == (500, True)


@pytest.mark.parametrize(
    ("apis", "words"),
    [
        (["openia"], "Did you mean 'openai'"),
        (["openai", "same"], "'POST /v1/embeddings' is a route of 'openai' and of 'same'"),
        (["own"], "routes of its own"),
        (["wrong"], "'/mine' is no route"),
        (["list"], "no table of routes, but list"),
    ],
)
def test_wrong_apis_are_told_at_the_start(plugin, apis, words):
    tables = {name: f"api_mine:{name.upper()}" for name in ("same", "own", "wrong", "list")}
    plugin(MINE, **tables)
    with pytest.raises(ConfigError, match=words):
        asgi(api_models.MODELS, apis=apis)


def test_an_application_without_them_has_none_of_their_routes():
    application = asgi({"m": IDENTITY})
    transport = httpx.ASGITransport(application)

    async def ask():
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get("/v1/models")).status_code

    assert asyncio.run(ask()) == 404
    assert routes_of([]) == {}


@pytest.mark.parametrize("apis", [["openai", "kserve-v1"], ["kserve-v1", "openai"]])
def test_a_route_of_two_apis_has_the_fields_of_both(serving, apis):
    server = serving({"org/m": {"backend": "Identity"}}, apis=apis)
    listed = httpx.get(f"{server.url}/v1/models").json()
    assert listed["models"] == ["org/m"]
    assert [one["id"] for one in listed["data"]] == ["org/m"]
    for name in ("org/m", "org%2Fm", "org%2fm"):
        one = httpx.get(f"{server.url}/v1/models/{name}").json()
        assert {
            "id": "org/m",
            "object": "model",
            "name": "org/m",
            "ready": True,
        }.items() <= one.items()
    assert httpx.get(f"{server.url}/v1/models/org").status_code == 404


def test_a_name_with_a_slash_is_quoted_in_other_paths(serving):
    server = serving({"org/m": {"backend": "Identity"}})
    assert httpx.post(f"{server.url}/run/org%2Fm", content=b"a").content == b"a"
    assert httpx.get(f"{server.url}/v2/models/org%2Fm/ready").status_code == 200
    assert httpx.get(f"{server.url}/v2/models/org/m/ready").status_code == 404
