"""What is refused before its body is read, clients that are too slow, and pages of other origins."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import logging
import random
import socket
import struct
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from serve_helpers import until

import headrace
from headrace.errors import ConfigError, OverloadedError
from headrace_serve import Limits, Server, asgi
from headrace_serve.admission.unpacking import UnpackingQueue
from headrace_serve.grpc.messages import message
from headrace_serve.http import bodies


def connect(server):
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def head(path, length, *more):
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {length}", *more, "", ""]
    return "\r\n".join(lines).encode()


def answer_of(connection):
    """Read one answer: its status and its body."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536) or pytest.fail(f"the connection ended after {got!r}")
    start, _, rest = got.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in start.split(b"\r\n")[1:])
    while len(rest) < int(headers[b"content-length"]):
        rest += connection.recv(65536)
    return int(start.split()[1]), rest


@pytest.mark.parametrize("full", ["wait", "reject"])
def test_a_full_queue_refuses_before_the_body_is_read(serving, gate, full):
    config = {"backend": "ServeGate", "queue_size": 2, "queue_full": full}
    server = serving({"m": config, "other": {"backend": "Identity"}})
    pipe = server._service.models.find("m").pipe
    running = [connect(server) for _ in range(2)]
    running[0].sendall(head("/run/m", 1) + b"1")
    assert gate.entered.wait(30)
    running[1].sendall(head("/run/m", 1) + b"2")
    until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 1)
    receiving = connect(server)
    receiving.sendall(head("/run/m", 3) + b"3")
    until(lambda: server._service.models.find("m").receiving == 1)
    with connect(server) as late:
        late.sendall(head("/run/m", 300_000) + bytes(100_000))
        status, body = answer_of(late)
        assert (status, b"overloaded" in body) == (429, True)
        late.sendall(bytes(200_000) + head("/run/other", 1) + b"a")
        assert answer_of(late) == (200, b"a")
    receiving.sendall(b"33")
    gate.open.set()
    for one in (*running, receiving):
        assert answer_of(one)[0] == 200
        one.close()
    model = server._service.models.find("m")
    until(lambda: model.inside == 0)
    assert model.receiving == 0


@pytest.mark.parametrize("whole", [True, False])
def test_an_answer_before_the_body_reaches_a_client_that_asked_to_close_the_connection(
    serving, whole
):
    server = serving({"m": {"backend": "Identity"}}, limits=Limits(max_body_bytes=1000))
    with connect(server) as one:
        one.sendall(head("/run/m", 300_000, "connection: close") + bytes(100_000))
        status, body = answer_of(one)
        assert (status, b"body_too_large" in body) == (413, True)
        one.sendall(bytes(100_000))  # a client that writes all before it reads
        if whole:
            one.sendall(
                bytes(100_000) + head("/run/m", 1) + b"a"
            )  # nobody waits for an answer to the second
        else:
            one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""
    assert server._service.models.find("m").pipe.stats()["nodes"]["main"]["submitted"] == 0


