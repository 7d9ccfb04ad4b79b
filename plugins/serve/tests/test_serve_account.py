"""What one request may make the server hold, and which threads it may take: answers, shared fields, dumps, pages of other sites."""

from __future__ import annotations

import socket
import threading
from typing import ClassVar

import httpx
import numpy as np
import pytest

import headrace
from headrace_serve import Limits

BIG = 4_000_000


def until(condition):
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came so")


def test_answers_that_clients_do_not_take_leave_room_for_others(serving):
    headrace.register(
        "AccountBig", lambda data: b"x" * (BIG if data == b"big" else 1), replace=True
    )
    models = {"m": {"backend": "AccountBig"}}
    server = serving(models, limits=Limits(max_inflight_bytes=2 * BIG, max_body_bytes=1000))
    sent = b"POST /run/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nbig"
    clients = []
    for _ in range(6):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((server.host, server.port))
        client.sendall(sent)
        clients.append(client)
    statuses = sorted(one.recv(12)[9:] for one in clients)
    assert statuses == [b"200"] + [b"429"] * 5
    assert server._service.unsent_bytes <= 2 * BIG
    for one in clients:
        one.close()
    until(lambda: server._service.unsent_bytes == 0)
    assert httpx.post(f"{server.url}/run/m", content=b"big").status_code == 200


def test_a_connection_that_takes_nothing_gets_no_further_answer(serving):
    """Its pipelined requests wait, and are answered in order once it reads."""
    headrace.register("AccountEach", lambda data: data * 200_000, replace=True)
    server = serving({"m": {"backend": "AccountEach"}}, limits=Limits(max_inflight_bytes=8_000_000))
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((server.host, server.port))
    head = b"POST /run/m HTTP/1.1\r\nHost: localhost\r\nAccept: application/octet-stream\r\nContent-Length: 10\r\n\r\n"
    for n in range(10):
        client.sendall(head + b"%d" % n * 10)
    until(lambda: server._service.unsent_bytes > 1_000_000)
    assert server._service.unsent_bytes < 4_100_000
    for n in range(10):
        found = b""
        while b"\r\n\r\n" not in found:
            found += client.recv(65536)
        assert found.startswith(b"HTTP/1.1 200")
        body = found.partition(b"\r\n\r\n")[2]
        while len(body) < 2_000_000:
            body += client.recv(min(65536, 2_000_000 - len(body)))
        assert body == b"%d" % n * 2_000_000
    client.close()


class AccountUser(headrace.Backend):
    """Gives a vector, and keeps the fields of its requests."""

    max = 64
    seen: ClassVar[list] = []

    def forward(self, batch):
        for request in batch:
            type(self).seen.append(request.get("user"))
            request["result"] = np.array([len(request["data"])], np.float32)


def test_a_field_beside_input_is_read_once(serving):
    headrace.register("AccountUser", AccountUser, replace=True)
    fields = {"data": {"type": "str"}, "user": {"type": "str"}}
    server = serving(
        {"m": {"config": {"backend": "AccountUser"}, "request": fields}}, apis=["openai"]
    )
    AccountUser.seen.clear()
    body = {"model": "m", "input": ["a", "bb", "ccc"], "user": "u" * 1000}
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body).json()
    assert [one["embedding"] for one in answer["data"]] == [[1.0], [2.0], [3.0]]
    assert len({id(one) for one in AccountUser.seen}) == 1
    wrong = {**body, "input": ["a", "b"], "user": 5}
    assert (
        "'user'" in httpx.post(f"{server.url}/v1/embeddings", json=wrong).json()["error"]["message"]
    )


CROSS = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/m", 403), ("/v2/models/m/config", 403), ("/v2/models/stats", 403), ("/metrics", 403),
        ("/v2/memory", 403), ("/v1/models", 403), ("/v2", 200), ("/docs", 200), ("/openapi.json", 200),
        ("/v2/health/ready", 200), ("/v2/models/m/ready", 200),
    ],
)  # fmt: skip
def test_a_page_of_another_site_makes_the_server_do_nothing(serving, path, status):
    server = serving({"m": {"backend": "Identity"}}, apis=["openai"])
    assert httpx.get(server.url + path, headers=CROSS).status_code == status
    allowed = serving(
        {"m": {"backend": "Identity"}}, cors_origins=[CROSS["Origin"]], apis=["openai"]
    )
    assert httpx.get(allowed.url + path, headers=CROSS).status_code != 403


def test_one_request_at_a_time_reads_what_is_remembered(serving):
    config = {"global": {"probes": ["Remember"]}, "m": {"backend": "Identity"}}
    server = serving({"m": config})
    assert httpx.post(f"{server.url}/run/m", content=b"a").status_code == 200
    answers: list[int] = []

    def ask():
        answers.append(httpx.get(f"{server.url}/v2/memory", timeout=60).status_code)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert set(answers) <= {200, 429}
    assert 200 in answers
    assert httpx.get(f"{server.url}/v2/memory").status_code == 200
