"""JSON is priced before it is parsed: what it would become counts against the limit of one body, and of all in flight."""

from __future__ import annotations

import gzip
import json
import threading
import tracemalloc
from typing import TypedDict

import httpx
import numpy as np
import orjson
import pytest
from serve_helpers import until

import headrace
from headrace_serve import Limits, Server
from headrace_serve.models.fields import Field, Fields

JSON = {"content-type": "application/json"}
PRICE = 56
"""What the documents say that a separator counts."""


class Numbers(TypedDict):
    data: list[float]
    scale: float


class Sum(headrace.Backend):
    reads = Numbers

    def forward(self, batch):
        for request in batch:
            request["result"] = sum(request["data"]) * request["scale"]


headrace.register("ServePricedSum", Sum)

MODELS = {
    "m": {"backend": "Identity"},
    "sum": {"backend": "ServePricedSum"},
    "any": {"config": {"backend": "Identity"}, "body": "json"},
}
ROUTES = [
    "/v2/models/m/infer", "/v2/models/m/versions/1/infer", "/v2/models/m/generate", "/v2/models/m/generate_stream",
    "/run/sum", "/run/any", "/v2/repository/index", "/v2/repository/models/m/load", "/v2/repository/models/m/unload",
]  # fmt: skip


def priced(text):
    return len(text) + PRICE * sum(text.count(one) for one in (b"[", b"{", b",", b":"))


@pytest.fixture
def post(held_bytes):
    def post(server, path, body, **headers):
        answer = httpx.post(f"{server.url}{path}", content=body, headers={**JSON, **headers})
        assert held_bytes(server) == 0  # whatever the answer is
        return answer

    return post


def of_price(most, unit=b"[]"):
    """Return a text of JSON with the greatest price up to ``most``, and the next one."""
    count = most // (len(unit) + 1 + PRICE * (1 + sum(map(unit.count, (b"[", b"{", b",", b":")))))
    texts = [b'{"id":[' + b",".join([unit] * n) + b"]}" for n in range(count - 3, count + 3)]
    fits = [one for one in texts if priced(one) <= most]
    return fits[-1], texts[len(fits)]


ALLOW = ["repository"]


@pytest.mark.parametrize("unit", [b"[]", b"{}", b"1", b'{"a":1}', b'"a:[{,"'])
def test_one_separator_more_than_the_limit_is_413_on_every_route_that_reads_json(
    serving, unit, post
):
    server = serving(MODELS, allow=ALLOW, limits=Limits(max_json_bytes=100_000))
    fits, over = of_price(100_000, unit)
    for path in ROUTES:
        assert post(server, path, fits).status_code != 413, path
        answer = post(server, path, over)
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large"), path
        assert "--max-json-bytes" in answer.json()["error"]
        for text, refused in ((over, True), (fits, False)):
            packed = post(server, path, gzip.compress(text), **{"content-encoding": "gzip"})
            assert (packed.status_code == 413) == refused, path


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        (Limits(max_json_bytes=2000), True),
        (Limits(max_body_bytes=2000), True),
        (Limits(max_json_bytes=4000, max_body_bytes=4000), False),
    ],
)
def test_json_has_a_limit_of_bytes_of_its_own_and_the_smaller_one_holds(
    serving, limits, refused, post
):
    server = serving(MODELS, allow=ALLOW, limits=limits)
    text = b'{"id":"' + b"x" * 3000 + b'"}'
    for path in ROUTES:
        assert (post(server, path, text).status_code == 413) == refused, path


def test_files_and_binary_tensors_are_no_json(serving, post):
    server = serving(MODELS, limits=Limits(max_json_bytes=2000))
    file = b"[" * 5000
    assert httpx.post(f"{server.url}/run/m", content=file).content == file
    tensor = {
        "name": "data",
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"binary_data_size": 5004},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + np.uint32(5000).tobytes() + file
    length = {"inference-header-content-length": str(len(head))}
    assert post(server, "/v2/models/m/infer", body, **length).status_code == 200
    head = json.dumps({"inputs": [tensor], "id": "," * 30}).encode()
    length = {"inference-header-content-length": str(len(head))}
    assert priced(head) > 2000
    answer = post(server, "/v2/models/m/infer", head + body[-5004:], **length)
    assert answer.status_code == 413


