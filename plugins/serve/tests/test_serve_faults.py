"""Clients that trickle, lie, never end, never read or go away, beside fifty honest ones that lose nothing.

Nothing here waits for a clock: a *round* is one request of each honest client, all at once, and it is
over when all are answered; the deadlines of the server are called when a test says so (`expire`).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import struct
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from headrace_serve import Limits
from headrace_serve.grpc.messages import message

HONEST = 50
BODY = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
HOURS = 10_000.0
"""Longer than any test: a deadline comes when `expire` says so."""

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Honest:
    """Fifty clients, forty over REST on connections that stay open, ten over gRPC."""

    def __init__(self, server):
        self.server = server
        self._pool = ThreadPoolExecutor(HONEST)
        self._connections = [
            http.client.HTTPConnection("127.0.0.1", server.port, timeout=300) for _ in range(40)
        ]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        self._infer = self._channel.unary_unary(INFER)
        self.sent = 0

    def round(self):
        """Let each send one request; every answer must be the right one."""
        self.sent += 1
        wanted = [f"{i} {self.sent}".encode() for i in range(HONEST)]
        assert list(self._pool.map(self._ask, range(HONEST), wanted)) == wanted

    def _ask(self, index, data):
        if index >= len(self._connections):
            answer = self._infer(items("echo", data), wait_for_ready=True)
            (raw,) = message("inference.ModelInferResponse").FromString(answer).raw_output_contents
            return raw[4:]
        connection = self._connections[index]
        connection.request("POST", "/run/echo", data, {"Accept": "text/plain"})
        answer = connection.getresponse()
        got = answer.read()
        return got if answer.status == 200 else (answer.status, got)

    def close(self):
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()
        self._channel.close()


def items(model, *data):
    made = message("inference.ModelInferRequest")(model_name=model)
    made.inputs.add(name="data", datatype="BYTES", shape=[len(data)])
    made.raw_input_contents.append(b"".join(struct.pack("<I", len(d)) + d for d in data))
    return made.SerializeToString()


def in_loop(server, function):
    """Call a function in the event loop of the server, and give what it gives."""

    async def call():
        return function()

    return asyncio.run_coroutine_threadsafe(call(), server._loop).result()


def connections(server):
    return in_loop(server, lambda: len(server._state.connections))


def expire(server):
    """Let every deadline for receiving that runs now be over."""

    def all_late():
        late = [one for one in server._state.connections if one.deadlines.receiving is not None]
        for one in late:
            one.deadlines.stop_receiving()
            one.deadlines.ends = 0.0
            one.deadlines.look_at_receiving()
        return len(late)

    return in_loop(server, all_late)


def settled(server):
    """Wait until no request of REST is being answered; give the bytes that the server holds of bodies."""

    async def wait():
        while server._state.tasks:
            await asyncio.wait(list(server._state.tasks))
            await asyncio.sleep(0)
        return server._service._inflight_bytes

    return asyncio.run_coroutine_threadsafe(wait(), server._loop).result()


def until(server, condition):
    """Wait, in steps of the server's event loop, until it is so."""

    async def wait():
        while not condition():
            await asyncio.sleep(0)

    waiting = asyncio.run_coroutine_threadsafe(wait(), server._loop)
    try:
        waiting.result()
    finally:
        waiting.cancel()  # where the test is ended


def dial(server, data=b""):
    made = socket.create_connection(("127.0.0.1", server.port), timeout=300)
    made.sendall(data)
    return made


def read_all(connection):
    """Return what comes until the server closes; a connection that it reset gives what came before."""
    found = b""
    try:
        while part := connection.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    connection.close()
    return found


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer else None


MODELS = {"echo": {"backend": "Identity", "max": 8}}


