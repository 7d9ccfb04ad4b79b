"""Bodies of JSON of the plain route: fields that become keys of the request, checked and described."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TypedDict

import httpx
import jsonschema
import numpy as np
import pytest
import tritonclient.grpc as triton
from pages import Page
from tritonclient.utils import InferenceServerException

import headrace
from headrace.errors import ConfigError
from headrace_serve import Server
from headrace_serve.models.entries import read_models


class Needed(TypedDict):
    data: list[float]


class Reads(Needed, total=False):
    scale: float


class Scaled(headrace.Backend):
    """The sum, times the scale that a request may bring."""

    reads = Reads

    def forward(self, batch):
        for request in batch:
            request["result"] = sum(request["data"]) * request.get("scale", 1)


class Told(headrace.Backend):
    """Tell the keys that came, and their types."""

    reads = ("data",)

    def forward(self, batch):
        for request in batch:
            found = {k: v for k, v in request.items() if k not in ("node_name", "context")}
            request["result"] = {k: [type(v).__name__, v] for k, v in found.items()}


headrace.register("ServeJsonScaled", Scaled)
headrace.register("ServeJsonToldKeys", Told)
headrace.register("ServeJsonRepr", repr)
headrace.register("ServeJsonTwice", lambda value: value * 2)

SAID = {
    "config": {"backend": "ServeJsonToldKeys"},
    "request": {
        "data": "str",
        "count": {"type": "int", "default": 3, "description": "How often."},
        "names": {"type": "list[str] | None", "required": False},
        "by": {"type": "dict[str, float]", "required": False},
    },
}


def run(server, body, name="m", **more):
    return httpx.post(f"{server.url}/run/{name}", json=body, **more)


def schema(server, name="m"):
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    return paths[f"/run/{name}"]["post"]["requestBody"]["content"]["application/json"]["schema"]


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "ServeJsonScaled"},
        {"backend": "S[ServeJsonScaled,Identity]"},
        {
            "first": {"backend": "ServeJsonScaled", "next": "last"},
            "last": {"backend": "ServeJsonTwice"},
        },
    ],
)
def test_the_keys_that_the_entry_declares_are_the_fields_of_a_body(serving, config):
    server = serving({"m": config})
    twice = 2 if "last" in config else 1
    assert run(server, {"data": [1, 2.5]}).json() == {"result": 3.5 * twice}
    assert run(server, {"data": [1, 2.5], "scale": 2}).json() == {"result": 7.0 * twice}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "'data' is missing"),
        ({"data": [1, "2"]}, "'data.1': Input should be a valid number, got '2'"),
        ({"data": [1], "scale": "x"}, "'scale': Input should be a valid number"),
        ({"data": [1], "scael": 1}, "'scael': there is no such field. Did you mean 'scale'?"),
        ([1], "expected an object with data, scale"),
    ],
)
def test_a_wrong_field_is_422_and_named(serving, body, said):
    server = serving({"m": {"backend": "ServeJsonScaled"}})
    answer = run(server, body)
    assert (answer.status_code, answer.json()["code"]) == (422, "field")
    assert said in answer.json()["error"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, schema(server))
    jsonschema.validate({"data": [1, 2], "scale": 0.5}, schema(server))


def test_the_serving_file_says_fields_types_and_defaults(serving):
    server = serving({"m": SAID})
    assert run(server, {"data": "a"}).json()["result"] == {
        "data": ["str", "a"],
        "count": ["int", 3],
    }
    body = {"data": "a", "count": 5, "names": ["b"], "by": {"c": 1}}
    found = run(server, body).json()["result"]
    assert found["names"] == ["list", ["b"]]
    assert found["by"] == ["dict", {"c": 1.0}]
    assert run(server, {"data": "a", "names": None}).json()["result"]["names"] == ["NoneType", None]
    for wrong in ({"names": [1]}, {"count": 1.5}, {"count": True}, {"by": {"c": "d"}}):
        answer = run(server, {"data": "a", **wrong})
        assert answer.status_code == 422
        assert next(iter(wrong)) in answer.json()["error"]
    described = schema(server)
    assert described["properties"]["count"]["description"] == "How often."
    assert described["properties"]["count"]["default"] == 3
    assert described["required"] == ["data"]


def test_keys_of_the_query_stay_beside_fields_and_may_not_say_the_same(serving):
    server = serving({"m": SAID})
    found = run(server, {"data": "a"}, params={"request_id": "r7", "more": "x"}).json()["result"]
    assert found["more"] == ["str", "x"]
    assert found["request_id"] == ["str", "r7"]
    answer = run(server, {"data": "a"}, params={"names": "x"})
    assert answer.status_code == 200  # the body has no such field
    answer = run(server, {"data": "a", "names": []}, params={"names": "x"})
    assert answer.status_code == 400
    assert "in the query and in the body" in answer.json()["error"]


def test_a_body_that_is_said_to_be_json_is_the_data_whatever_its_type(serving):
    server = serving({"m": {"config": {"backend": "ServeJsonRepr"}, "body": "json"}})
    for value in ({"a": [1, None]}, [1.5], "text", 3):
        assert run(server, value).json() == {"result": repr(value)}
    url = f"{server.url}/run/m"
    assert httpx.post(url, content=b"[1]").json() == {"result": "[1]"}
    answer = httpx.post(url, content=b"{no")
    assert (answer.status_code, answer.json()["code"]) == (400, "input")


def test_without_declared_keys_a_body_is_bytes_and_body_bytes_is_the_way_back(serving):
    told = {"backend": "ServeJsonRepr"}
    back = {"config": {"backend": "ServeJsonRepr"}, "body": "bytes"}
    typed = {"config": {"backend": "ServeJsonScaled"}, "body": "bytes"}
    server = serving({"plain": told, "back": back, "typed": typed})
    assert run(server, [1], "back").json() == {"result": "b'[1]'"}
    file = {"content-type": "application/octet-stream"}
    answer = httpx.post(f"{server.url}/run/plain", content=b"[1]", headers=file)
    assert answer.json() == {"result": "b'[1]'"}
    assert run(server, [1], "typed").json() == {"result": sum(b"[1]")}


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_for_a_model_that_declares_none_is_415_and_not_its_text(serving, kind):
    floats = {"datatype": "FP32", "shape": [-1]}
    tensors = {"config": {"backend": "ServeJsonRepr"}, "inputs": {"x": floats}}
    server = serving({"plain": {"backend": "ServeJsonRepr"}, "tensors": tensors})
    for name in ("plain", "tensors"):
        for accept in ("*/*", "text/event-stream"):
            headers = {"content-type": kind, "accept": accept}
            answer = httpx.post(f"{server.url}/run/{name}", content=b"[1]", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (415, "content_type")
            assert "declares no fields" in answer.json()["error"]


class Two(TypedDict):
    data: bytes
    scale: float


class Product(headrace.Backend):
    reads = Two

    def forward(self, batch):
        for request in batch:
            request["result"] = len(request["data"]) * float(request["scale"])


headrace.register("ServeJsonProduct", Product)


def test_a_missing_field_is_422_on_every_route(serving):
    server = serving({"m": {"backend": "ServeJsonProduct"}}, grpc_port=0)
    tensor = {"name": "data", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
    posts = [
        ("/run/m", {"json": {"data": "YWI="}}),
        ("/run/m", {"content": b"ab"}),
        ("/run/m", {"files": [("file", b"ab"), ("file", b"c")]}),
        ("/v2/models/m/infer", {"json": {"inputs": [tensor]}}),
        ("/v2/models/m/generate", {"json": {"data": "YWI="}}),
        ("/v2/models/m/generate_stream", {"json": {"data": "YWI="}}),
    ]
    for path, body in posts:
        answer = httpx.post(server.url + path, **body)
        assert (answer.status_code, answer.json()["code"]) == (422, "field"), path
        assert "field 'scale' is missing" in answer.json()["error"]
    with triton.InferenceServerClient(server.grpc_url.removeprefix("grpc://")) as client:
        x = triton.InferInput("data", [1], "BYTES")
        x.set_data_from_numpy(np.array([b"ab"], object))
        with pytest.raises(InferenceServerException, match="'scale' is missing") as caught:
            client.infer("m", [x])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert run(server, {"data": "YWI=", "scale": 2.5}).json() == {"result": 5.0}
    by_query = httpx.post(f"{server.url}/run/m?scale=2.5", content=b"ab")
    assert by_query.json() == {"result": 5.0}


def test_fields_have_their_defaults_on_every_route(serving):
    server = serving({"m": SAID})
    wanted = {"data": ["bytes", "a"], "count": ["int", 3]}
    file = httpx.post(f"{server.url}/run/m", content=b"a")
    assert file.json() == {"result": wanted}
    wanted["data"] = ["str", "a"]
    assert run(server, {"data": "a"}).json() == {"result": wanted}
    generated = httpx.post(f"{server.url}/v2/models/m/generate", json={"data": "a"})
    assert generated.json()["result"] == wanted


@pytest.mark.parametrize("end", ["generate", "generate_stream"])
def test_generate_takes_the_fields_that_a_model_declares(serving, end):
    server = serving({"m": {"backend": "ServeJsonScaled"}, "said": SAID})
    url = f"{server.url}/v2/models"

    def answered(name, body):
        answer = httpx.post(f"{url}/{name}/{end}", json=body)
        text = answer.text.removeprefix("data: ") if answer.status_code == 200 else answer.text
        return answer.status_code, json.loads(text)

    status, answer = answered("m", {"data": [1, 2.5], "scale": 2, "id": "r7", "mine": 3})
    assert (status, answer["result"], answer["id"]) == (200, 7.0, "r7")
    body = {"data": "é", "names": None, "by": {"a": 1}}
    assert answered("said", body)[1]["result"] == {
        "data": ["str", "é"], "count": ["int", 3], "names": ["NoneType", None], "by": ["dict", {"a": 1.0}],
    }  # fmt: skip
    for wrong, said in (
        ({}, "'data' is missing"),
        ({"data": "text"}, "'data': Input should be a valid"),
        ({"data": [1], "scale": "x"}, "'scale': Input should be a valid number"),
    ):
        status, answer = answered("m", wrong)
        assert (status, answer["code"]) == (422, "field")
        assert said in answer["error"]
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    schema = paths[f"/v2/models/m/{end}"]["post"]["requestBody"]["content"]["application/json"]
    jsonschema.validate({"data": [1, 2], "scale": 0.5, "id": "a"}, schema["schema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"data": "text"}, schema["schema"])


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ({"backend": "ServeJsonProduct"}, {"application/json"}),
        ({"backend": "ServeJsonScaled"}, {"application/json"}),
        (
            {"config": {"backend": "ServeJsonRepr"}, "request": {"data": "any"}},
            {"application/json"},
        ),
        ({"backend": "ServeJsonRepr"}, {"application/octet-stream", "multipart/form-data"}),
    ],
)
def test_the_description_has_the_bodies_that_a_model_takes(serving, model, kinds):
    server = serving({"m": model})
    post = httpx.get(f"{server.url}/openapi.json").json()["paths"]["/run/m"]["post"]
    assert set(post["requestBody"]["content"]) == kinds
    assert {"415", "501"} <= set(post["responses"])


def test_another_media_type_than_json_is_bytes_where_keys_are_declared_too(serving):
    server = serving({"m": {"backend": "ServeJsonScaled"}})
    assert httpx.post(f"{server.url}/run/m", content=b"[1]").json() == {"result": sum(b"[1]")}
    headers = {"content-type": "application/json; charset=utf-8"}
    answer = httpx.post(f"{server.url}/run/m", content=b'{"data": [2]}', headers=headers)
    assert answer.json() == {"result": 2}
    assert httpx.post(f"{server.url}/run/m", content=b"{", headers=headers).status_code == 400


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("kind", [FORM, "Application/X-WWW-Form-Urlencoded; charset=utf-8"])
@pytest.mark.parametrize("body", [b'{"data": [1, 2]}', b" \n[1, 2]", b"{}"])
def test_json_that_is_sent_as_a_form_to_a_model_with_fields_is_told_its_type(serving, kind, body):
    server = serving({"m": {"backend": "ServeJsonScaled"}})
    for more in ({}, {"accept": "text/event-stream"}):
        headers = {"content-type": kind, **more}
        answer = httpx.post(f"{server.url}/run/m", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "input")
        assert "curl -H 'Content-Type: application/json'" in answer.json()["error"]


@pytest.mark.parametrize("body", [b"{no", b"[1", b"12", b'"a"', b"", b"\xff\xd8\xff{}"])
def test_what_is_no_object_and_no_list_stays_the_bytes_of_a_file(serving, body):
    server = serving({"m": {"backend": "ServeJsonScaled"}})
    answer = httpx.post(f"{server.url}/run/m", content=body, headers={"content-type": FORM})
    assert answer.json() == {"result": sum(body)}


def test_json_as_a_form_is_bytes_where_the_model_takes_no_fields_or_the_type_says_a_file(serving):
    back = {"config": {"backend": "ServeJsonScaled"}, "body": "bytes"}
    server = serving(
        {"plain": {"backend": "ServeJsonRepr"}, "back": back, "m": {"backend": "ServeJsonScaled"}}
    )

    def post(name, kind):
        headers = {"content-type": kind}
        answer = httpx.post(f"{server.url}/run/{name}", content=b"[1]", headers=headers)
        return answer.json()["result"]

    assert post("plain", FORM) == "b'[1]'"
    assert post("back", FORM) == sum(b"[1]")
    assert post("m", "application/octet-stream") == sum(b"[1]")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_what_the_error_says_to_write_is_answered(serving):
    server = serving({"m": {"backend": "ServeJsonScaled"}})
    curl = ["curl", "-sS", "-d", '{"data": [1, 2]}', f"{server.url}/run/m"]

    def said(*more):
        done = subprocess.run([*curl, *more], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    error = said()["error"]
    (header,) = re.findall(r"curl -H '([^']*)' -d", error)
    assert said("-H", header) == {"result": 3}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"request": {"data": "strr"}}, "'strr' is no type"),
        ({"request": {"data": "list[int"}}, "is no type"),
        ({"request": {"result": "str"}}, "reserved"),
        ({"request": {"data": "int"}, "body": "json"}, "`body` is left out"),
        ({"request": {"data": {"type": "int", "default": "x"}}}, "valid integer"),
        ({"request": {"data": {"typ": "int"}}}, "type"),
        ({"body": "jsn"}, "json"),
    ],
)
def test_a_wrong_declaration_is_an_error_of_the_start(more, said):
    with pytest.raises(ConfigError, match=said):
        Server({"m": {"config": {"backend": "ServeJsonRepr"}, **more}}, port=0)


def test_the_serving_file_of_the_page(serving, tmp_path):
    (tmp_path / "serve.toml").write_text(Page("plugins/serve/README.md").block("toml", ".request]"))
    (tmp_path / "iris.toml").write_text('backend = "ServeJsonToldKeys"')
    server = serving(read_models([], str(tmp_path / "serve.toml")))
    found = run(server, {"data": [5.1, 3]}, "iris").json()["result"]
    assert found == {"data": ["list", [5.1, 3.0]], "scale": ["float", 1.0]}


NUMBERS = [2**63, 2**64 - 1, 2**64, 2**64 + 1, 10**30 + 7, -(2**63) - 1, 1234567890123456789]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "byte order mark"])
@pytest.mark.parametrize("name", ["body", "field"])
def test_json_is_read_exactly_and_with_a_byte_order_mark(serving, name, mark):
    model = {"config": {"backend": "ServeJsonRepr"}}
    more = {"body": {"body": "json"}, "field": {"request": {"data": "any"}}}
    server = serving({"m": {**model, **more[name]}})
    headers = {"content-type": "application/json"}
    for value in (
        "[" * 300,
        *NUMBERS,
        [1.5, *NUMBERS],
        {"a": 0.12345678901234567890123, "b": "12345678901234567890123"},
    ):
        body = json.dumps({"data": value} if name == "field" else value).encode()
        answer = httpx.post(f"{server.url}/run/m", content=mark + body, headers=headers)
        assert answer.json() == {"result": repr(value)}


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "1e400", '"\\ud800"', "9" * 400, "9" * 5000, "[1,]"]
)
def test_what_is_no_i_json_is_refused_by_each_reader(serving, text):
    own = {"config": {"backend": "ServeJsonRepr"}}
    server = serving(
        {"body": {**own, "body": "json"}, "field": {**own, "request": {"data": "any"}}, "p": own}
    )
    one = '{"name":"data","datatype":"BYTES","shape":[1],"data":["x"]}'
    for path, body in (
        ("/run/body", text),
        ("/run/field", f'{{"data":{text}}}'),
        ("/v2/models/p/infer", f'{{"inputs":[{one}],"parameters":{{"n":{text}}}}}'),
        ("/v2/models/p/generate", f'{{"data":"x","n":{text}}}'),
        ("/v2/models/field/generate", f'{{"data":{text}}}'),
    ):
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{server.url}{path}", content=body, headers=headers)
        assert (path, answer.status_code, answer.json()["code"]) == (path, 400, "input")
        assert answer.json()["error"].startswith("the body is no JSON: ")


@pytest.mark.parametrize("depth", [201, 600, 985, 1000, 1023])
@pytest.mark.parametrize("begin", ["[", '{"a]\\\\\\"":'])
def test_what_is_nested_too_deep_is_refused_by_each_reader(serving, begin, depth):
    own = {"config": {"backend": "ServeJsonRepr"}}
    server = serving(
        {"body": {**own, "body": "json"}, "field": {**own, "request": {"data": "any"}}, "p": own},
        apis=["openai"],
    )
    end = "]" if begin == "[" else "}"
    one = '"name":"data","datatype":"BYTES","shape":[1]'
    headers = {"content-type": "application/json"}

    def ask(path, body, deep):
        text = begin * deep + "1" + end * deep
        return httpx.post(f"{server.url}{path}", content=body % text, headers=headers)

    for path, body, outside in (
        ("/run/body", "%s", 0),
        ("/run/field", '{"data":%s}', 1),
        ("/v2/models/p/infer", f'{{"inputs":[{{{one},"data":%s}}]}}', 3),
        ("/v2/models/p/infer", '{"inputs":[{"name":%s}]}', 3),
        ("/v2/models/p/infer", f'{{"inputs":[{{{one},"data":["x"]}}],"parameters":{{"timeout":%s}}}}', 2),
        ("/v2/models/p/generate", '{"data":"x","n":%s}', 1),
        ("/v2/repository/index", '{"ready":%s}', 1),
        ("/v1/embeddings", '{"model":%s}', 1),
        ("/v1/embeddings", '{"model":"p","input":%s}', 1),
        ("/v1/chat/completions", '{"model":"field","messages":[{"content":%s}]}', 3),
    ):  # fmt: skip
        answer = ask(path, body, depth - outside)
        told = f':"the body: expected at most 200 lists and objects inside each other, got {depth}"'
        assert (path, answer.status_code, told in answer.text) == (path, 400, True)
        assert "inside each other" not in ask(path, body, 200 - outside).text


def test_fields_of_generate_and_parameters_are_exact(serving):
    class Given(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                request["result"] = repr([request["data"], request["context"]["parameters"]["n"]])

    headrace.register("ServeJsonGiven", Given, replace=True)
    server = serving({"m": {"config": {"backend": "ServeJsonGiven"}, "request": {"data": "int"}}})
    for number in NUMBERS:
        answer = httpx.post(
            f"{server.url}/v2/models/m/generate", json={"data": number, "n": -number}
        )
        assert answer.json()["result"] == repr([number, -number])
