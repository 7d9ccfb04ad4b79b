"""``POST /run/{model}``: keys of the query, and several files with an outcome each."""

from __future__ import annotations

import dataclasses
import enum
import logging
import socket

import httpx
import numpy as np
import pydantic
import pytest

import headrace
from headrace.errors import InputError


def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return [plain(one) for one in value] if isinstance(value, list) else value


class Told(headrace.Backend):
    """Gives what the request has, as JSON."""

    max = None

    def forward(self, batch):
        for request in batch:
            request["result"] = {k: plain(v) for k, v in request.items() if k != "result"}


class Upper(headrace.Backend):
    """Refuses what starts with ``bad``; counts batches."""

    max = None
    sizes: list[int] = []  # noqa: RUF012 - of this test alone

    def forward(self, batch):
        self.sizes.append(len(batch))
        outcomes = []
        for request in batch:
            bad = request["data"].startswith(b"bad")
            outcomes.append(InputError("this is bad") if bad else None)
            if not bad:
                request["result"] = request["data"].upper()
        return outcomes


headrace.register("ServeTold", Told)
headrace.register("ServeUpper", Upper)

INPUTS = {
    "image": {"datatype": "BYTES", "shape": [-1], "key": "data"},
    "score": {"datatype": "FP32", "shape": [1]},
    "count": {"datatype": "INT8", "shape": []},
    "flip": {"datatype": "BOOL", "shape": [1]},
    "word": {"datatype": "BYTES", "shape": [1], "each": False},
}


def test_other_keys_of_the_query_are_keys_of_the_request(serving):
    server = serving({"m": {"backend": "ServeTold"}})
    url = f"{server.url}/run/m?color=rgb&label=a%20b&timeout=60000000"
    assert httpx.post(url, content=b"x").json() == {
        "result": {"data": "x", "color": "rgb", "label": "a b"}
    }


def test_a_request_id_in_the_query_is_the_id_of_the_request(serving, caplog):
    caplog.set_level(logging.INFO, "headrace.serve.access")
    server = serving({"m": {"backend": "ServePicky"}})
    for content, identity in ((b"x", None), (b"bad", "r7"), (b"y", None)):
        answer = httpx.post(f"{server.url}/run/m?request_id=r7", content=content)
        assert answer.json().get("id") == identity
    server.close()  # a line is written after the answer
    assert ["id='r7'" in one.getMessage() for one in caplog.records] == [True] * 3


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/run/m?request_id=r7&timeout=x", {}, 400),
        ("/run/m?request_id=r7", {"content-encoding": "br"}, 415),
        ("/run/nobody?request_id=r7", {}, 404),
    ],
)
def test_a_request_that_is_refused_early_is_answered_with_its_id(serving, path, headers, status):
    server = serving({"m": {"backend": "ServePicky"}})
    answer = httpx.post(f"{server.url}{path}", content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["id"]) == (status, "r7")


def test_a_traceparent_in_the_query_reaches_the_context(serving):
    server = serving({"m": {"backend": "ServeTold"}})
    url = f"{server.url}/run/m?traceparent=00-1-2-01"
    body = httpx.post(url, content=b"x", headers={"traceparent": "00-3-4-01"}).json()["result"]
    assert body == {"data": "x", "context": {"traceparent": "00-1-2-01"}}


@pytest.mark.parametrize(
    "query", ["data=1", "result=1", "node_name=main", "request_size=5", "context=1", "a-b=1",
              "timeout=x", "timeout=%D9%A3", "priority=-1", "color=a&color=b", "restart=main",
              "&".join(f"k{n}=1" for n in range(101))],
)  # fmt: skip
def test_keys_that_are_not_the_clients_are_refused(serving, query):
    server = serving({"m": {"backend": "ServeTold"}})
    assert httpx.post(f"{server.url}/run/m?{query}", content=b"x").status_code == 400


