"""Clients that do not know yet that the server ends: each request gets an answer, or is refused with a reason."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest

import headrace
from headrace_serve.grpc.messages import message
from headrace_serve.operating import draining

POST = b"POST /run/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\na"
FAILS_LATE_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""
SERVICE = "/inference.GRPCInferenceService"


def until(condition):
    poll, fails_at = threading.Event(), time.monotonic() + FAILS_LATE_S
    while not condition():
        assert time.monotonic() < fails_at, "it never came to that"
        poll.wait(0.002)


def request(data):
    made = message("inference.ModelInferRequest")(model_name="m")
    made.inputs.add(name="data", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
    return made.SerializeToString()


@pytest.fixture
def channel():
    opened = []

    def connect(server):
        options = [("grpc.use_local_subchannel_pool", 1)]
        opened.append(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def closing(server):
    thread = threading.Thread(target=server.close, kwargs={"timeout": 600})
    thread.start()
    return thread


def code_of(error):
    return error.code(), dict(error.trailing_metadata()).get("code")


REFUSED = (grpc.StatusCode.UNAVAILABLE, "closed")


def test_connections_in_use_and_new_ones_end_with_an_answer(serving, monkeypatch):
    for name in ("_RECENT_S", "_FIRST_S", "_NEXT_S"):
        monkeypatch.setattr(draining, name, 600.0)
    server = serving({"m": {"backend": "Identity"}})
    used, fresh = (socket.create_connection((server.host, server.port), 30) for _ in range(2))
    used.sendall(POST)
    assert b"connection: close" not in used.recv(65536)
    connections = server._state.connections
    until(lambda: len(connections) == 2)
    thread = closing(server)
    until(lambda: all(one._last is not None for one in connections))
    assert not server._service.ready
    for connection in (used, fresh):
        connection.sendall(POST)
        got = b"".join(iter(lambda c=connection: c.recv(65536), b""))
        assert got.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in got
        assert got.endswith(b"\r\n\r\na")
        connection.close()
    thread.join()


def read_all(connection):
    return b"".join(iter(lambda: connection.recv(65536), b""))


def posts(*data):
    return b"".join(POST[:-1] + one for one in data)


def marked(server):
    """Wait until the server's connections know that it ends."""
    until(lambda: all(one._last is not None for one in server._state.connections))


def assert_answered(got, *data):
    """Each request has its answer, in order, and the last one alone says that the connection ends."""
    heads = got.split(b"HTTP/1.1 ")[1:]
    assert [one.rpartition(b"\r\n\r\n")[2] for one in heads] == [*data]
    assert [one[:3] for one in heads] == [b"200"] * len(data)
    says = [b"connection: close" in one for one in heads]
    assert says == [False] * (len(data) - 1) + [True]


@pytest.fixture
def held(serving, gate):
    """A server, and a connection whose first request is in the pipeline until the gate is open."""
    server = serving({"m": {"backend": "ServeGate"}})
    with socket.create_connection((server.host, server.port), 60) as connection:
        connection.sendall(posts(b"1"))
        assert gate.entered.wait(30)
        yield server, connection


@pytest.mark.parametrize("pieces", [[b"23"], [b"2", b"3"], [b"2", b"3456"], [b"2" * 100]])
def test_requests_behind_the_one_that_is_answered_are_answered_too(held, gate, monkeypatch, pieces):
    server, connection = held
    for one in pieces:
        connection.sendall(posts(*(one[i : i + 1] for i in range(len(one)))))
        until(lambda: next(iter(server._state.connections)).pipeline)
    thread = closing(server)
    until(lambda: server._service.draining)
    until(lambda: next(iter(server._state.connections))._ignores)
    gate.open.set()
    sent = b"1" + b"".join(pieces)
    assert_answered(read_all(connection), *(sent[i : i + 1] for i in range(len(sent))))
    thread.join()


def test_a_request_that_comes_behind_another_one_while_the_server_ends_is_the_last(
    held, gate, monkeypatch
):
    monkeypatch.setattr(draining, "_NEXT_S", 600.0)
    server, connection = held
    thread = closing(server)
    marked(server)
    whole = posts(b"2")
    connection.sendall(whole[:30])
    until(lambda: next(iter(server._state.connections))._incomplete)
    connection.sendall(whole[30:] + posts(b"3"))
    until(lambda: len(next(iter(server._state.connections)).pipeline) == 2)
    gate.open.set()
    assert_answered(read_all(connection), b"1", b"2", b"3")
    thread.join()


def test_a_head_that_comes_in_two_parts_around_the_end_is_the_last(held, gate, monkeypatch):
    monkeypatch.setattr(draining, "_NEXT_S", 600.0)
    server, connection = held
    whole = posts(b"2")
    connection.sendall(whole[:30])
    until(lambda: next(iter(server._state.connections))._incomplete)
    thread = closing(server)
    marked(server)
    gate.open.set()
    assert b"connection: close" not in connection.recv(65536)
    connection.sendall(whole[30:])
    assert_answered(read_all(connection), b"2")
    thread.join()


def test_a_client_that_is_answered_while_the_server_waits_for_others_is_told(
    held, gate, monkeypatch
):
    monkeypatch.setattr(draining, "_FIRST_S", 600.0)
    server, connection = held
    with socket.create_connection((server.host, server.port), 60) as fresh:
        until(lambda: len(server._state.connections) == 2)
        thread = closing(server)
        marked(server)
        gate.open.set()
        assert_answered(read_all(connection), b"1")
        fresh.sendall(posts(b"f"))
        assert_answered(read_all(fresh), b"f")
    thread.join()


