"""Answers in parts over HTTP: events in their order, errors, clients that leave, the end of the server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import socket
import threading

import httpx
import pytest
from serve_helpers import until

import headrace
from headrace.errors import InputError, OverloadedError
from headrace_serve import Limits, asgi
from headrace_serve.admission.memory import MemoryAccount
from headrace_serve.admission.part_bytes import StreamBytes
from headrace_serve.http import events

ACCEPT = {"accept": "text/event-stream"}


def read(response):
    """Yield name and data of each event, and (None, None) for a comment."""
    name = "message"
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])
            name = "message"
        elif line.startswith(":"):
            yield None, None


class Steps(headrace.Backend):
    """Gives what the test puts into `steps`: parts, an exception, or None, the end."""

    steps = queue.Queue()
    begun = threading.Event()
    left = threading.Event()
    rerun = True

    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        (request,) = batch
        self.begun.set()
        while True:
            try:
                step = self.steps.get(timeout=0.01)
            except queue.Empty:
                if self.context.request.unwanted(self.context.request.keep(request)):
                    self.left.set()
                    return
                continue
            if step is None:
                request["result"] = "end"
                return
            if isinstance(step, Exception):
                raise step
            self.context.request.emit(self.context.request.keep(request), step)


@pytest.fixture
def steps():
    Steps.steps, Steps.begun, Steps.left = queue.Queue(), threading.Event(), threading.Event()
    headrace.register("ServePartsAsTold", Steps, replace=True)
    yield Steps.steps
    Steps.steps.put(None)


@headrace.register("ServeWordByWord")
def words(text):
    for word in text.decode().split():
        if word == "bad":
            raise InputError("this word is bad")
        yield word
    return len(text.split())


@pytest.fixture
def served(serving, steps):
    return serving(
        {"words": {"backend": "ServeWordByWord"}, "steps": {"backend": "ServePartsAsTold"}}
    )


def post(server, name="words", content=b"", **more):
    headers = {**ACCEPT, **more}
    return httpx.stream("POST", f"{server.url}/run/{name}", content=content, headers=headers)


def test_each_part_is_an_event_and_the_result_the_last(served):
    with post(served, content=b"one two") as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        found = list(read(response))
    assert found == [
        ("message", {"result": "one"}),
        ("message", {"result": "two"}),
        ("end", {"result": 2}),
    ]


def test_a_part_is_sent_before_the_next_one_exists(served, steps):
    steps.put("a")
    with post(served, "steps") as response:
        found = read(response)
        for one, following in zip("abc", ("b", "c", None), strict=True):
            assert next(found) == ("message", {"result": one})
            steps.put(following)
        assert list(found) == [("end", {"result": "end"})]


def test_a_model_without_parts_gives_its_result_as_the_only_event(serving):
    server = serving({"m": {"backend": "Identity"}})
    with post(server, "m", b"all") as response:
        assert list(read(response)) == [("end", {"result": "all"})]


@pytest.mark.parametrize("origins", [(), ("http://a",)])
def test_the_connection_serves_the_next_request(serving, origins):
    server = serving({"words": {"backend": "ServeWordByWord"}}, cors_origins=origins)
    with httpx.Client(headers={**ACCEPT, **({"origin": origins[0]} if origins else {})}) as client:
        for _ in range(3):
            answer = client.post(f"{server.url}/run/words", content=b"one")
            assert answer.text.count("data: ") == 2
            assert answer.headers.get("access-control-allow-origin") == (*origins, None)[0]
    assert len(server._state.connections) <= 1


def test_who_asks_for_json_gets_the_result_alone(served):
    url = f"{served.url}/run/words"
    for accept in ("*/*", "application/json", "application/json, text/event-stream;q=0.5"):
        answer = httpx.post(url, content=b"one two", headers={"accept": accept})
        assert answer.json() == {"result": 2}


def test_an_error_before_the_first_part_has_its_status(served):
    with post(served, content=b"bad one") as response:
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"
        assert json.loads(response.read())["code"] == "input"


def test_an_error_after_parts_is_an_event_with_code_and_id(served):
    with post(served, content=b"one bad", **{"x-request-id": "mine"}) as response:
        assert response.status_code == 200
        assert response.headers["x-request-id"] == "mine"
        first, (name, error) = read(response)
    assert first == ("message", {"result": "one"})
    assert name == "error"
    assert error["code"] == "input"
    assert error["id"] == "mine"
    assert "this word is bad" in error["error"]


def test_an_unknown_model_and_several_files_have_their_status(served):
    with post(served, "none") as response:
        assert response.status_code == 404
    files = {"a": b"one", "b": b"two"}
    answer = httpx.post(f"{served.url}/run/words", files=files, headers=ACCEPT)
    assert answer.status_code == 400
    assert "several files" in answer.json()["error"]


def test_a_deadline_is_an_event_after_the_parts_that_came(served, steps):
    steps.put("a")
    url = f"{served.url}/run/steps?timeout=2000000"
    with httpx.stream("POST", url, content=b"x", headers=ACCEPT) as response:
        first, (name, error) = read(response)
    assert first == ("message", {"result": "a"})
    assert (name, error["code"]) == ("error", "deadline")
    assert Steps.left.wait(60)


def test_a_client_that_hangs_up_cancels_its_request(served, steps, monkeypatch):
    monkeypatch.setattr(events, "SILENCE_S", 0.01)  # a comment tells that nobody reads
    steps.put("a")
    with post(served, "steps") as response:
        assert ("message", {"result": "a"}) in read(response)
    assert Steps.left.wait(60)
    ended = ("POST /run/{model}", "steps", "disconnected")
    until(lambda: ended in served._service.counters.requests)
    model = served._service.models.find("steps")
    until(lambda: model.inside == 0)


def test_a_comment_is_sent_while_nothing_comes(served, steps, monkeypatch):
    monkeypatch.setattr(events, "SILENCE_S", 0.01)
    with post(served, "steps") as response:
        found = read(response)
        assert [next(found) for _ in range(3)] == [(None, None)] * 3
        steps.put("a")
        while (one := next(found)) == (None, None):
            pass
        assert one == ("message", {"result": "a"})
        steps.put(RuntimeError("it breaks"))
        (error,) = [one for one in found if one != (None, None)]
    assert error[0] == "error"
    assert "it breaks" not in error[1]["error"]


def test_the_end_of_the_server_waits_for_streams(served, steps):
    steps.put("a")
    with post(served, "steps") as response:
        found = read(response)
        assert next(found) == ("message", {"result": "a"})
        thread = threading.Thread(target=served.close, kwargs={"timeout": 600})
        thread.start()
        until(lambda: served._service.draining)
        steps.put("b")
        assert next(found) == ("message", {"result": "b"})
        steps.put(None)
        assert list(found) == [("end", {"result": "end"})]
    thread.join()


def test_a_stream_that_outlasts_the_end_of_the_server_gets_an_error(served, steps):
    steps.put("a")
    with post(served, "steps") as response:
        found = read(response)
        assert next(found) == ("message", {"result": "a"})
        thread = threading.Thread(target=served.close, kwargs={"timeout": 0.05})
        thread.start()
        ((name, error),) = found
        assert (name, error["code"]) == ("error", "closed")
    thread.join()


def test_a_client_that_reads_too_slowly_gets_a_limit_error(served, steps):
    """The parts are larger than the buffers of both sides, so that they wait in the server."""
    with socket.create_connection((served.host, served.port), 60) as client:
        client.sendall(
            b"POST /run/steps HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n"
            b"content-length: 1\r\nconnection: close\r\n\r\na"
        )
        assert Steps.begun.wait(60)
        for _ in range(1400):
            steps.put("a" * 65536)
        assert Steps.left.wait(60)
        got = b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert got.endswith(b"0\r\n\r\n")
    last = got.split(b"event: error\r\n" if b"event: error\r\n" in got else b"event: error\n")[1]
    assert b'"code":"limit"' in last
    assert b"reads too slowly" not in last  # it reveals no more than other errors of a pipeline


ROUTES = [
    ("/run/big", b"100"),
    ("/v2/models/big/generate_stream", b'{"data": "100"}'),
]


@pytest.mark.parametrize(("route", "body"), ROUTES)
def test_parts_that_clients_do_not_take_are_bounded_in_bytes(serving, route, body):
    """A part is larger than what the buffers of a connection hold, so that it waits in the server, or is not made.

    Whether parts wait as they are or in the connection, and how many the system has taken so far, says nothing to others.
    """
    asked = []

    def big(number):
        for index in range(int(number)):
            asked.append(index)
            yield "x" * 1_000_000
        return "end"

    headrace.register("ServeBigParts", big, replace=True)
    limits = Limits(max_inflight_bytes=8_000_000, max_body_bytes=5_000_000)
    server = serving(
        {"big": {"backend": "ServeBigParts"}, "m": {"backend": "Identity"}}, limits=limits
    )
    got = 0
    with httpx.stream("POST", server.url + route, content=body, headers=ACCEPT) as response:
        until(lambda: server._service.part_bytes.held >= 1_000_000)
        other = f"{server.url}/run/m"
        assert httpx.post(other, content=b"a" * 3_000_000).status_code == 200
        until(lambda: server._service.unsent_bytes > 0)
        assert httpx.post(other, content=b"a" * 3_000_000).status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: ") and len(line) > 1_000_000:
                got += 1
                assert len(asked) <= got + 40
    assert got == 100
    assert server._service.part_bytes.held == 0


def test_parts_take_half_of_the_room_wherever_they_wait_and_none_of_answers():
    account = MemoryAccount(Limits(max_inflight_bytes=100))
    stream = StreamBytes(account.part_bytes)
    assert stream.room(b"x" * 30)
    account.note_unsent(0, of_parts=20)
    assert not stream.room(b"")
    account.check_unsent()
    account.check_answer(50)
    account.note_unsent(1)
    with pytest.raises(OverloadedError):
        account.check_answer(50)
    assert account.hold(0, 49) == 49
    with pytest.raises(OverloadedError):
        account.hold(0, 1)


def test_a_generator_that_is_faster_than_its_client_loses_no_part(serving):
    headrace.register("ServeManyParts", lambda n: (yield from range(int(n))), replace=True)
    server = serving({"m": {"backend": "ServeManyParts"}})
    with post(server, "m", b"5000") as response:
        *parts, last = read(response)
    assert [part["result"] for _, part in parts] == [*range(5000)]
    assert last[0] == "end"


def test_keys_hold_for_streams(serving, tmp_path):
    keys = tmp_path / "keys.toml"
    digest = hashlib.sha256(b"the key").hexdigest()
    keys.write_text(f'[one]\nsha256 = "{digest}"\nrights = ["describe"]\n')
    server = serving({"words": {"backend": "ServeWordByWord"}}, keys=keys)
    with post(server, content=b"a") as response:
        assert response.status_code == 401
    with post(server, content=b"a", **{"x-api-key": "the key"}) as response:
        assert response.status_code == 403


def test_streams_are_counted_and_logged_as_other_requests(served, caplog):
    with caplog.at_level("INFO", logger="headrace.serve.access"):
        with post(served, content=b"one two") as response:
            size = len(response.read())
        with post(served, content=b"one bad") as response:
            response.read()
        until(lambda: len(caplog.records) == 2)
    good, bad = (record.fields for record in caplog.records)
    assert (good["status"], good["code"], good["sent_bytes"]) == ("200", None, size)
    assert (bad["status"], bad["code"]) == ("200", "input")
    counts = served._service.models.find("words").counts
    assert (counts.ok, counts.failed) == (1, 1)


def test_another_asgi_server_sends_the_parts_and_tells_that_the_client_left(steps):
    """The messages of ASGI by hand: the client leaves after the first part."""
    application = asgi({"steps": {"backend": "ServePartsAsTold"}})
    sent = []

    async def ask():
        arrived = asyncio.Event()
        bodies = [{"type": "http.request", "body": b"x", "more_body": False}]

        async def receive():
            if bodies:
                return bodies.pop()
            await arrived.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if message.get("body"):
                arrived.set()

        scope = {
            "type": "http", "method": "POST", "path": "/run/steps", "raw_path": b"/run/steps",
            "root_path": "", "query_string": b"", "scheme": "http", "http_version": "1.1",
            "headers": [(b"accept", b"text/event-stream")], "client": None, "server": ("h", 80),
        }  # fmt: skip
        steps.put("a")
        async with application.router.lifespan_context(application):
            await application(scope, receive, send)
            await asyncio.to_thread(Steps.left.wait, 60)

    asyncio.run(ask())
    assert Steps.left.is_set()
    start, first, *rest = sent
    assert start["status"] == 200
    assert first["body"] == b'data: {"result":"a"}\n\n'
    assert rest == []


def test_the_document_of_the_server_says_that_there_are_events(served):
    paths = httpx.get(f"{served.url}/openapi.json").json()["paths"]
    for path in ("/run/words", "/v2/models/words/generate_stream"):
        content = paths[path]["post"]["responses"]["200"]["content"]
        assert "text/event-stream" in content
    body = paths["/v2/models/words/generate"]["post"]["requestBody"]["content"]
    assert "data" in body["application/json"]["schema"]["properties"]


def test_events_hold_no_end_of_a_line_of_unicode(serving):
    """Clients such as httpx split an event there."""

    def odd(data):
        yield "a\u2028b\x85c\u2029d"

    headrace.register("ServeOddEnds", odd, replace=True)
    server = serving({"m": {"backend": "ServeOddEnds"}})
    with httpx.stream(
        "POST", f"{server.url}/run/m", content=b"x", headers={"accept": "text/event-stream"}
    ) as answer:
        found = [json.loads(one[6:]) for one in answer.iter_lines() if one.startswith("data: {")]
    assert found[0] == {"result": "a\u2028b\x85c\u2029d"}
