"""Ten thousand raw requests, most of them wrong: none has a second meaning, none gets a 500, and every answer says nosniff."""

import random
import runpy
import socket
from pathlib import Path

import h11
import pytest

from headrace_serve import Server

changed_bytes = runpy.run_path(str(Path(__file__).with_name("mutations.py")))["changed_bytes"]
COUNT = 10_000
BODY = b'{"inputs": [{"name": "data", "shape": [1], "datatype": "BYTES", "data": ["ab"]}]}'
INNER = b"GET /inner HTTP/1.1\r\nHost: localhost\r\n\r\n"
TARGETS = (
    *(b"/run/size", b"/v2/models/size/infer", b"/v2/models/size", b"/v2", b"/metrics", b"/openapi.json", b"/docs"),
    *(b"/run/size?timeout=1", b"/run/none", b"//", b"/..%2f", b"*", b"http://localhost/v2", b"http://localhost"),
)  # fmt: skip
METHODS = (b"POST", b"POST", b"POST", b"GET", b"HEAD", b"OPTIONS", b"PUT", b"CONNECT", b"TRACE")
HEADERS = (
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding: gzip, chunked"),
    *(b"Content-Length: 5", b"Content-Length: +5", b"Content-Length: 5, 5", b"Content-Length: 0x5", b"Content-Length: -1"),
    *(b"Expect: 100-continue", b"Connection: close", b"Connection: Host", b"Connection: keep-alive, TE", b"Upgrade: h2c"),
    *(b"Accept: text/html", b"Accept: */*;q=0.1, text/event-stream", b"Accept-Encoding: gzip, *;q=0", b"Content-Encoding: gzip"),
    *(b"Origin: null", b"Origin: http://evil.example", b"Sec-Fetch-Site: cross-site", b"Host: evil.example", b"Host: localhost"),
    *(b"X-Request-Id: a", b"X: a\r\n folded: b", b"Content-Type: multipart/form-data; boundary=b", b"Content-Type: text/plain"),
)  # fmt: skip


def chunked(data):
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


def made(chance):
    """Return the bytes that one client sends."""
    body = chance.choice((BODY, b"", INNER, chunked(BODY), chunked(INNER), b"0\r\n\r\n" + INNER))
    lines = [b"Host: localhost"] * (chance.random() < 0.95)
    lines += [b"Content-Length: %d" % len(body)] * (chance.random() < 0.7)
    lines += chance.sample(HEADERS, chance.choice((0, 1, 1, 2, 3)))
    chance.shuffle(lines)
    version = chance.choice((b"1.1", b"1.1", b"1.1", b"1.0", b"2.0"))
    head = b"%b %b HTTP/%b" % (chance.choice(METHODS), chance.choice(TARGETS), version)
    data = b"\r\n".join([head, *lines, b"", body])
    return changed_bytes(chance, data) if chance.random() < 0.3 else data


def answers(data):
    """Return statuses and headers of the answers in what a server has sent, each with its body left out."""
    found = []
    while data:
        head, ends, data = data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        assert ends, head[:200]
        assert first.startswith(b"HTTP/1.1 "), head[:200]
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        status = int(first.split()[1])
        found.append((status, headers))
        if status in (100, 204, 304):
            continue
        if headers.get(b"transfer-encoding") == b"chunked":
            while size := int(data.partition(b"\r\n")[0], 16):
                data = data.partition(b"\r\n")[2][size + 2 :]
            data = data.partition(b"\r\n\r\n")[2]
        elif b"content-length" in headers:
            data = data[int(headers[b"content-length"]) :]
        else:
            data = b""
    return found


def requests_in(data):
    """Return how many heads of requests another parser finds in what a client sends."""
    parser, count = h11.Connection(h11.SERVER), 0
    parser.receive_data(data)
    try:
        while (event := parser.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
            count += type(event) is h11.Request
            if type(event) is h11.EndOfMessage:
                parser.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                parser.send(h11.EndOfMessage())
                parser.start_next_cycle()
    except h11.RemoteProtocolError as error:
        count += error.error_status_hint == 501  # it knows no coding but chunked
    except h11.LocalProtocolError:
        pass
    return count


@pytest.fixture(scope="module")
def port():
    model = {"backend": "Call(builtins:len)"}
    with Server({"size": model}, port=0) as server:
        yield server.port


def ask(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        received = []
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 20):
                received.append(part)
        except ConnectionError:
            pass
    return b"".join(received)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_none_has_a_second_meaning_and_every_answer_says_nosniff(port, seed, caplog):
    chance = random.Random(seed)
    for _ in range(COUNT // 4):
        data = made(chance)
        got = ask(port, data)
        if b" HEAD " in b" " + data or data.startswith(b"HEAD"):
            continue  # an answer without a body, whose length cannot be told here
        found = answers(got)
        for status, headers in found:
            assert status != 500, data
            assert status == 100 or headers.get(b"x-content-type-options") == b"nosniff", data
        fine = [status for status, _ in found if 200 <= status < 300]
        assert len(fine) <= requests_in(data), (data, found)
    assert "failed in the server" not in caplog.text