def test_json_of_a_form_is_looked_at_within_the_limit_and_is_else_a_file(serving, post):
    class Files(TypedDict):
        data: bytes

    class Size(headrace.Backend):
        reads = Files

        def forward(self, batch):
            for request in batch:
                request["result"] = len(request["data"])

    headrace.register("ServePricedSize", Size, replace=True)
    server = serving({"size": {"backend": "ServePricedSize"}}, limits=Limits(max_json_bytes=10_000))
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = post(server, "/run/size", b"[" + b"1," * 10 + b"1]", **form)
    assert (answer.status_code, "curl --json" in answer.json()["error"]) == (400, True)
    large = b"[" + b"1," * 1000 + b"1]"
    assert post(server, "/run/size", large, **form).json() == {"result": len(large)}


@pytest.mark.parametrize("path", ["/run/any", "/v2/models/m/generate"])
def test_where_other_requests_take_the_room_the_answer_is_429_and_later_it_is_not(
    serving, gate, path, post
):
    models = {**MODELS, "held": {"config": {"backend": "ServeGate"}, "body": "json"}}
    held, _ = of_price(70_000)
    text = b'{"data":"' + b"," * 800 + b'"}'
    limits = Limits(max_inflight_bytes=100_000)
    server = serving(models, limits=limits)
    url = f"{server.url}/run/held"
    first = threading.Thread(
        target=httpx.post, args=(url,), kwargs={"content": held, "headers": JSON}
    )
    first.start()
    assert gate.entered.wait(30)
    assert server._service._inflight_bytes == priced(held)
    answer = httpx.post(f"{server.url}{path}", content=text, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    until(lambda: server._service._inflight_bytes == priced(held))  # the answer comes before
    gate.open.set()
    first.join()
    assert post(server, path, text).status_code == 200


def test_what_it_counts_is_about_what_its_objects_take():
    """Of the texts that become the most memory; measured by the interpreter itself."""
    for unit in (b"[]", b"1.5", b'"a"', b"123456", b"[[]]"):
        text = b"[" + b",".join([unit] * 20_000) + b"]"
        tracemalloc.start()
        kept = orjson.loads(text)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept
        assert taken < 2 * priced(text), unit


def test_many_unknown_fields_are_told_by_a_few_names(serving, post):
    server = serving(MODELS)
    many = ",".join(f'"k{number}":1' for number in range(200_000))
    answer = post(server, "/run/sum", f'{{"data":[1],"scael":2,{many}}}'.encode())
    assert (answer.status_code, answer.json()["code"]) == (422, "field")
    said = answer.json()["error"]
    assert "'scael': there is no such field. Did you mean 'scale'?" in said
    assert said.endswith("and 199996 more")
    assert len(said) < 1000
    long = post(server, "/run/sum", b'{"' + b"x" * 1_000_000 + b'":1}')
    assert len(long.content) < 1000


@pytest.mark.parametrize("value", ['"x"', "[]", "null"])
def test_many_wrong_values_are_told_by_the_first(serving, value, post):
    server = serving(MODELS)
    text = f'{{"scale":1,"data":[{",".join([value] * 300_000)}]}}'
    answer = post(server, "/run/sum", text.encode())
    assert (answer.status_code, answer.json()["code"]) == (422, "field")
    assert "'data.0': Input should be a valid number" in answer.json()["error"]
    assert len(answer.content) < 1000


def test_many_wrong_values_of_a_dict_are_counted():
    fields = Fields([Field("by", dict[str, float])])
    text = f'{{"by":{{{",".join(f"{chr(34)}k{one}{chr(34)}:null" for one in range(5000))}}}}}'
    with pytest.raises(Exception, match="5000 values of the body are wrong"):
        fields.read(text.encode())


def test_a_refused_body_is_not_parsed_for_its_id(serving, post):
    server = serving(MODELS, limits=Limits(max_json_bytes=1000))
    body = b'{"id":"mine","inputs":[' + b",".join([b"[]"] * 100) + b"]}"
    assert post(server, "/v2/models/m/infer", body).json()["id"] == ""
    assert post(server, "/v2/models/m/infer", b'{"id":"mine","inputs":1}').json()["id"] == "mine"


def test_the_limit_is_a_number_above_zero():
    for wrong in (0, -1, 1.5, float("inf")):
        with pytest.raises(ValueError, match="max_json_bytes"):
            Server({"m": {"backend": "Identity"}}, limits=Limits(max_json_bytes=wrong))