@pytest.fixture
def honest(serving):
    made = []

    def start(models=(), **limits):
        settings = {
            "receive_timeout_s": HOURS, "rate_window_s": HOURS, "max_body_bytes": 1 << 20, **limits
        }  # fmt: skip
        server = serving({**MODELS, **dict(models)}, grpc_port=0, limits=Limits(**settings))
        made.append(Honest(server))
        made[-1].round()
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_a_thousand_connections_that_trickle(honest):
    pytest.importorskip("resource", reason="files have no limit that can be asked for")
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    count = min(1000, (allowed - 300) // 2)  # both ends of a connection are in this process
    among = honest()
    head = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    slow = [dial(among.server, head[: 1 + i % len(head)]) for i in range(count)]
    among.round()
    for step in range(3):
        for i, one in enumerate(slow):
            one.sendall(head[1 + i % len(head) + step :][:1] or b"x")
        among.round()
    until(among.server, lambda: len(among.server._state.connections) == 40 + count)
    assert expire(among.server) == count
    for one in slow:
        assert status_of(read_all(one)) == 408
    until(among.server, lambda: len(among.server._state.connections) == 40)
    among.round()


def test_bodies_that_stop(honest):
    among = honest()
    sent = (BODY + b"x", BODY + b"x" * 999, BODY.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked")
            + b"5\r\nabc")  # fmt: skip
    stopped = [dial(among.server, data) for data in sent * 10]
    until(among.server, lambda: len(among.server._state.tasks) >= len(stopped))
    among.round()
    assert expire(among.server) == len(stopped)
    answers = [read_all(one) for one in stopped]
    assert {status_of(one) for one in answers} == {408}
    assert json.loads(answers[0].partition(b"\r\n\r\n")[2])["code"] == "receive_timeout"
    assert settled(among.server) == 0
    among.round()


@pytest.mark.parametrize(
    ("head", "body", "statuses"),
    [
        # Fewer bytes than were told, and the end: nobody is left who could take an answer.
        ("Content-Length: 1000", b"x" * 10, (None,)),
        # More than were told: the rest is no request, and does not take the answer away.
        ("Content-Length: 3", b"xyzNO REQUEST\r\n\r\n", (200,)),
        ("Content-Length: -1", b"", (400,)),
        ("Content-Length: 1e3", b"", (400,)),
        ("Content-Length: 99999999999999999999999", b"", (400, 413)),
        ("Content-Length: 4\r\nContent-Length: 5", b"xxxx", (400,)),
        ("Content-Length: 4\r\nTransfer-Encoding: chunked", b"0\r\n\r\n", (400,)),
        ("Transfer-Encoding: chunked", b"ffffffffffffffffff\r\nx", (400,)),
        ("Transfer-Encoding: chunked", b"zz\r\nx", (400,)),
        ("Transfer-Encoding: chunked", b"5\r\nabcdefgh\r\n0\r\n\r\n", (400,)),
        (
            "Content-Length: 10\r\nConnection: close\r\nContent-Encoding: gzip",
            b"not a gzip",
            (400,),
        ),
        (
            "Content-Length: 10\r\nConnection: close\r\nContent-Encoding: zstd",
            b"unknown to",
            (400, 415),
        ),
    ],
)
def test_bodies_that_lie_about_their_length(honest, head, body, statuses):
    among = honest()
    one = dial(
        among.server,
        f"POST /run/echo HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode() + body,
    )
    if statuses == (None,):
        one.shutdown(socket.SHUT_WR)
    answer = read_all(one)
    assert status_of(answer) in statuses, answer
    if status_of(answer) == 400:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert settled(among.server) == 0
    among.round()


@pytest.mark.parametrize("chunked", [True, False])
def test_bodies_that_never_end_are_answered_while_they_are_sent(honest, chunked):
    among = honest()
    kind = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 9000000000"
    part = b"4000\r\n" + bytes(0x4000) + b"\r\n" if chunked else bytes(0x4000)
    one = dial(among.server, b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\n" + kind + b"\r\n\r\n")
    one.setblocking(False)
    selected, answer = 0, b""
    import select

    while b"\r\n\r\n" not in answer:  # sends until there is an answer, however long that takes
        readable, writable, _ = select.select([one], [one], [])
        if readable:
            received = one.recv(1 << 16)
            assert received, "the connection ended without an answer"
            answer += received
        elif writable:
            selected += one.send(part)
    assert status_of(answer) == 413
    one.close()
    assert selected < 1 << 27
    assert settled(among.server) == 0
    among.round()


@pytest.mark.parametrize("megabytes", [3, 64])
def test_the_answer_to_a_body_that_is_too_large_reaches_a_client_that_sends_it_all(
    honest, megabytes
):
    """A server that closed at once would reset the connection under the answer."""
    among = honest()
    connection = http.client.HTTPConnection("127.0.0.1", among.server.port, timeout=300)
    connection.request("POST", "/run/echo", bytes(megabytes << 20))
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "body_too_large")
    connection.request("POST", "/run/echo", b"next")
    assert connection.getresponse().read() == b"next"
    connection.close()
    among.round()


def bomb(encoding, megabytes):
    """Return a compressed body of very many zeros, as it is made in no time: one block over and over."""
    engine = zlib.compressobj(9, zlib.DEFLATED, {"gzip": 31, "deflate": 15}[encoding])
    start = engine.compress(bytes(1 << 20)) + engine.flush(zlib.Z_FULL_FLUSH)
    block = engine.compress(bytes(1 << 20)) + engine.flush(zlib.Z_FULL_FLUSH)
    return start + block * (megabytes - 1)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bodies_that_decompress_to_gigabytes(honest, encoding):
    among = honest(max_body_bytes=8 << 20)
    body = bomb(encoding, 4096)
    assert len(body) < 8 << 20
    answers = []

    def send():
        connection = http.client.HTTPConnection("127.0.0.1", among.server.port, timeout=300)
        connection.request("POST", "/run/echo", body, {"Content-Encoding": encoding})
        answer = connection.getresponse()
        answers.append((answer.status, json.loads(answer.read())["code"]))
        connection.close()

    senders = [threading.Thread(target=send) for _ in range(4)]
    for one in senders:
        one.start()
    among.round()
    for one in senders:
        one.join()
    assert answers == [(413, "body_too_large")] * 4
    assert settled(among.server) == 0
    among.round()


def test_messages_of_grpc_that_decompress_to_more_than_the_limit(honest):
    among = honest()
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{among.server.grpc_port}", options) as channel:
        infer = channel.unary_unary(INFER)
        for size in (2 << 20, 64 << 20):
            with pytest.raises(grpc.RpcError) as caught:
                infer(items("echo", bytes(size)), compression=grpc.Compression.Gzip)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert infer(items("echo", bytes(1 << 19)), compression=grpc.Compression.Gzip)
    assert settled(among.server) == 0
    among.round()


def test_clients_that_never_read(honest):
    """Their answers fill the buffers of the system; no second request of theirs is begun."""
    port = {"datatype": "UINT8", "shape": [-1]}
    big = {
        "config": {"backend": "Identity"},
        "inputs": {"x": {**port, "each": False}},
        "outputs": {"y": port},
    }
    among = honest({"big": big}, max_body_bytes=8 << 20)
    data = np.zeros(6 << 20, np.uint8).tobytes()
    tensor = {"name": "x", "shape": [len(data)], "datatype": "UINT8"}
    head = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    request = (
        f"POST /v2/models/big/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: {len(head)}\r\n"
        f"Content-Length: {len(head) + len(data)}\r\n\r\n"
    ).encode() + head + data  # fmt: skip
    deaf = []
    for _ in range(8):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(300)
        one.connect(("127.0.0.1", among.server.port))
        one.sendall(request)
        one.sendall(request[:200])  # and the next one is on its way
        deaf.append(one)
    state = among.server._state

    def full():
        return sum(c.transport.get_write_buffer_size() > 1 << 20 for c in state.connections)

    until(among.server, lambda: full() == len(deaf))
    among.round()
    assert full_counts(among.server, state) == len(deaf)

    def look():
        """Look at them as after the time within which they must have taken a part; they have not."""
        slow = [
            c
            for c in state.connections
            if c.deadlines.sending and c.transport.get_write_buffer_size()
        ]
        for c in slow:
            c.deadlines.stop_sending()
            c.deadlines.look_at_sending(c.transport.get_write_buffer_size())
        return len(slow)

    assert in_loop(among.server, look) == len(deaf)
    until(among.server, lambda: len(state.connections) == 40)
    assert settled(among.server) == 0
    for one in deaf:
        one.close()
    among.round()


def full_counts(server, state):
    return in_loop(
        server,
        lambda: sum(c.transport.get_write_buffer_size() > 1 << 20 for c in state.connections),
    )


def go_away(connection, *, reset):
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
def test_disconnects_in_every_state(honest, gate, caplog, reset):
    among = honest({"gate": {"backend": "ServeGate", "max": 1}})
    server = among.server
    pipe = server._service.models.find("gate").pipe
    whole = b"POST /run/gate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n"
    node = next(iter(pipe.stats()["nodes"]))

    def waiting():
        return pipe.stats()["nodes"][node]["waiting"]

    running = dial(server, whole + b"one")
    assert gate.entered.wait(300)
    queued = [dial(server, whole + b"two") for _ in range(5)]
    until(server, lambda: waiting() == 5)
    early = [dial(server, whole[:n]) for n in (0, 1, 10, 30, 60, len(whole))]
    early += [dial(server, whole + b"t"), dial(server, whole + b"two" + whole + b"two")]
    until(server, lambda: waiting() == 6)
    among.round()
    for one in (*early, *queued):
        go_away(one, reset=reset)
    until(server, lambda: waiting() == 0)  # they have left the queue at once
    go_away(running, reset=reset)
    until(server, lambda: len(server._state.connections) == 40)
    among.round()
    gate.open.set()
    until(server, lambda: len(gate.seen) > 0)  # its client is gone, so nobody waits for it
    assert settled(server) == 0
    pipe({"data": b"three"})
    assert gate.seen == [b"one", b"three"]  # what ran was left to end; nobody else ever ran
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []
    among.round()


def test_calls_of_grpc_that_are_cancelled_in_every_state(honest, gate):
    among = honest({"gate": {"backend": "ServeGate", "max": 1}})
    server = among.server
    pipe = server._service.models.find("gate").pipe

    def waiting():
        return pipe.stats()["nodes"]["main"]["waiting"]

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer, stream = channel.unary_unary(INFER), channel.stream_stream(STREAM)
        running = infer.future(items("gate", b"one"))
        assert gate.entered.wait(300)
        queued = [infer.future(items("gate", b"two")) for _ in range(5)]
        ends = threading.Event()

        def questions():
            yield items("gate", b"two")
            yield items("gate", b"two")
            ends.wait(300)

        streamed = stream(questions())
        until(server, lambda: waiting() == 7)
        among.round()
        for one in (*queued, streamed):
            one.cancel()
        until(server, lambda: waiting() == 0)
        running.cancel()
        ends.set()
        among.round()
        gate.open.set()
        assert infer(items("gate", b"three"))
    assert gate.seen[0] == b"one"
    assert b"two" not in gate.seen
    assert settled(server) == 0
    among.round()


def test_everything_that_is_there_ends_when_the_server_closes_under_full_load(honest, gate):
    among = honest({"gate": {"backend": "ServeGate", "max": 4}})
    server = among.server
    pipe = server._service.models.find("gate").pipe
    answers = []

    def over_rest(i):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        connection.request("POST", "/run/gate", b"%d" % i)
        answer = connection.getresponse()
        answers.append((answer.status, answer.read()))
        connection.close()

    senders = [threading.Thread(target=over_rest, args=(i,)) for i in range(40)]
    for one in senders:
        one.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        calls = [channel.unary_unary(INFER).future(items("gate", b"%d" % i)) for i in range(10)]
        assert gate.entered.wait(300)
        until(server, lambda: pipe.stats()["nodes"]["main"]["submitted"] == 50)
        closing = threading.Thread(target=server.close)
        closing.start()
        until(server, lambda: server._service.draining)
        with pytest.raises((OSError, http.client.HTTPException)):
            over_rest(99)  # nobody new comes in
        gate.open.set()
        for one in senders:
            one.join()
        assert all(len(one.result()) > 5 for one in calls)
        closing.join()
    assert sorted(answers) == sorted((200, b"%d" % i) for i in range(40))
    assert len(gate.seen) == 50  # each ran once


def test_reloads_under_full_load(honest, tmp_path):
    path = tmp_path / "echo.toml"
    path.write_text('backend = "Identity"\nmax = 4')
    among = honest({"echo": str(path)})
    ends = threading.Event()
    failed, done = [], threading.Semaphore(0)

    def reload():
        try:
            while not ends.is_set():
                among.server.reload()
                done.release()
        except BaseException as error:
            failed.append(error)
            done.release()

    reloading = threading.Thread(target=reload)
    reloading.start()
    for _ in range(4):
        assert done.acquire(timeout=300)
        for _ in range(3):
            among.round()
    ends.set()
    reloading.join()
    assert failed == []
    among.round()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_process_that_is_killed_costs_its_own_requests_alone(honest, tmp_path):
    (tmp_path / "mortal.py").write_text(
        "import os, headrace\n"
        "@headrace.register('ServeWhere')\n"
        "def where(data):\n"
        "    return str(os.getpid())\n"
    )
    config = {"import": [str(tmp_path / "mortal.py")], "backend": "Process[ServeWhere]", "max": 4}
    among = honest({"mortal": config})
    connection = http.client.HTTPConnection("127.0.0.1", among.server.port, timeout=300)

    def ask():
        connection.request("POST", "/run/mortal", b"x")
        answer = connection.getresponse()
        body = json.loads(answer.read())
        assert answer.status in (200, 503), body
        if answer.status == 503:
            assert int(answer.getheader("Retry-After")) >= 1
            return None
        return int(body["result"])

    first = ask()
    for _ in range(2):
        os.kill(first, signal.SIGKILL)
        among.round()
        while (now := ask()) in (None, first):
            among.round()
        first = now
    connection.close()