@pytest.mark.parametrize(
    ("query", "said"),
    [("timeout=0.5", "query parameter 'timeout': expected a whole number of microseconds, got 0.5"),
     ("priority=low", "query parameter 'priority': expected a whole number, got low"),
     ("node_name=a", "query parameter 'node_name': expected timeout, priority, or a key that a client may set")],
)  # fmt: skip
def test_a_refused_key_is_told_with_what_may_stand_there(serving, query, said):
    server = serving({"m": {"backend": "ServeTold"}})
    error = httpx.post(f"{server.url}/run/m?{query}", content=b"x").json()["error"]
    assert error.startswith(said)


def test_other_inputs_stand_in_the_query_in_their_types(serving):
    config = {"backend": "ServeTold", "max": 4}
    server = serving({"m": {"config": config, "inputs": INPUTS}})
    url = f"{server.url}/run/m"
    good = {"score": "0.5", "count": "-7", "flip": "true", "word": "é"}
    body = httpx.post(url, params=good, content=b"x").json()["result"]
    assert body == {"data": "x", "score": [0.5], "count": -7, "flip": [True], "word": ["é"]}
    for name, wrong in (("score", "nan"), ("count", "200"), ("count", "1.5"), ("flip", "maybe")):
        answer = httpx.post(url, params={**good, name: wrong}, content=b"x")
        assert answer.status_code == 400
        assert name in answer.json()["error"]
    answer = httpx.post(url, params={"score": "1"}, content=b"x")
    assert "missing" in answer.json()["error"]
    parameters = httpx.get(f"{server.url}/openapi.json").json()["paths"]["/run/m"]["post"]
    kinds = {one["name"]: one["schema"]["type"] for one in parameters["parameters"]}
    assert kinds["flip"] == "boolean"
    assert kinds["score"] == "number"


def test_what_a_backend_does_to_an_input_of_the_query_stays_in_its_request(serving):
    def doubled(request_score):
        request_score *= 2
        return request_score

    headrace.register("ServeDoubled", doubled, replace=True)
    inputs = {
        "image": {"datatype": "BYTES", "shape": [-1], "key": "color"},
        "score": {"datatype": "FP32", "shape": [1], "key": "data"},
    }
    server = serving({"m": {"config": {"backend": "ServeDoubled"}, "inputs": inputs}})
    answers = [httpx.post(f"{server.url}/run/m?score=3", content=b"x") for _ in range(2)]
    assert answers[0].status_code == answers[1].status_code
    assert answers[0].json() == answers[1].json()


def test_several_files_have_an_outcome_each(serving):
    Upper.sizes.clear()
    server = serving({"m": {"backend": "ServeUpper", "max": 8}})
    contents = [b"a", b"bad one", b"\r\n--c\r\n", b""]
    files = [("file", (f"{n}.txt", content)) for n, content in enumerate(contents)]
    answer = httpx.post(f"{server.url}/run/m", files=files)
    assert answer.status_code == 200
    first, second, third, last = answer.json()["outcomes"]
    assert first == {"name": "0.txt", "result": "A"}
    assert (second["name"], second["code"], second["node"]) == ("1.txt", "input", "main")
    assert "this is bad" in second["error"]
    assert third == {"name": "2.txt", "result": "\r\n--C\r\n"}
    assert last == {"name": "3.txt", "result": ""}
    assert sum(Upper.sizes) == 4


@dataclasses.dataclass
class Found:
    kind: enum.Enum
    scores: np.ndarray


class Box(pydantic.BaseModel):
    x1: int