def test_a_call_of_grpc_is_refused_before_it_sends_where_every_queue_is_full(serving, gate):
    config = {"backend": "ServeGate", "queue_size": 1, "queue_full": "reject"}
    server = serving({"m": config, "n": {**config, "backend": "Identity"}}, grpc_port=0)
    m, n = (server._service.models.find(name) for name in "mn")
    waiting = [connect(server) for _ in range(2)]
    for one in waiting:
        one.sendall(head("/run/m", 1) + b"1")
        assert gate.entered.wait(30)
    until(lambda: m.pipe.stats()["nodes"]["main"]["waiting"] == 1)
    filled = connect(server)
    filled.sendall(head("/run/n", 2) + b"1")  # the rest is missing: it takes the place of `n`
    until(lambda: n.receiving == 1)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        ends = threading.Event()

        def nothing():
            ends.wait(60)
            yield from ()

        with pytest.raises(grpc.RpcError) as caught:
            infer(nothing(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(caught.value.trailing_metadata())["code"] == "overloaded"
        ends.set()
        filled.sendall(b"2")
        assert answer_of(filled)[0] == 200
        made = message("inference.ModelInferRequest")(model_name="n")
        made.inputs.add(name="data", datatype="BYTES", shape=[0])
        made.raw_input_contents.append(b"")
        until(lambda: n.inside == 0)
        assert channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
            made.SerializeToString(), timeout=60
        )
    gate.open.set()
    for one in waiting:
        assert answer_of(one)[0] == 200
        one.close()
    filled.close()


def test_who_goes_away_while_sending_leaves_its_place(serving):
    server = serving({"m": {"backend": "Identity", "queue_size": 1}})
    model = server._service.models.find("m")
    one = connect(server)
    one.sendall(head("/run/m", 10) + b"abc")
    until(lambda: model.receiving == 1)
    one.close()
    until(lambda: (model.receiving, model.inside) == (0, 0))


def test_bodies_that_take_all_room_refuse_others_before_theirs_are_read(serving):
    server = serving({"m": {"backend": "Identity"}}, limits=Limits(max_inflight_bytes=100))
    with connect(server) as first, connect(server) as second:
        first.sendall(head("/run/m", 80) + b"x")
        until(lambda: server._service._inflight_bytes == 80)
        second.sendall(head("/run/m", 30))
        assert answer_of(second)[0] == 429
        first.sendall(b"x" * 79)
        assert answer_of(first)[0] == 200


def test_a_refused_body_without_end_ends_the_connection_when_its_time_is_over(serving):
    server = serving({"m": {"backend": "Identity"}}, limits=Limits(max_body_bytes=1000))
    with connect(server) as one:
        one.sendall(head("/run/none", 1 << 40))
        assert answer_of(one)[0] == 404
        one.sendall(bytes(10_000_000))  # an honest client that reads its answer later
        (protocol,) = server._state.connections
        protocol.deadlines.ends = 0.0
        server._loop.call_soon_threadsafe(protocol.deadlines.look_at_receiving)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            one.sendall(bytes(100_000_000))


@pytest.mark.parametrize(
    "start",
    [
        b"GET /v2 HTTP/1.1\r\nx: ",
        b"GET /v2 HTTP/1.1\r\nx",
        b"GET /",
        head("/run/m", 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
        + b"1\r\na\r\n0\r\nx: ",
    ],
)
def test_a_header_without_end_is_refused_while_it_comes(serving, start):
    """The parser keeps it, and copies all of it for each read."""
    server = serving({"m": {"backend": "Identity"}}, limits=Limits(max_header_bytes=1000))
    with connect(server) as connection:
        connection.sendall(start)
        with contextlib.suppress(OSError):
            for _ in range(64):
                connection.sendall(b"a" * 65536)
        assert answer_of(connection)[0] == 431


def test_the_lines_of_chunks_are_no_headers(serving):
    server = serving({"m": {"backend": "Identity"}}, limits=Limits(max_header_bytes=100))
    with connect(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        chunked = head("/run/m", 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
        connection.sendall(chunked)
        for _ in range(200):
            connection.sendall(b"2\r\n")
            connection.sendall(b"ab\r\n")
        connection.sendall(b"0\r\nlast: x\r\n\r\n")
        assert answer_of(connection) == (200, b"ab" * 200)


def test_a_body_in_small_pieces_takes_little_more_than_its_bytes():
    headrace.register("ServeLength", len, replace=True)
    app, count, sent = asgi({"m": {"backend": "ServeLength"}}), 100_000, []
    numbers = iter(range(count))

    async def receive():
        number = next(numbers, None)
        if number is None:
            await asyncio.Event().wait()
        body = number.to_bytes(3, "big")
        return {"type": "http.request", "body": body, "more_body": number < count - 1}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/run/m", "raw_path": b"/run/m", "query_string": b"",
        "root_path": "", "headers": [], "client": None, "server": ("127.0.0.1", 80), "scheme": "http",
    }  # fmt: skip
    tracemalloc.start()
    try:
        asyncio.run(app(scope, receive, send))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent[-1]["body"] == b'{"result":300000}'
    assert most < 3_000_000  # the pieces alone would take 4


@pytest.mark.parametrize("rest", [b"zz\r\n", b"GET /v2 HTTP/1.1\r\nx: " + b"a" * 600 + b"\r\n\r\n"])
def test_a_request_has_one_answer_whatever_follows_it(serving, gate, rest):
    server = serving({"m": {"backend": "ServeGate"}}, limits=Limits(max_header_bytes=500))
    with connect(server) as connection:
        connection.sendall(head("/run/m", 1) + b"1" + rest)
        assert gate.entered.wait(30)
        gate.open.set()
        assert answer_of(connection)[0] == 200
        assert connection.recv(65536) == b""


def test_a_refused_body_that_goes_wrong_gets_no_second_answer(serving):
    server = serving({"m": {"backend": "Identity"}}, limits=Limits(max_body_bytes=10))
    with connect(server) as connection:
        chunked = head("/run/m", 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
        connection.sendall(chunked + b"b\r\n" + b"a" * 11)
        assert answer_of(connection)[0] == 413
        connection.sendall(b"zz")
        assert connection.recv(65536) == b""


def test_a_head_that_comes_too_late_waits_for_the_answer_before_it(serving, gate):
    server = serving({"m": {"backend": "ServeGate"}}, limits=Limits(receive_timeout_s=0.05))

    async def connect_and_send():
        # In the loop's own thread: before the time begins, the kernel has all that is sent.
        made = connect(server)
        made.sendall(head("/run/m", 1) + b"1" + b"GET /v2")
        return made

    connecting = asyncio.run_coroutine_threadsafe(connect_and_send(), server._loop)
    with connecting.result() as connection:
        assert gate.entered.wait(30)
        (protocol,) = server._state.connections
        until(lambda: protocol._ignores)
        gate.open.set()
        assert answer_of(connection)[0] == 200
        assert connection.recv(65536) == b""


def test_what_a_connection_refuses_by_itself_is_logged_and_counted_as_well(serving, caplog):
    caplog.set_level(logging.INFO, "headrace.serve.access")
    limits = Limits(
        min_rate_bytes_s=1000, rate_window_s=0.05, max_header_bytes=500, max_connections=1
    )
    server = serving({"m": {"backend": "Identity"}}, limits=limits)
    with connect(server) as one:
        one.sendall(head("/run/m", 100) + b"x")
        status, body = answer_of(one)
        assert (status, b"slower than 1000" in body) == (408, True)
        assert one.recv(1) == b""
    chunked = b"POST /run/m HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nno length\r\n"
    large = b"GET /v2 HTTP/1.1\r\nx: " + b"a" * 600 + b"\r\n\r\n"
    for sent, status in ((chunked, 400), (large, 431), (b"no HTTP\r\n\r\n", 400)):
        until(lambda: not server._state.connections)
        with connect(server) as one:
            one.sendall(sent)
            assert answer_of(one)[0] == status
    until(lambda: not server._state.connections)
    with connect(server), connect(server) as second:
        assert answer_of(second)[0] == 503
    until(lambda: not server._state.tasks)
    lines = sorted(
        one.getMessage().partition(" id=")[0]
        for one in caplog.records
        if one.name == "headrace.serve.access"
    )
    assert lines == [
        "POST /run/{model} model=m status=400 code=http",
        "POST /run/{model} model=m status=408 code=receive_timeout",
        "other model=- status=400 code=http",
        "other model=- status=431 code=headers_too_large",
        "other model=- status=503 code=overloaded",
    ]
    assert server._service.counters.requests["POST /run/{model}", "m", "408"] == 1
    assert server._service.counters.requests["other", "", "431"] == 1


def test_compressed_bodies_take_turns_instead_of_each_others_room(serving, monkeypatch):
    whole, opened = bodies.unpack, threading.Event()

    def slow(*given):
        assert opened.wait(60)
        return whole(*given)

    monkeypatch.setattr(bodies, "unpack", slow)
    headrace.register("ServeLength", len, replace=True)
    limits = Limits(max_body_bytes=100_000, max_inflight_bytes=600_000)
    server = serving({"m": {"backend": "ServeLength", "max": 8}}, limits=limits)
    body = gzip.compress(random.Random(0).randbytes(20_000))

    def post(_):
        answer = httpx.post(
            f"{server.url}/run/m", content=body, headers={"content-encoding": "gzip"}
        )
        return answer.json()

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(post, i) for i in range(8)]
        until(
            lambda: (
                server._service.counters.in_flight["http"] == 8 or any(a.done() for a in answers)
            )
        )
        opened.set()
        assert [one.result() for one in answers] == [{"result": 20_000}] * 8


def test_small_bodies_are_unpacked_at_once_and_no_client_takes_all_turns(serving, monkeypatch):
    whole, opened = bodies.unpack, threading.Event()

    def slow(body, *given):
        assert len(body) < 1000 or opened.wait(60)
        return whole(body, *given)

    monkeypatch.setattr(bodies, "unpack", slow)
    headrace.register("ServeLength", len, replace=True)
    server = serving({"m": {"backend": "ServeLength", "max": 8}})
    large = gzip.compress(random.Random(0).randbytes(20_000))

    def post(body, host="127.0.0.1"):
        transport = httpx.HTTPTransport(local_address=host)
        with httpx.Client(transport=transport, timeout=60) as client:
            headers = {"content-encoding": "gzip"}
            return client.post(f"{server.url}/run/m", content=body, headers=headers)

    with ThreadPoolExecutor(80) as pool:
        first = [pool.submit(post, large) for _ in range(40)]
        until(lambda: sum(one.done() for one in first) == 8)
        refused = [one.result() for one in first if one.done()]
        assert {one.status_code for one in refused} == {429}
        assert {int(one.headers["retry-after"]) >= 1 for one in refused} == {True}
        assert post(gzip.compress(b"abc")).json() == {"result": 3}
        other = pool.submit(post, large, "127.0.0.2")  # which has a share of its own
        until(lambda: server._service.counters.in_flight["http"] == 33)
        assert not other.done()
        opened.set()
        assert other.result().status_code == 200
        answers = sorted(one.result().status_code for one in first)
    assert answers == [200] * 32 + [429] * 8


def test_turns_are_shared_between_clients():
    async def main():
        queue, order = UnpackingQueue(), []
        ended = asyncio.Event()

        async def take(client):
            async with queue.turn(client):
                order.append(client)
                await ended.wait()

        tasks = [asyncio.create_task(take("a")) for _ in range(32)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(take("b")))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sorted(order) == ["a", "a", "a", "b"]
        with pytest.raises(OverloadedError):
            await take("a")
        tasks += [asyncio.create_task(take("c")) for _ in range(31)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await take("d")
        tasks[-1].cancel()  # one that waits has gone away
        ended.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(order) == 63

    asyncio.run(main())


@pytest.mark.parametrize(("size", "status"), [(2000, 200), (8000, 429), (20_000, 429)])
def test_a_compressed_body_needs_the_room_that_it_takes(serving, size, status):
    limits = Limits(max_body_bytes=10_000, max_inflight_bytes=5000)
    server = serving({"m": {"backend": "Identity"}}, limits=limits)
    body, gzipped = gzip.compress(bytes(size)), {"content-encoding": "gzip"}
    assert httpx.post(f"{server.url}/run/m", content=body, headers=gzipped).status_code == status
    until(lambda: server._service.room == 5000)


class Large:
    """Gives 64 MB."""

    def forward(self, batch):
        for request in batch:
            request["result"] = bytes(64_000_000)


headrace.register("ServeLarge", Large)


def test_a_client_that_takes_no_answer_loses_its_connection(serving):
    limits = Limits(min_rate_bytes_s=1000, rate_window_s=0.05)
    server = serving({"m": {"backend": "ServeLarge"}}, limits=limits)
    with connect(server) as one:
        one.sendall(head("/run/m", 1, "accept: application/octet-stream") + b"x")
        until(lambda: server._service.models.find("m").counts.ok == 1)
        until(lambda: not server._state.connections)
    assert server._service.counters.in_flight["http"] == 0


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def connect_without_window(server, path, *messages):
    """Send a call over HTTP/2, frame by frame, as a client that takes no byte of an answer."""

    def header(name, value):
        return bytes([0, len(name)]) + name + bytes([len(value)]) + value

    made = socket.create_connection((server.host, server.grpc_port), timeout=60)
    headers = {
        b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"a",
        b"content-type": b"application/grpc", b"te": b"trailers",
    }  # fmt: skip
    made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, 0)))
    made.sendall(frame(1, 4, 1, b"".join(header(*one) for one in headers.items())))
    for one in messages:
        made.sendall(frame(0, 0, 1, b"\0" + struct.pack(">I", len(one)) + one))
    made.sendall(frame(0, 1, 1, b""))
    return made


@pytest.mark.parametrize(("method", "clients"), [(b"ModelInfer", 1), (b"ModelStreamInfer", 2)])
def test_answers_that_clients_of_grpc_do_not_take_are_bounded(serving, method, clients):
    """Whole answers may have half of the room and parts all of it: one answer, or two parts, and the next call is refused."""
    headrace.register("ServeLong", lambda data: data * 60_000, replace=True)
    limits = Limits(max_inflight_bytes=100_000)
    server = serving({"m": {"backend": "ServeLong"}}, grpc_port=0, limits=limits)
    request = message("inference.ModelInferRequest")(model_name="m")
    request.inputs.add(name="data", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(b"\1\0\0\0x")
    raw, path = request.SerializeToString(), b"/inference.GRPCInferenceService/" + method
    with contextlib.ExitStack() as stack:
        for _ in range(clients):
            stack.enter_context(connect_without_window(server, path, raw))
        until(lambda: server._service.unsent_bytes >= clients * 60_000)
        with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError, match="do not take") as caught:
                infer(raw, timeout=60)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            ask = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            assert b"do not take" in next(ask(iter([raw]), timeout=60))
            stack.close()
            until(lambda: server._service.unsent_bytes == 0)
            assert len(infer(raw, timeout=60)) > 60_000
            until(lambda: server._service.unsent_bytes == 0)


def test_parts_that_clients_of_grpc_do_not_take_leave_room_for_others(serving):
    headrace.register(
        "ServeLongParts", lambda data: ("x" * 60_000 for _ in range(1000)), replace=True
    )
    models = {
        "m": {"config": {"backend": "ServeLongParts"}, "decoupled": True},
        "other": {"config": {"backend": "Identity"}},
    }
    server = serving(models, grpc_port=0, limits=Limits(max_inflight_bytes=600_000))
    request = message("inference.ModelInferRequest")(model_name="m")
    request.inputs.add(name="data", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(b"\1\0\0\0x")
    path = b"/inference.GRPCInferenceService/ModelStreamInfer"
    with connect_without_window(server, path, request.SerializeToString()):
        until(lambda: server._service.unsent_bytes >= 300_000)
        request.model_name = "other"
        with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            for _ in range(20):
                infer(request.SerializeToString(), timeout=60)
        assert server._service.unsent_bytes < 600_000
    until(lambda: server._service.unsent_bytes == 0)
    until(lambda: server._service.part_bytes.held == 0)


@pytest.mark.parametrize(("streams", "calls"), [(4, 64), (2000, 1800)])
def test_no_call_is_lost_in_a_burst(serving, streams, calls):
    limits = Limits(max_streams=streams)
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0, limits=limits)
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        answer = live(b"")
        sent = threading.Event()
        server._loop.call_soon_threadsafe(sent.wait, 60)
        burst = [live.future(b"") for _ in range(calls)]
        sent.set()
        assert {one.result(timeout=120) for one in burst} == {answer}


def test_a_connection_of_grpc_that_says_nothing_ends(serving):
    limits = Limits(receive_timeout_s=0.05)
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0, limits=limits)
    with socket.create_connection((server.host, server.grpc_port), timeout=60) as silent:
        while silent.recv(65536):
            pass


