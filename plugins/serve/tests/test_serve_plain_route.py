"""``POST /run/{model}``: keys of the query, and several files with an outcome each."""

from __future__ import annotations

import dataclasses
import enum
import logging
import socket
import threading

import httpx
import numpy as np
import pydantic
import pytest

import headrace
from headrace.errors import InputError
from headrace_serve import Server


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

ANY, JSON, TEXT = "application/octet-stream", "application/json", "text/plain"
RESULTS_GIVEN = []


@pytest.fixture(scope="module")
def told():
    with Server({"m": {"backend": "ServeTold"}}, port=0) as made:
        yield made


@pytest.fixture(scope="module")
def giving():
    """Let the model ``m`` of a server give a result from now on; return the server."""
    headrace.register("ServeGives", lambda data: RESULTS_GIVEN[-1])
    with Server({"m": {"backend": "ServeGives"}}, port=0) as made:
        yield lambda result: RESULTS_GIVEN.append(result) or made


INPUTS = {
    "image": {"datatype": "BYTES", "shape": [-1], "key": "data"},
    "score": {"datatype": "FP32", "shape": [1]},
    "count": {"datatype": "INT8", "shape": []},
    "flip": {"datatype": "BOOL", "shape": [1]},
    "word": {"datatype": "BYTES", "shape": [1], "each": False},
}


def test_other_keys_of_the_query_are_keys_of_the_request(told):
    url = f"{told.url}/run/m?color=rgb&label=a%20b&timeout=60000000"
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
    lines = [one.getMessage() for one in caplog.records if one.name == "headrace.serve.access"]
    assert ["id='r7'" in line for line in lines] == [True] * 3


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


@pytest.mark.parametrize(
    "query", ["data=1", "result=1", "node_name=main", "request_size=5", "context=1", "a-b=1",
              "timeout=x", "timeout=%D9%A3", "priority=-1", "color=a&color=b", "restart=main",
              "&".join(f"k{n}=1" for n in range(101))],
)  # fmt: skip
def test_keys_that_are_not_the_clients_are_refused(told, query):
    assert httpx.post(f"{told.url}/run/m?{query}", content=b"x").status_code == 400


@pytest.mark.parametrize(
    ("query", "said"),
    [("timeout=0.5", "parameter 'timeout': expected a whole number of microseconds, got 0.5"),
     ("priority=low", "parameter 'priority': expected a whole number, got low"),
     ("node_name=a", "parameter 'node_name': expected timeout, priority, or a key that a client may set")],
)  # fmt: skip
def test_a_refused_key_is_told_with_what_may_stand_there(told, query, said):
    error = httpx.post(f"{told.url}/run/m?{query}", content=b"x").json()["error"]
    assert error.startswith(said)


@pytest.mark.parametrize(
    ("timeout", "told"), [("2", "2 microseconds"), ("1500", "1,500 microseconds")]
)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_who_allows_too_little_time_is_told_the_unit(serving, timeout, told, accept):
    held = threading.Event()
    headrace.register("ServeHeld", lambda body: (held.wait(30), body)[1])
    server = serving({"m": {"backend": "ServeHeld"}})
    url = f"{server.url}/run/m?timeout={timeout}"
    try:
        answer = httpx.post(url, content=b"x", headers={"accept": accept})
    finally:
        held.set()
    assert "timeout was " + told in answer.text
    assert "a second is timeout=1000000" in answer.text
    assert '"code":"deadline"' in answer.text


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
def test_results_are_json_or_an_error_that_says_why(giving, name):
    result, status, wanted = RESULTS[name]
    server = giving(result)
    answer = httpx.post(f"{server.url}/run/m", content=b"x", headers={"accept": JSON})
    assert answer.status_code == status
    if status == 200:
        assert answer.json() == {"result": wanted}
    else:
        assert wanted in answer.json()["error"]


