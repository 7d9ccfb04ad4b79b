"""Clients of the page that mean harm: silent, slow, many, or with requests that are none."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading

import pytest

from headrace_formats import page
from headrace_vision import View
from headrace_vision.sinks import view as module

PATIENCE_S = 120
"""Seconds of the machine after which something that must happen has not."""


@pytest.fixture
def view():
    made = View()
    yield made
    made.close()


@pytest.fixture
def connect(view):
    made = []

    def open_one(sent=b""):
        port = int(view.url.rpartition(":")[2].strip("/"))
        made.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
        made[-1].sendall(sent)
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def rest_of(connection):
    """All that comes until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            data += piece
    return data


def answer_to(connection):
    with connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers = http.client.parse_headers(file)
        return status, headers, file.read()


GET = b"GET /ui/state.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_many_silent_connections_hold_few_threads_and_the_page_answers(view, connect):
    before = set(threading.enumerate())
    silent = [connect() for _ in range(400)]
    status, _, body = answer_to(connect(GET))
    assert (status, json.loads(body)["sources"]) == (200, {})
    for one in silent[: 400 - module.MOST_CONNECTIONS]:
        assert rest_of(one) == b""
    begun = [one for one in threading.enumerate() if one not in before]  # in this order
    for one in begun[: -module.MOST_CONNECTIONS]:
        one.join(PATIENCE_S)
        assert not one.is_alive()
    silent[-1].sendall(GET)  # the newest ones are kept
    assert answer_to(silent[-1])[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET", GET[:-2], b"GET / HTTP/1.1\r\nX: " + 70_000 * b"x"])
def test_a_head_that_takes_too_long_is_closed(view, connect, monkeypatch, sent):
    slow = connect(sent)
    monkeypatch.setattr(module, "CONNECTION_S", -1.0)  # as if so much time had passed
    answer = rest_of(slow)
    assert answer == b"" or answer.split()[1] in (b"431", b"400")


def test_closing_the_view_closes_its_connections(connect, view):
    silent = connect()
    view.close()
    assert rest_of(silent) == b""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"CONNECT /run/size HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 501),
        (b"POST /ui/state.json HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n", 501),
        (b"TRACE <script> HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 501),
        (b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", 505),
        (b"<script> HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET /ui/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
    ],
)
def test_what_is_no_request_of_the_page_is_refused_as_text_and_closed(connect, sent, status):
    found, headers, body = answer_to(connect(sent))  # to the end of the connection
    assert (found, headers["Content-Type"]) == (status, "text/plain")
    assert len(body) == int(headers["Content-Length"])
    for name, value in page.SANDBOXED.items():
        assert headers[name] == value
