"""Clients that do not know yet that the server ends: each request gets an answer, or is refused with a reason."""

from __future__ import annotations

import queue
import socket
import threading

import grpc
import pytest

from headrace_serve.grpc.messages import message
from headrace_serve.operating import draining

POST = b"POST /run/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\na"
SERVICE = "/inference.GRPCInferenceService"


def until(condition):
    poll = threading.Event()
    while not condition():
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
        assert got.endswith(b'{"result":"a"}')
        connection.close()
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