def test_metadata_of_more_bytes_than_headers_may_have_is_refused(serving):
    server = serving(
        {"m": {"backend": "Identity"}}, grpc_port=0, limits=Limits(max_header_bytes=1000)
    )
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert live(b"", metadata=[("x", "y" * 100)], timeout=60)
        with pytest.raises(grpc.RpcError) as caught:
            live(b"", metadata=[("x", "y" * 1000)], timeout=60)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_answered_requests_do_not_wait_for_the_garbage_collector(serving):
    def alive(kind):
        return sum(type(one).__name__ == kind for one in gc.get_objects())

    server = serving({"m": {"backend": "Identity"}}, grpc_port=0)
    request = message("inference.ModelInferRequest")(model_name="m")
    request.inputs.add(name="data", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(b"\1\0\0\0x")
    raw = request.SerializeToString()
    gc.collect()
    gc.disable()
    try:
        before = {kind: alive(kind) for kind in ("Cycle", "Call")}
        with (
            connect(server) as one,
            grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel,
        ):
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            for _ in range(20):
                one.sendall(head("/run/m", 1) + b"a")
                assert answer_of(one)[0] == 200
                assert infer(raw, timeout=60)
            # The connection has the last request, and the last call may not be over yet.
            assert all(alive(kind) <= before[kind] + 2 for kind in before)
    finally:
        gc.enable()


def test_connections_that_wait_hold_nothing_of_their_last_requests(serving, held_bytes):
    server = serving({"m": {"backend": "Call(builtins:len)"}})
    sent, count = head("/run/m", 60_000) + bytes(60_000), 40
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(count)]
        for one in connections:
            one.sendall(head("/run/m", 1) + b"a")
            assert answer_of(one)[0] == 200
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for one in connections:
            one.sendall(sent)
            assert answer_of(one)[0] == 200
        assert held_bytes(server) == 0
        now, most = tracemalloc.get_traced_memory()
    assert most > len(sent)
    assert now < count * len(sent) // 4