PNG = b"\x89PNG\r\n\x1a\n"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("result", "accept", "kind"),  # "? ": an error that says what to accept
    [
        (b"text", "*/*", ANY),
        (b"text", "", ANY),
        (b"text", BROWSER, ANY),
        (b"text", "application/json;q=0.5, */*;q=0.6", ANY),
        (b"text", "image/jpeg;q=0.5, application/json", JSON),
        (b"text", "application/json;q=0, text/plain", TEXT),
        (b"text", "application/json;q=0, application/*", ANY),
        (b"text", '""/a, text', f"? {ANY} or {JSON} or {TEXT}"),
        (b"<b>", "text/html", f"? {ANY} or {JSON} or {TEXT}"),
        (b"\xff", "application/octet-stream, */*;q=0.1", ANY),
        (b"\xff", "*/*", ANY),
        (b"\xff", "application/json", "? "),
        (b"\xff", "image/*", f"? {ANY} or {JSON} or {TEXT}"),
        ("text", "*/*", JSON),
        ("text", "application/json;q=0", f"? {JSON} or {TEXT}"),
        ("<b>", "text/html, application/xml;q=0.9, */*;q=0.8", JSON),
        ("<b>", "text/html", f"? {JSON} or {TEXT}"),
        ("text", "text/*, application/json;q=0.5", TEXT),
        ("text", "text/*", TEXT),
        ("text", "application/*;q=0.5, text/plain;q=0.4", JSON),
        (7, "image/jpeg, */*;q=0.1", JSON),
        (7, "image/jpeg", f"? {JSON}"),
        (PNG, "*/*", "image/png"),
        (PNG, "image/*;q=0.5, application/json", "image/png"),
        (PNG, "image/jpeg", f"? image/png or {ANY}"),
        (PNG, "application/octet-stream", ANY),
        (PNG, "", "image/png"),
        (PNG, "application/json", f"? image/png or {ANY}"),
        (b"RIFF\xff   WEBP", "image/webp, image/jpeg", "image/webp"),
    ],
)
def test_accept_chooses_between_json_and_the_bytes(giving, result, accept, kind):
    server = giving(result)
    answer = httpx.post(f"{server.url}/run/m", content=b"x", headers={"accept": accept})
    if kind.startswith("? "):
        assert (answer.status_code, answer.json()["code"]) == (400, "input")
        assert answer.json()["error"].endswith(
            (f": expected {kind[2:]}", "for application/octet-stream.")
        )
        return
    assert answer.headers["content-type"] == kind
    if kind == JSON:
        wanted = result if isinstance(result, (int, str)) else result.decode()
        assert answer.json() == {"result": wanted}
    else:
        assert answer.content == (result if isinstance(result, bytes) else result.encode())


@pytest.mark.parametrize("content", [b"text", b"\xff", b"", b"0\0", b'{"a": 1}', "ü".encode()])
@pytest.mark.parametrize("said", [{}, {"result": {"datatype": "BYTES", "shape": [-1]}}])
def test_bytes_are_sent_as_they_are_whatever_they_hold(serving, content, said):
    server = serving(
        {"m": {"config": {"backend": "Identity"}, **({"outputs": said} if said else {})}}
    )
    for accept in ("*/*", "", BROWSER, "application/json, text/plain, */*"):
        answer = httpx.post(f"{server.url}/run/m", content=content, headers={"accept": accept})
        assert (answer.content, answer.headers["content-type"]) == (content, ANY)
    as_json = httpx.post(f"{server.url}/run/m", content=content, headers={"accept": JSON})
    assert as_json.status_code == (400 if content == b"\xff" else 200)