def test_a_client_that_never_stops_to_send_is_told_as_well(held, gate, monkeypatch):
    monkeypatch.setattr(draining, "_NEXT_S", 0.0)
    server, connection = held
    connection.sendall(posts(b"2"))
    thread = closing(server)
    until(lambda: next(iter(server._state.connections))._ignores)
    connection.sendall(posts(*[b"3"] * 1000))
    gate.open.set()
    assert read_all(connection).count(b"connection: close") == 1
    thread.join()


def test_a_client_whose_answer_had_begun_may_send_one_more_request(serving, monkeypatch):
    begun, ends = threading.Event(), threading.Event()

    @headrace.register("ServeTwoParts", replace=True)
    def parts(data):
        yield "a"
        begun.set()
        assert ends.wait(60)
        return "end"

    server = serving({"m": {"backend": "Identity"}, "parts": {"backend": "ServeTwoParts"}})
    with socket.create_connection((server.host, server.port), 60) as connection:
        stream = posts(b"x").replace(b"/run/m", b"/run/parts")
        connection.sendall(
            stream.replace(b"host: localhost", b"host: localhost\r\naccept: text/event-stream")
        )
        assert begun.wait(30)
        got = b""
        while b'"a"' not in got:
            got += connection.recv(65536)
        assert b"connection: close" not in got
        thread = closing(server)
        until(lambda: next(iter(server._state.connections))._is_ended)
        monkeypatch.setattr(draining, "_NEXT_S", 600.0)
        ends.set()
        while not got.endswith(b"0\r\n\r\n"):
            got += connection.recv(65536)
        connection.sendall(posts(b"2"))
        assert_answered(read_all(connection), b"2")
    thread.join()


def test_a_call_that_comes_while_others_end_is_refused_with_a_reason(serving, gate, channel):
    server = serving({"m": {"backend": "ServeGate"}}, grpc_port=0)
    infer = channel(server).unary_unary(f"{SERVICE}/ModelInfer")
    first = infer.future(request(b"1"))
    assert gate.entered.wait(30)
    thread = closing(server)
    until(lambda: server._service.draining)
    with pytest.raises(grpc.RpcError) as caught:
        infer(request(b"2"), timeout=60)
    assert code_of(caught.value) == REFUSED
    gate.open.set()
    assert first.result(60)
    thread.join()


def test_clients_that_ask_all_the_time_are_refused_not_cancelled(serving, channel):
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0)
    ends = queue.Queue()
    running = threading.Barrier(5)

    def ask(infer):
        infer(request(b"1"), timeout=60)
        running.wait(60)
        try:
            while True:
                infer(request(b"1"), timeout=60)
        except grpc.RpcError as error:
            ends.put(code_of(error))

    calls = [channel(server).unary_unary(f"{SERVICE}/ModelInfer") for _ in range(4)]
    threads = [threading.Thread(target=ask, args=(one,)) for one in calls]
    for thread in threads:
        thread.start()
    running.wait(60)
    server.close()
    for thread in threads:
        thread.join()
    assert [ends.get_nowait() for _ in threads] == [REFUSED] * 4


def test_a_stream_without_a_request_does_not_hold_up_the_end(serving, channel):
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0)
    asked = queue.Queue()
    answers = channel(server).stream_stream(f"{SERVICE}/ModelStreamInfer")(iter(asked.get, None))
    asked.put(request(b"1"))
    assert next(answers)
    closing(server).join()
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert code_of(caught.value) == REFUSED
    asked.put(None)


HELD = """
import os, socket
import headrace

@headrace.register("ServeHeld")
def held(data):
    with socket.create_connection(("127.0.0.1", int(os.environ["SERVE_HELD_PORT"]))) as made:
        made.recv(1)  # until the test closes the connection
    return "whole"
"""


def family(process):
    """Find the numbers of a process and of all below it, the first one last."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [process]
    for one in found:
        found += children.get(one, ())
    return found[::-1]


def said(process, text):
    line = ""
    while text not in line:
        line = process.stderr.readline()
        assert line


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("workers", "number", "status"),
    [("1", "SIGTERM", 0), ("2", "SIGTERM", 0), ("1", "SIGINT", 130), ("1", "SIGHUP", 0)],
)
def test_a_signal_to_all_processes_lets_requests_in_processes_end(
    tmp_path, monkeypatch, start, workers, number, status
):
    """As systemd sends it to all of a service, a terminal and supervisord to the group."""
    (tmp_path / "held.py").write_text(HELD)
    config = 'import = ["held.py"]\nbackend = "Process[ServeHeld]"\ninstance_num = 2\n'
    (tmp_path / "m.toml").write_text(config)
    with socket.create_server(("127.0.0.1", 0)) as gates, ThreadPoolExecutor(2) as pool:
        monkeypatch.setenv("SERVE_HELD_PORT", str(gates.getsockname()[1]))
        process, url = start("m.toml", "--port", "0", "--workers", workers, cwd=tmp_path)
        answers = [
            pool.submit(httpx.post, f"{url}/run/m", content=b"x", timeout=300) for _ in range(2)
        ]
        with gates.accept()[0], gates.accept()[0]:  # both requests run
            for one in family(process.pid):
                os.kill(one, getattr(signal, number))
            if number != "SIGHUP":
                said(process, "draining")
        for one in answers:
            assert one.result().json() == {"result": "whole"}
        if number == "SIGHUP":
            said(process, "reloaded")
            process.terminate()
        assert process.wait(300) == status, process.stderr.read()