RESULTS = {
    "bytearray": (bytearray(b"ab"), 200, "ab"),
    "view": (memoryview(b"ab"), 200, "ab"),
    "view of numbers": (memoryview(np.float32([[1, 2]])), 200, [[1, 2]]),
    "objects": (
        [Found(enum.Enum("Kind", {"CAT": "cat"}).CAT, np.int32([1])), Box(x1=2)],
        200,
        [{"kind": "cat", "scores": [1]}, {"x1": 2}],
    ),
    "texts": (["a", b"\xc3\xbc"], 200, ["a", "ü"]),
    "bytes": ([b"\xff"], 400, "Accept"),
    "nan": (np.array([np.nan], np.float32), 500, "NaN"),
    "deep": ({"score": float("inf")}, 500, "NaN"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_json_or_an_error_that_says_why(serving, name):
    result, status, wanted = RESULTS[name]
    headrace.register("ServeResult", lambda data: result, replace=True)
    server = serving({"m": {"backend": "ServeResult"}})
    answer = httpx.post(f"{server.url}/run/m", content=b"x")
    assert answer.status_code == status
    if status == 200:
        assert answer.json() == {"result": wanted}
    else:
        assert wanted in answer.json()["error"]


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("result", "accept", "kind"),  # "? ": an error that says what to accept
    [
        (b"\xff", "image/tiff", "application/octet-stream"),
        (b"<b>", "text/html, application/xml;q=0.9, */*;q=0.8", "text/plain"),
        (b"<svg>", "image/svg+xml", "application/octet-stream"),
        (b"<svg>", "application/xhtml+xml", "application/octet-stream"),
        (b"alert()", "text/javascript", "text/plain"),
        (b"a", "multipart/x-mixed-replace", "application/octet-stream"),
        (b"\xff", "image/jpeg", "? application/octet-stream"),
        ("text", "application/json;q=0", "? application/json or text/plain"),
        (b"\xff", "image/webp;q=0.5, image/tiff, */*;q=0.1", "application/octet-stream"),
        (b"\xff", "image/webp;q=0.5, image/jpeg, */*;q=0.1", "application/octet-stream"),
        (b"\xff", "image/*", "application/octet-stream"),
        (b"text", "image/jpeg;q=0.5, application/json", "application/json"),
        (b"text", "application/json;q=0, text/plain", "text/plain"),
        ("<b>", "text/html, application/xml;q=0.9, */*;q=0.8", "application/json"),
        ("<b>", "text/html", "text/plain"),
        ("text", "text/*, application/json;q=0.5", "application/json"),
        ("text", "text/*", "text/plain"),
        (7, "image/jpeg, */*;q=0.1", "application/json"),
        (7, "image/jpeg", "? application/json"),
        (b"text", "application/json;q=0", "? application/json or application/octet-stream"),
        (b"text", '""/a, text', "application/octet-stream"),
        (b"text", "*/*", "application/json"),
        (b"\xff", "*/*", "application/octet-stream"),
        (PNG, "*/*", "image/png"),
        (PNG, "image/*;q=0.5, application/json", "image/png"),
        (PNG, "image/jpeg", "? image/png or application/octet-stream"),
        (PNG, "application/octet-stream", "application/octet-stream"),
        (PNG, "", "image/png"),
        (PNG, "application/json", "? "),
        (b"RIFF\xff   WEBP", "image/webp, image/jpeg", "image/webp"),
    ],
)
def test_accept_chooses_between_json_and_the_bytes(serving, result, accept, kind):
    headrace.register("ServeResult", lambda data: result, replace=True)
    server = serving({"m": {"backend": "ServeResult"}})
    answer = httpx.post(f"{server.url}/run/m", content=b"x", headers={"accept": accept})
    if kind.startswith("? "):
        assert (answer.status_code, answer.json()["code"]) == (400, "input")
        assert answer.json()["error"].endswith((f": expected {kind[2:]}", "octet-stream."))
        return
    assert answer.headers["content-type"] == kind
    if kind == "application/json":
        wanted = result if isinstance(result, (int, str)) else result.decode()
        assert answer.json() == {"result": wanted}
    else:
        assert answer.content == (result if isinstance(result, bytes) else result.encode())


def test_pictures_and_what_refuses_the_encoding_are_not_compressed(serving):
    headrace.register("ServeResult", lambda _: PNG + bytes(2000), replace=True)
    server = serving({"m": {"backend": "ServeResult"}})
    for accept, accepted, encoding in (
        ("image/png", "gzip", None),
        ("application/octet-stream", "gzip", "gzip"),
        ("application/octet-stream", "gzip;q=0.010", "gzip"),
        ("application/octet-stream", "gzip;q=0.000, deflate", "deflate"),
        ("application/octet-stream", "gzip;q=0.00", None),
    ):
        asked = {"accept": accept, "accept-encoding": accepted}
        answer = httpx.post(f"{server.url}/run/m", content=b"x", headers=asked)
        assert answer.content == PNG + bytes(2000)
        assert answer.headers.get("content-encoding") == encoding


def test_the_error_of_the_one_file_names_no_item(serving):
    server = serving({"m": {"backend": "ServeUpper"}})
    answer = httpx.post(f"{server.url}/run/m", content=b"bad")
    assert answer.json()["error"].startswith("this is bad")
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/mixed; boundary=b", b"--b--\r\n"),
        ("multipart/form-data; boundary=b", b"no boundary"),
        ("multipart/form-data; boundary=b", b"--b--\r\n"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nfi"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nfile\r\n--b\r\n"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nfile\r\n--b-"),
    ],
)
def test_a_body_that_is_no_multipart_is_refused(serving, caplog, kind, body):
    server = serving({"m": {"backend": "ServeUpper"}})
    answer = httpx.post(f"{server.url}/run/m", content=body, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["code"]) == (400, "input")
    assert not [one for one in caplog.records if one.name.startswith("python_multipart")]