def test_pages_of_other_origins_read_nothing_unless_they_are_named(serving):
    origin = {"origin": "https://page.example"}
    asks = {**origin, "access-control-request-method": "POST"}
    for origins, allowed in (((), None), (["https://page.example"], "https://page.example")):
        server = serving({"m": {"backend": "Identity"}}, cors_origins=origins)
        url = f"{server.url}/run/m"
        answer = httpx.post(url, content=b"a", headers=origin)
        assert answer.status_code == (403 if allowed is None else 200)
        assert answer.headers.get("access-control-allow-origin") == allowed
        before = httpx.options(url, headers=asks)
        assert before.headers.get("access-control-allow-origin") == allowed
    sent = "traceparent, tracestate, baggage"
    before = httpx.options(url, headers={**asks, "access-control-request-headers": sent})
    assert before.status_code == 200
    assert set(sent.split(", ")) <= set(
        before.headers["access-control-allow-headers"].lower().split(", ")
    )
    elsewhere = {"origin": "https://other.example"}
    other = httpx.post(url, content=b"a", headers=elsewhere)
    assert "access-control-allow-origin" not in other.headers
    asked = httpx.options(url, headers=asks | elsewhere)
    assert (asked.status_code, asked.json()["code"]) == (400, "not_allowed")

    def counted():
        found = server._service.counters.requests.copy()
        return {place[2]: n for place, n in found.items() if "other" in place}

    until(lambda: counted() == {"200": 2, "400": 1})  # counted after the answer
    for wrong in (["page.example"], ["https://page.example/path"]):
        with pytest.raises(ConfigError, match="origin"):
            Server({"m": {"backend": "Identity"}}, cors_origins=wrong)