ONE = {"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}


@pytest.mark.parametrize(
    "result",
    ["\ud800", ["a", "b\udc80"], {"a": "\udfff"}, float("nan"), {"a": [float("inf")]},
     np.float32([np.nan]), {1: "a", "1": "b"}, [{"in": {None: 1, "null": 2}}]],
    ids=repr,
)  # fmt: skip
def test_a_result_without_a_form_gets_the_same_answer_on_both_routes(giving, result):
    server = giving(result)
    answers = [
        httpx.post(f"{server.url}/run/m", content=b"x"),
        httpx.post(f"{server.url}/v2/models/m/infer", json=ONE),
        httpx.post(f"{server.url}/v2/models/m/generate", json={"data": "x"}),
    ]
    assert [(one.status_code, one.json()["code"]) for one in answers] == [(500, "contract")] * 3
    if result == "\ud800":
        asked = {"accept": TEXT}
        assert httpx.post(f"{server.url}/run/m", content=b"x", headers=asked).status_code == 500
        binary = {**ONE, "parameters": {"binary_data_output": True}}
        assert httpx.post(f"{server.url}/v2/models/m/infer", json=binary).status_code == 500


def part(head, content=b"four", boundary=b"B"):
    return b"--" + boundary + b"\r\n" + head + b"\r\n\r\n" + content + b"\r\n"


FIELD = b'Content-Disposition: form-data; name="color"'
FILE = b'Content-Disposition: form-data; name="file"; filename="a.jpg"\r\nContent-Type: image/jpeg'
UNCHOSEN = b'Content-Disposition: form-data; name="other"; filename=""\r\nContent-Type: application/octet-stream'
GOT = {"data": "four", "color": "rgb"}


@pytest.mark.parametrize(
    "body",
    [
        part(FIELD, b"rgb") + part(FILE) + b"--B--\r\n",
        part(FILE) + part(FIELD, b"rgb") + b"--B--",  # in the other order, without a last end of a line
        b"A preamble,\r\n--which is to be ignored.\r\n" + part(FIELD, b"rgb") + part(FILE) + b"--B--\r\n",
        b"\r\n" + part(FIELD, b"rgb") + part(FILE) + b"--B--\r\nAn epilogue, too.\r\n--B\r\n",
        (part(FIELD, b"rgb") + part(FILE)).replace(b"--B\r\n", b"--B \t \r\n") + b"--B-- \t\r\n",
        part(FIELD, b"rgb") + part(UNCHOSEN, b"") + part(FILE) + b"--B--\r\n",
        (part(FIELD, b"rgb") + part(FILE)).replace(b"Content-Disp", b"content-DISP") + b"--B--\r\n",
    ],
    ids=["field first", "file first", "preamble", "epilogue", "blanks", "no file chosen", "case"],
)  # fmt: skip
def test_a_form_is_a_file_with_parameters(told, body):
    kind = {"content-type": "multipart/form-data; boundary=B"}
    answer = httpx.post(f"{told.url}/run/m", content=body, headers=kind)
    assert answer.json() == {"outcomes": [{"name": "a.jpg", "result": GOT}]}


def test_fields_of_a_form_mean_what_those_of_the_query_do(serving):
    models = {"m": {"config": {"backend": "ServeTold"}, "inputs": INPUTS}}
    server = serving(models)
    good = {"score": "0.5", "count": "-7", "flip": "true", "word": "é", "request_id": "r1"}
    files = [("image", ("a", b"x")), ("image", ("b", b"y"))]
    answer = httpx.post(f"{server.url}/run/m", data=good, files=files)
    told = {"score": [0.5], "count": -7, "flip": [True], "word": ["é"], "request_id": "r1"}
    assert [one["result"] for one in answer.json()["outcomes"]] == [
        {"data": "x", **told}, {"data": "y", **told}
    ]  # fmt: skip
    for wrong, said in (
        ({"count": "200"}, "'count'"), ({"timeout": "x"}, "'timeout'"), ({"image": "x"}, "'image'"), ({"a-b": "1"}, "'a-b'"),
    ):  # fmt: skip
        answer = httpx.post(f"{server.url}/run/m", data={**good, **wrong}, files=files)
        assert (answer.status_code, answer.json()["code"]) == (400, "input")
        assert said in answer.json()["error"]
    answer = httpx.post(f"{server.url}/run/m?word=a", data=good, files=files)
    assert answer.json()["error"].startswith("parameter 'word' is there twice")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (part(FIELD, b"rgb") + b"--B--", "no file"),
        (part(UNCHOSEN, b"") + b"--B--", "no file"),
        (part(FIELD, b"rgb") * 2 + part(FILE) + b"--B--", "'color' is there twice"),
        (part(FIELD, b"\xff") + part(FILE) + b"--B--", "no UTF-8"),
        (part(b"no colon") + b"--B--", "a header of a part has no name"),
        (part(FILE + b"\r\nContent-Transfer-Encoding: base64") + b"--B--", "binary"),
        (part(FILE + b"\r\nX: " + b"x" * 20_000) + b"--B--", "too long"),
        (part(UNCHOSEN, b"") * 5000 + part(FILE) + b"--B--", "parts"),
        (b"".join(part(FIELD.replace(b"color", b"k%d" % n)) for n in range(101)) + part(FILE) + b"--B--", "100 fields"),
        (part(FILE).replace(b"--B", b"--Bx") + b"--B--", "end of its headers"),
        (part(FILE).replace(b"\r\n", b"\n") + b"--B--", "last boundary"),
    ],
)  # fmt: skip
def test_a_form_that_is_none_is_refused(told, body, said):
    kind = {"content-type": "multipart/form-data; boundary=B"}
    answer = httpx.post(f"{told.url}/run/m", content=body, headers=kind)
    assert (answer.status_code, answer.json()["code"]) == (400, "input")
    assert said in answer.json()["error"]


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
    assert received.index(b"\r\n\r\nABC") < received.index(b"\r\n\r\nDE")


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