def test_of_several_inputs_of_bytes_the_one_that_becomes_data_is_the_file(serving):
    inputs = {name: {"datatype": "BYTES", "shape": [-1]} for name in ("color", "data")}
    server = serving({"m": {"config": {"backend": "ServeTold"}, "inputs": inputs}})
    answer = httpx.post(f"{server.url}/run/m?color=rgb", content=b"x")
    assert answer.json() == {"result": {"data": "x", "color": "rgb"}}
    operation = httpx.get(f"{server.url}/openapi.json").json()["paths"]["/run/m"]["post"]
    assert "color" in {one["name"] for one in operation["parameters"]}


def test_text_that_is_no_unicode_is_escaped(serving):
    headrace.register("ServeHalfAPair", lambda _: "\ud800", replace=True)
    server = serving({"m": {"backend": "ServeHalfAPair"}})
    answer = httpx.post(f"{server.url}/run/m", content=b"x")
    assert answer.content == b'{"result":"\\ud800"}'


UPGRADE = b"Connection: Upgrade, HTTP2-Settings, keep-alive\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 3\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
    ],
    ids=["length", "chunked"],
)
@pytest.mark.parametrize("split", [1, 200], ids=["whole", "in pieces"])
def test_a_request_that_asks_for_http2_keeps_its_body(serving, rest, split):
    # As clients of HTTP/2 send it that try it without TLS; the server may ignore that, and does.
    server = serving({"m": {"backend": "ServeUpper", "max": 8}})
    ordinary = b"POST /run/m HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\nde"
    sent = b"POST /run/m HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE + rest + ordinary
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        for k in range(0, len(sent), len(sent) // split):
            connection.sendall(sent[k : k + len(sent) // split])
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200") == 2
    assert received.index(b'{"result":"ABC"}') < received.index(b'{"result":"DE"}')


def test_a_body_in_a_form_that_is_not_read_is_refused_and_none_is_logged_as_a_warning(
    serving, caplog
):
    server = serving({"m": {"backend": "ServeUpper", "max": 8}})
    head = b"POST /run/m HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    packed = head + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    for sent, status in ((packed, b"501"), (b"\x16\x03\x01\x02\x00", b"400")):
        with socket.create_connection((server.host, server.port), timeout=30) as connection:
            connection.sendall(sent)
            received = b"".join(iter(lambda c=connection: c.recv(65536), b""))
        assert received.startswith(b"HTTP/1.1 " + status)
    assert not [one for one in caplog.records if one.levelname == "WARNING"]