def test_who_goes_away_is_noticed_with_origins_named_too(serving, gate):
    server = serving({"m": {"backend": "ServeGate"}}, cors_origins=["*"])
    pipe = server._service.models.find("m").pipe
    first, second = connect(server), connect(server)
    first.sendall(head("/run/m", 1, "origin: https://a.example") + b"1")
    assert gate.entered.wait(30)
    second.sendall(head("/run/m", 1, "origin: https://a.example") + b"2")
    until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 1)
    second.close()
    until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 0)
    gate.open.set()
    assert answer_of(first)[0] == 200
    first.close()


def test_a_model_may_have_smaller_limits_than_the_server(serving, gate):
    headrace.register("ServeText", lambda data: data.decode(), replace=True)
    text = {"backend": "ServeText"}
    models = {
        "m": {"config": text, "max_body_bytes": 200, "max_items": 2},
        "late": {"config": {"backend": "ServeGate"}, "max_timeout_ms": 20.0},
        "large": {"config": text, "max_body_bytes": 1 << 40},
    }
    server = serving(models, grpc_port=0, limits=Limits(max_body_bytes=1000))
    assert httpx.post(f"{server.url}/run/m", content=b"x" * 200).status_code == 200
    assert httpx.post(f"{server.url}/run/m", content=b"x" * 201).status_code == 413
    assert httpx.post(f"{server.url}/run/large", content=b"x" * 1000).status_code == 200
    assert httpx.post(f"{server.url}/run/large", content=b"x" * 1001).status_code == 413
    assert httpx.post(f"{server.url}/run/late", content=b"x").status_code == 504
    tensor = {"name": "data", "shape": [3], "datatype": "BYTES", "data": ["a"] * 3}
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": [tensor]})
    assert (answer.status_code, "more than the 2" in answer.json()["error"]) == (400, True)
    for number, status in ((2, 200), (3, 400)):
        parts = "".join(
            '--b\r\nContent-Disposition: form-data; filename="a"\r\n\r\na\r\n'
            for _ in range(number)
        )
        kind = {"content-type": "multipart/form-data; boundary=b"}
        answer = httpx.post(f"{server.url}/run/m", content=f"{parts}--b--", headers=kind)
        assert answer.status_code == status
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        given = triton.InferInput("data", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"x" * 200], object))
        assert client.infer("large", [given]) is not None
        with pytest.raises(triton.InferenceServerException, match="the limit is 200"):
            client.infer("m", [given])
    for wrong in ({"max_items": 0}, {"max_body_bytes": "5"}, {"max_body": 5}):
        with pytest.raises(ConfigError):
            Server({"m": {"config": text, **wrong}})


def test_the_pipeline_is_asked_how_many_wait_now_and_then(gate):
    """Between two times, what has come here and gone is counted."""
    from headrace_serve.models.entries import ModelEntry
    from headrace_serve.models.model import Model

    with headrace.pipe({"backend": "ServeGate", "queue_size": 9}) as pipe:
        model = Model("m", "1", ModelEntry(config=pipe))
        now = 100.0
        model.clock = lambda: now
        futures = [pipe.submit({"data": b"x"})]
        assert gate.entered.wait(30)
        futures += [pipe.submit({"data": b"x"}) for _ in range(3)]
        model.inside, model.receiving = 6, 2  # two beside those four are being received
        assert model.waiting() == 5
        model.inside = 8
        assert model.waiting() == 7
        gate.open.set()
        for future in futures:
            future.result(30)
        model.inside, model.receiving = 4, 2
        assert model.waiting() == 3  # nobody has asked
        now += 1.0
        assert model.waiting() == 2
        model.inside = model.receiving = 0
        assert model.waiting() == 0
