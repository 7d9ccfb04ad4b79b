"""Connections: what counts against their limit, how a refusal reaches its client, and who ends only one side of one."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading

import httpx
import pytest
from serve_helpers import until

import headrace
import headrace_serve
from headrace_serve import Limits, Tls

IDENTITY = {"backend": "Identity"}
HEAD = "POST /run/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
WHOLE = HEAD.encode() + b"\r\nabc"


def dial(server, sent=b""):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(sent)
    return connection


def rest(connection):
    return b"".join(iter(lambda: connection.recv(65536), b""))


def answers(got):
    """Return status and body of each answer in some bytes, by the standard library."""
    found = []
    while got:
        head, _, got = got.partition(b"\r\n\r\n")
        size = int(re.search(rb"content-length: (\d+)", head)[1])
        found.append((int(head.split()[1]), got[:size]))
        got = got[size:]
    return found


def refused(server):
    return server._service.counters.requests.get(("other", "", "503"), 0)


def test_who_is_refused_for_too_many_connections_reads_so_whenever_it_sends(serving):
    server = serving({"m": IDENTITY}, limits=Limits(max_connections=1))
    with dial(server, WHOLE) as first:
        assert first.recv(65536)
        for count in range(1, 6):
            asked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            asked.connect()
            until(lambda: len(server._state.connections) == 2)  # it was accepted, and sends later
            asked.request("POST", "/run/m", b"abc")
            answer = asked.getresponse()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.read()
            asked.close()
            until(lambda: len(server._state.connections) == 1)
            assert refused(server) == count
        with dial(server) as silent:
            assert answers(rest(silent))[0][0] == 503
        first.sendall(WHOLE)  # the one that was there is served on
        assert first.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_refused_upload_that_goes_on_does_not_lose_its_answer(serving):
    """RFC 9112, section 9.6: a server that closes with unread bytes resets the connection, and the answer is lost."""
    server = serving({"m": IDENTITY})
    with dial(server, b"no HTTP\r\n") as one:
        until(lambda: server._service.counters.requests)
        for _ in range(20):
            one.sendall(b"x" * 65536)
        assert one.recv(65536).startswith(b"HTTP/1.1 400")


def test_many_silent_clients_beyond_the_limit_take_no_room(serving):
    server = serving({"m": IDENTITY}, limits=Limits(max_connections=2))
    held = [dial(server) for _ in range(300)]
    until(lambda: refused(server) >= 300 - 2 - 64)
    until(lambda: len(server._state.connections) <= 2 + 64)
    for one in held:
        one.close()
    until(lambda: not server._state.connections)
    assert httpx.post(f"{server.url}/run/m", content=b"x").status_code == 200


def test_connections_of_tls_count_before_their_handshake(serving, certificates):
    tls = Tls(str(certificates / "server.pem"), str(certificates / "server.key"))
    server = serving({"m": IDENTITY}, tls=tls, limits=Limits(max_connections=5))
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    silent = [dial(server) for _ in range(5)]
    for count in range(1, 4):
        with dial(server) as beyond:
            assert beyond.recv(1) == b""  # closed, though it has sent nothing
        assert refused(server) == count
    silent.pop().close()
    until(lambda: len(server._ports[0]._begun) == 4)
    assert httpx.post(f"{server.url}/run/m", content=b"x", verify=context).status_code == 200
    for one in silent:
        one.close()


def test_a_handshake_has_the_time_of_a_request(serving, certificates):
    tls = Tls(str(certificates / "server.pem"), str(certificates / "server.key"))
    limits = Limits(max_connections=1, receive_timeout_s=0.05)
    server = serving({"m": IDENTITY}, tls=tls, limits=limits)
    with dial(server) as silent:
        assert silent.recv(1) == b""
    with dial(server, b"\x16\x03\x01") as slow, contextlib.suppress(ConnectionResetError):
        assert slow.recv(1) == b""


def test_a_server_that_ends_waits_for_no_handshake(serving, certificates):
    tls = Tls(str(certificates / "server.pem"), str(certificates / "server.key"))
    server = serving({"m": IDENTITY}, tls=tls)
    with dial(server) as silent:
        until(lambda: server._ports[0]._begun)
        server.close(timeout=60.0)
        assert silent.recv(1) == b""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_server_without_descriptors_says_so_and_goes_on(tmp_path):
    (tmp_path / "m.toml").write_text('backend = "Identity"')
    program = (
        "import resource, sys, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "sys.argv[:] = ['headrace', 'serve', 'm.toml', '--port', '0'];"
        "runpy.run_module('headrace', run_name='__main__')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    port = int(re.search(r":(\d+)", process.stderr.readline())[1])
    held = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(80)]
    assert "Too many open files" in process.stderr.readline()
    for one in held:
        one.close()
    assert httpx.post(f"http://127.0.0.1:{port}/run/m", content=b"x", timeout=60).is_success
    process.terminate()
    assert process.wait(60) == 0
    process.stderr.close()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_who_ends_its_side_gets_the_answer_and_then_the_end(serving, gate, version):
    server = serving({"m": {"backend": "ServeGate"}})
    with dial(server, WHOLE.replace(b"1.1", version.encode())) as one:
        one.shutdown(socket.SHUT_WR)
        assert gate.entered.wait(60)
        assert one.recv(1) == b"H"  # as each answer begins
        gate.open.set()
        assert answers(b"H" + rest(one)) == [(200, b"abc")]


def test_all_whole_requests_of_a_half_closed_connection_are_answered(serving, gate):
    server = serving({"m": {"backend": "ServeGate", "max": 1}})
    for tail in (b"", HEAD.encode()[:20], HEAD.encode() + b"\r\na"):  # no rest of these will come
        gate.entered.clear()
        with dial(server, WHOLE + WHOLE.replace(b"abc", b"def") + tail) as one:
            one.shutdown(socket.SHUT_WR)
            assert gate.entered.wait(60)
            gate.open.set()
            assert [body for _, body in answers(rest(one))] == [b"abc", b"def"]
        gate.open.clear()
    gate.open.set()


@pytest.mark.parametrize("sent", [b"", HEAD.encode(), HEAD.encode() + b"\r\nab"])
def test_half_a_request_of_a_half_closed_connection_is_the_end(serving, sent):
    server = serving({"m": IDENTITY})
    with dial(server, sent) as one:
        one.shutdown(socket.SHUT_WR)
        assert rest(one) == b""


def test_events_go_on_for_who_has_ended_its_side(serving):
    go = threading.Event()

    class Words(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                assert go.wait(60)
                request["result"] = "done"

    headrace.register("ServeWords", Words, replace=True)
    server = serving({"m": {"backend": "ServeWords"}})
    head = HEAD + "Accept: text/event-stream\r\nExpect: 100-continue\r\n\r\n"
    with dial(server, head.encode() + b"abc") as one:
        one.shutdown(socket.SHUT_WR)
        until(lambda: server._state.tasks)
        go.set()
        got = rest(one)
    assert re.findall(rb"HTTP/1\.1 (\d+)", got)[-1] == b"200"
    assert b"event: end\ndata: " in got
    assert got.endswith(b"\r\n0\r\n\r\n")


@pytest.mark.skipif(shutil.which("nc") is None, reason="needs nc")
def test_netcat_gets_its_answer(serving):
    server = serving({"m": IDENTITY})
    command = ["nc", "-N", "127.0.0.1", str(server.port)]
    done = subprocess.run(command, input=WHOLE, capture_output=True, timeout=60, check=False)
    if not done.stderr:  # some have no -N
        assert answers(done.stdout) == [(200, b"abc")]


def test_http_1_0_gets_no_chunks_and_no_100(serving):
    """RFC 9112, section 7.1, and RFC 9110, section 10.1.1."""
    server = serving({"m": IDENTITY})
    head = HEAD.replace("1.1", "1.0") + "Expect: 100-continue\r\n"
    for accept, ends in (
        ("text/event-stream", b'\n\nevent: end\ndata: {"result":"abc"}\n\n'),
        ("*/*", b"abc"),
    ):
        with dial(server, f"{head}Accept: {accept}\r\n\r\nabc".encode()) as one:
            head_of, _, body = rest(one).partition(b"\r\n\r\n")
        assert head_of.startswith(b"HTTP/1.1 200 OK")
        assert b"transfer-encoding" not in head_of.lower()
        assert (b"\n\n" + body).endswith(ends)
        assert not body.startswith((b"HTTP/", b"5", b"2"))


@pytest.mark.parametrize("target", ["http://localhost", "http://localhost?a=b"])
def test_a_whole_url_without_a_path_is_the_root(serving, target):
    """RFC 9112, section 3.2.2, with RFC 9110, section 4.2.3."""
    server = serving({"m": IDENTITY}, ui=True)
    with dial(
        server, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    ) as one:
        assert rest(one).startswith(b"HTTP/1.1 307")


@pytest.mark.parametrize("target", ["localhost:80", "/run/m"])
def test_connect_is_refused_and_the_connection_ends(serving, target):
    server = serving({"m": IDENTITY})
    with dial(server, f"CONNECT {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()) as one:
        one.sendall(b"more of another protocol")
        assert answers(rest(one))[0][0] == 501


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"FOO /run/m HTTP/1.1\r\n\r\n", "method"),
        (b"GET /\xe9 HTTP/1.1\r\n\r\n", "url"),
        (b"POST /run/m HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", "Content-Length"),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding"),
        (b"GET /run/m HTTP/1.1\r\nX: a\0\r\n\r\n", "header"),
        (b"POST /run/m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "chunk"),
    ],
)  # fmt: skip
def test_who_sends_no_http_is_told_what_is_wrong(serving, sent, words):
    with dial(serving({"m": IDENTITY}), sent) as one:
        ((status, body),) = answers(rest(one))
    error = json.loads(body)["error"]
    assert (status, error.startswith("this is no request of HTTP: ")) == (400, True)
    assert words in error


def frame(kind, flags=0, content=b""):
    """Return a frame of HTTP/2 of the whole connection."""
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + bytes(4) + content


def frames(stream):
    """Yield type, flags and content of each frame that comes."""
    while head := stream.read(9):
        yield head[3], head[4], stream.read(int.from_bytes(head[:3], "big"))


def answered(connection, came, sent, kind, content):
    """Send a frame, and wait for the frame that answers it. Return whether it comes before the server goes away."""
    try:
        connection.sendall(sent)
    except OSError:
        return False
    for found, flags, answer in came:
        if found == 7:
            assert b"too_many_pings" in answer
            return False
        if found == kind and flags & 1 and answer == content:
            return True
    return False


@pytest.mark.parametrize(("least_s", "stays"), [(0.001, True), (3600.0, False)])
def test_an_idle_client_of_grpc_may_ping_as_often_as_the_limit_says(least_s, stays):
    """Pings without a call, as a client with keepalive sends them. A hundred exchanges before each take over a millisecond."""
    limits = Limits(grpc_min_ping_interval_s=least_s)
    with (
        headrace_serve.Server(
            {"a": {"backend": "Identity"}}, port=0, grpc_port=0, limits=limits
        ) as server,
        socket.create_connection(("127.0.0.1", server.grpc_port)) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        came, found = frames(stream), []
        for number in range(6):
            found += [answered(connection, came, frame(4), 4, b"") for _ in range(100 * all(found))]
            ping = bytes([number] * 8)
            found.append(all(found) and answered(connection, came, frame(6, 0, ping), 6, ping))
        assert all(found) is stays
