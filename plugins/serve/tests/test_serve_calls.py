"""Calls of gRPC over the server's own HTTP/2, frame by frame where a client of gRPC would not do it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import shutil
import socket
import subprocess
import threading
import zlib

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from serve_helpers import until

import headrace
from headrace_serve import Limits
from headrace_serve.grpc.messages import message

INFER = b"/inference.GRPCInferenceService/ModelInfer"
STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"
IDENTITY = {"m": {"backend": "Identity"}}
SUMS = {
    "m": {
        "config": {"backend": "ServeSums", "max": 8},
        "inputs": {name: {"datatype": "FP32", "shape": [-1, -1], "batched": True} for name in "ab"},
        "outputs": {name: {"datatype": "FP32", "shape": [-1, -1]} for name in ("sum", "less")},
    }
}


class Sums(headrace.Backend):
    """Adds and subtracts."""

    reads = ("a", "b")

    def forward(self, batch):
        for request in batch:
            a, b = request["a"], request["b"]
            request["result"] = {"sum": a + b, "less": a - b}


headrace.register("ServeSums", Sums)


class Client:
    """A client of `h2` that has one connection."""

    def __init__(self, server, port=None):
        self.socket = socket.create_connection((server.host, port or server.grpc_port), timeout=60)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.events = []

    def begin(self, path=INFER, *more, kind="application/grpc", method="POST"):
        number = self.h2.get_next_available_stream_id()
        fields = [
            (":method", method), (":scheme", "http"), (":path", path.decode()), (":authority", "localhost"),
            ("te", "trailers"), ("content-type", kind), *more,
        ]  # fmt: skip
        self.h2.send_headers(number, fields)
        return number

    def send(self, number, data, *, last=True):
        while data:
            size = min(len(data), self.h2.local_flow_control_window(number), 16384)
            if not size:
                self.look()
                continue
            self.h2.send_data(number, data[:size])
            data = data[size:]
        if last:
            self.h2.end_stream(number)
        self.flush()

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def look(self):
        """Wait for bytes of the server. Return whether there are any."""
        self.flush()
        data = self.socket.recv(65536)
        new = self.h2.receive_data(data) if data else []
        for event in new:
            if isinstance(event, h2.events.DataReceived):
                size = event.flow_controlled_length
                self.h2.acknowledge_received_data(size, event.stream_id)
        self.events += new
        self.flush()
        return bool(data)

    def result(self, number):
        """Wait for the answer. Return its headers, its bytes, and what is behind them."""
        ends = (h2.events.StreamEnded, h2.events.StreamReset)
        while not any(isinstance(e, ends) and e.stream_id == number for e in self.events):
            assert self.look()
        heads, body = [], b""
        for event in self.events:
            if getattr(event, "stream_id", None) != number:
                continue
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                heads.append(dict(event.headers))
            elif isinstance(event, h2.events.DataReceived):
                body += event.data
        return heads[0], body, heads[-1]


@pytest.fixture
def client():
    opened = []

    def connect(server, port=None):
        opened.append(Client(server, port))
        return opened[-1]

    yield connect
    for one in opened:
        one.socket.close()


def infer(data=b"x", name="m"):
    request = message("inference.ModelInferRequest")(model_name=name)
    request.inputs.add(name="data", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
    return request.SerializeToString()


def prefixed(data, flag=0):
    return bytes([flag]) + len(data).to_bytes(4, "big") + data


def raw_of(body):
    answer = message("inference.ModelInferResponse").FromString(body)
    return answer.raw_output_contents[0][4:]


def held_bytes(server):
    return server._service._inflight_bytes


def test_384_calls_of_all_sizes_at_once_each_get_their_own_answer(serving):
    """On one connection, some by streams, some with a deadline, some compressed, and every tenth is cancelled."""
    server = serving(SUMS, grpc_port=0)

    async def main():
        wrong = answered = 0

        async def one(client, number):
            nonlocal wrong, answered
            rng = np.random.default_rng(number)
            size = int(rng.choice([1, 8, 64, 64, 3000, 3000, 40_000]))
            sent = {name: rng.random((1, size), np.float32) for name in "ab"}
            inputs = []
            for name, array in sent.items():
                inputs.append(triton.InferInput(name, array.shape, "FP32"))
                inputs[-1].set_data_from_numpy(array)
            how = {"compression_algorithm": "gzip"} if number % 7 == 3 else {}
            how |= {"client_timeout": 120} if number % 3 else {}
            if number % 5 == 4:
                asked = iter([{"model_name": "m", "inputs": inputs, "request_id": str(number)}])

                async def questions():
                    for each in asked:
                        yield each

                results = [r async for r, _ in client.stream_infer(questions())]
                assert [r.get_response().id for r in results] == [str(number)]
            else:
                work = asyncio.ensure_future(
                    client.infer("m", inputs, request_id=str(number), **how)
                )
                if number % 10 == 1:
                    await asyncio.sleep(0)
                    work.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await work
                    return
                results = [await work]
                assert results[0].get_response().id == str(number)
            found = results[0]
            answered += 1
            wrong += not np.array_equal(found.as_numpy("sum"), sent["a"] + sent["b"])
            wrong += not np.array_equal(found.as_numpy("less"), sent["a"] - sent["b"])

        async with triton_aio.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as made:
            await asyncio.gather(*(one(made, number) for number in range(384)))
        return answered, wrong

    assert asyncio.run(asyncio.wait_for(main(), 300)) == (384 - 39, 0)
    until(lambda: held_bytes(server) == 0 and server._service.counters.in_flight["grpc"] == 0)
    assert server._service.unsent_bytes == 0


@pytest.mark.parametrize(
    ("coding", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
@pytest.mark.parametrize("size", [10, 100_000])
def test_who_sends_compressed_messages_gets_such_answers(serving, client, coding, unpack, size):
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}[coding]
    server = serving(IDENTITY, grpc_port=0)
    one, data = client(server), b"z" * size
    for path in (INFER, STREAM):
        number = one.begin(path, ("grpc-encoding", coding))
        one.send(number, prefixed(pack(infer(data)), 1))
        head, body, last = one.result(number)
        assert (head["grpc-encoding"], last["grpc-status"], body[0]) == (coding, "0", 1)
        found = unpack(body[5:])
        if path == STREAM:
            streamed = message("inference.ModelStreamInferResponse").FromString(found)
            found = streamed.infer_response.SerializeToString()
        assert raw_of(found) == data
    number = one.begin()
    one.send(number, prefixed(infer(data)))
    head, body, _ = one.result(number)
    assert ("grpc-encoding" in head, body[0]) == (False, 0)
    until(lambda: held_bytes(server) == 0)


@pytest.mark.parametrize(
    ("fields", "data", "status", "text"),
    [
        ([], prefixed(b"\0\0", 1), "3", "grpc-encoding"),
        ([("grpc-encoding", "gzip")], prefixed(b"no gzip", 1), "3", "gzip"),
        ([("grpc-encoding", "br")], prefixed(infer()), "12", "gzip"),
        ([("grpc-timeout", "soon")], prefixed(infer()), "13", "grpc-timeout"),
        ([], prefixed(infer())[:-1], "3", "within a message"),
        ([], b"\0\0", "3", "within a message"),
        ([], b"", "3", "no message"),
        ([], prefixed(b"\xff\xff"), "3", "cannot be read"),
        ([("grpc-timeout", "0n")], prefixed(infer()), "4", "time of the request was over"),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(serving, client, fields, data, status, text):
    server = serving(IDENTITY, grpc_port=0)
    one = client(server)
    number = one.begin(INFER, *fields)
    one.send(number, data)
    _, _, last = one.result(number)
    assert last["grpc-status"] == status
    assert text in last["grpc-message"].lower()
    number = one.begin()
    one.send(number, prefixed(infer(b"after")))
    assert raw_of(one.result(number)[1][5:]) == b"after"
    until(lambda: held_bytes(server) == 0)


def test_a_method_that_is_not_there_is_named(serving):
    server = serving(IDENTITY, grpc_port=0)
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        with pytest.raises(grpc.RpcError, match=r"no method /a\.B/C") as caught:
            channel.unary_unary("/a.B/C")(b"", timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("method", "status"), [("GET", 405), ("HEAD", 405), ("POST", 415), ("PUT", 405)]
)
def test_what_is_no_call_gets_an_answer_of_http(serving, method, status):
    server = serving(IDENTITY, grpc_port=0)
    with httpx.Client(http1=False, http2=True) as asked:
        answer = asked.request(
            method, f"http://127.0.0.1:{server.grpc_port}/v2", content=b"{}" * (method == "POST")
        )
    assert answer.status_code == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert ("calls of gRPC" in answer.text) is (method != "HEAD")


def test_bytes_of_a_message_count_as_they_come_and_until_the_call_ends(serving, client):
    server = serving(IDENTITY, grpc_port=0, limits=Limits(max_inflight_bytes=1_000_000))
    one, data = client(server), prefixed(infer(b"y" * 600_000))
    number = one.begin()
    one.send(number, data[:300_000], last=False)
    until(lambda: held_bytes(server) == 300_000 - 5)
    other = one.begin()
    one.send(other, data[:550_000], last=False)
    until(lambda: held_bytes(server) == 850_000 - 10)
    third = one.begin()
    with contextlib.suppress(h2.exceptions.StreamClosedError):
        one.send(third, data)
    _, _, last = one.result(third)
    assert (last["grpc-status"], last["code"]) == ("8", "overloaded")
    one.h2.reset_stream(other)
    one.flush()
    until(lambda: held_bytes(server) == 300_000 - 5)
    one.send(number, data[300_000:])
    assert len(one.result(number)[1]) > 600_000
    until(lambda: held_bytes(server) == 0)


def test_a_message_that_does_not_come_whole_is_given_up(serving, client):
    server = serving(IDENTITY, grpc_port=0, limits=Limits(receive_timeout_s=0.05))
    one = client(server)
    for path in (INFER, STREAM):
        number = one.begin(path)
        one.send(number, prefixed(infer())[:9], last=False)
        _, body, last = one.result(number)
        assert "not received" in (last.get("grpc-message", "") + body.decode("latin-1"))
    until(lambda: held_bytes(server) == 0)


def fields_of(count):
    """Return a message with as many empty inputs."""
    return b"\x0a\x01m" + b"\x2a\x00" * count


def contents(number, data):
    """Return a message with an input that has this field of contents."""
    inner = bytes([number << 3 | 2]) + varint(len(data)) + data
    tensor = b"\x0a\x04data\x12\x05INT32\x1a\x01\x01\x2a" + varint(len(inner)) + inner
    return b"\x0a\x01m\x2a" + varint(len(tensor)) + tensor


def varint(size):
    written = bytearray()
    while size >= 128:
        written.append(size & 127 | 128)
        size >>= 7
    return bytes([*written, size])


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (fields_of(100_000), "INVALID_ARGUMENT", "input"),
        (contents(2, b"\1" * 2_000_000), "RESOURCE_EXHAUSTED", "body_too_large"),
        (contents(8, b"")[:-2] + b"\x42\x00" * 0, "INVALID_ARGUMENT", "input"),
        (b"\x0a\x01m" + b"\x3a\x00" * 100_000, "INVALID_ARGUMENT", "input"),
        (b"\x0a\x01m" + b"\x22\x00" * 100_000, "INVALID_ARGUMENT", "input"),
        (b"\x0a\x01m" + b"\x10\x01" * 100_000, "INVALID_ARGUMENT", "input"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_message_that_becomes_much_is_not_parsed(serving, data, status, code, streamed):
    server = serving(IDENTITY, grpc_port=0)
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        if streamed:
            answer = next(channel.stream_stream(STREAM.decode())(iter([data]), timeout=60))
            told = message("inference.ModelStreamInferResponse").FromString(answer)
            assert told.infer_response.parameters["code"].string_param == code
        else:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(INFER.decode())(data, timeout=60)
            assert caught.value.code().name == status
            assert dict(caught.value.trailing_metadata())["code"] == code
    until(lambda: held_bytes(server) == 0)


def test_elements_are_priced_and_those_that_fit_are_answered(serving):
    """A large element costs little more than its bytes; many small ones take more than a thousand times the time of a call."""
    models = {"m": {"config": {"backend": "ServeLengths"}}}
    headrace.register("ServeLengths", len, replace=True)
    models["m"]["inputs"] = {"data": {"datatype": "BYTES", "shape": [-1]}}
    server = serving(models, grpc_port=0, limits=Limits(max_items=20_000, max_json_bytes=4 << 20))
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        ask = channel.unary_unary(INFER.decode())
        for sizes in ([2_000_000], [3] * 20_000):
            request = message("inference.ModelInferRequest")(model_name="m")
            one = request.inputs.add(name="data", datatype="BYTES", shape=[len(sizes)])
            one.contents.bytes_contents.extend(b"e" * size for size in sizes)
            answer = ask(request.SerializeToString(), timeout=120)
            assert message("inference.ModelInferResponse").FromString(answer).outputs
        many = message("inference.ModelInferRequest")(model_name="m")
        one = many.inputs.add(name="data", datatype="BYTES", shape=[60_000])
        one.contents.bytes_contents.extend([b""] * 60_000)
        with pytest.raises(grpc.RpcError, match="bytes of objects"):
            ask(many.SerializeToString(), timeout=120)
    until(lambda: held_bytes(server) == 0)


def test_a_stream_that_is_read_slowly_takes_no_more_than_its_window(serving, client, gate):
    """A client may send on a stream whose requests wait: its window does not grow while they do."""
    server = serving({"m": {"backend": "ServeGate", "queue_size": 1000}}, grpc_port=0)
    one = client(server)
    number = one.begin(STREAM)
    one.send(number, b"", last=False)
    sent = 0
    data = prefixed(infer(b"w" * 60_000))
    while one.h2.local_flow_control_window(number) >= len(data) and sent < 200:
        one.send(number, data, last=False)
        sent += 1
        one.h2.update_settings({4: 65535 + sent})
        while not any(isinstance(e, h2.events.SettingsAcknowledged) for e in one.events):
            one.look()
        one.events.clear()
    gate.open.set()
    assert sent <= 64 + 20  # those that run, and the window
    one.h2.end_stream(number)
    assert one.result(number)[2]["grpc-status"] == "0"


def test_a_key_is_asked_for_on_every_call_of_a_known_head(serving, client, tmp_path):
    """The same bytes of headers a second time, a call later without the key, and with one that lacks the right."""
    import hashlib

    def table(name, key, rights):
        return (
            f'[{name}]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\nrights = {rights}\n'
        )

    file = tmp_path / "keys.toml"
    file.write_text(table("a", "ka", '["infer"]') + table("b", "kb", '["describe"]'))
    server = serving(IDENTITY, grpc_port=0, keys=str(file))
    one = client(server)
    wanted = {"ka": "0", "kb": "7", "kc": "16", None: "16"}
    for _ in range(3):
        for key, status in wanted.items():
            number = one.begin(INFER, *([] if key is None else [("x-api-key", key)]))
            one.send(number, prefixed(infer()))
            assert one.result(number)[2]["grpc-status"] == status
    file.write_text(table("b", "kb", '["infer"]'))
    server.reload()
    for key, status in {"ka": "16", "kb": "0"}.items():
        number = one.begin(INFER, ("x-api-key", key))
        one.send(number, prefixed(infer()))
        assert one.result(number)[2]["grpc-status"] == status


def test_a_client_that_goes_away_leaves_nothing(serving, gate):
    server = serving({"m": {"backend": "ServeGate"}}, grpc_port=0)
    one = Client(server)
    for _ in range(3):
        one.send(one.begin(), prefixed(infer()))
        one.send(one.begin(), prefixed(infer())[:9], last=False)
        one.send(one.begin(STREAM), prefixed(infer()), last=False)
    assert gate.entered.wait(60)
    until(lambda: server._service.counters.in_flight["grpc"] >= 9)
    one.socket.close()
    gate.open.set()
    until(lambda: server._service.counters.in_flight["grpc"] == 0)
    until(lambda: held_bytes(server) == 0)
    door = server._grpc._made_door()
    until(lambda: not door.tasks and not door.connections and not door.receiving.due)
    assert server._service.unsent_bytes == 0


def test_what_a_connection_has_ends_with_it(serving):
    """Threads of clients that connect, ask and leave in the middle, over and over."""
    server = serving(IDENTITY, grpc_port=0)

    def storm(seed):
        rng = np.random.default_rng(seed)
        for turn in range(40):
            one = Client(server)
            data = prefixed(infer(b"%d-%d" % (seed, turn) * 100))
            cut = int(rng.integers(len(data)))
            for _ in range(int(rng.integers(1, 4))):
                one.send(one.begin(), data)
            number = one.begin()
            one.send(number, data[:cut], last=False)
            if rng.random() < 0.5:
                one.send(number, data[cut:])
                found.append(raw_of(one.result(number)[1][5:]) == b"%d-%d" % (seed, turn) * 100)
            one.socket.close()

    found = []
    threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(found)
    assert found
    door = server._grpc._made_door()
    until(lambda: not door.tasks and not door.connections and not door.receiving.due)
    assert (held_bytes(server), server._service.unsent_bytes) == (0, 0)


@pytest.mark.parametrize("grpc_port", [None, 0])
def test_the_port_of_http_speaks_grpc_too(serving, client, grpc_port):
    server = serving(IDENTITY, grpc_port=grpc_port, limits=Limits(max_connections=2))
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as made:
        assert made.is_server_ready()
        assert httpx.post(f"{server.url}/run/m", content=b"r").content == b"r"
        one = client(server, server.port)
        number = one.begin()
        one.send(number, prefixed(infer(b"both")))
        assert raw_of(one.result(number)[1][5:]) == b"both"
        other = client(server, server.port)  # one more than there may be
        while other.look():
            pass
        gone = [e for e in other.events if isinstance(e, h2.events.ConnectionTerminated)]
        assert b"no more connections" in gone[0].additional_data
    one.socket.close()
    until(lambda: not server._grpc._made_door().connections)


def test_calls_on_the_port_of_http_end_with_their_answers(serving, gate):
    server = serving({"m": {"backend": "ServeGate"}})
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        running = channel.unary_unary(INFER.decode()).future(infer(b"1"))
        assert gate.entered.wait(60)
        closing = threading.Thread(target=server.close)
        closing.start()
        until(lambda: server._service.draining)
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(INFER.decode())(infer(b"2"), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        gate.open.set()
        assert running.result(60)
        closing.join()


def test_the_port_of_those_who_operate_speaks_no_grpc(serving):
    server = serving(IDENTITY, admin_port=0)
    with socket.create_connection((server.host, server.admin_port), timeout=60) as made:
        made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert made.recv(65536).startswith(b"HTTP/1.1 4")


def by_go(request, package):
    """Return a program that Go builds once."""
    program = request.config.cache.mkdir("go") / package.rpartition("/")[2]
    if not program.exists():
        env = {**os.environ, "GOBIN": str(program.parent)}
        subprocess.run(["go", "install", f"{package}@latest"], check=True, env=env)
    return program


@pytest.mark.peers
@pytest.mark.skipif(shutil.which("go") is None, reason="needs go")
@pytest.mark.parametrize("words", [(), ("-S",)])
def test_h2spec_finds_nothing(serving, words, request):
    """The conformance suite of HTTP/2."""
    program = by_go(request, "github.com/summerwind/h2spec/cmd/h2spec")
    server = serving(IDENTITY, grpc_port=0)
    where = ["-h", server.host, "-p", str(server.grpc_port), "-o", "10"]
    done = subprocess.run([program, *where, *words], capture_output=True, text=True, check=False)
    assert " 0 skipped, 0 failed" in done.stdout, done.stdout[-5000:]


@pytest.mark.peers
@pytest.mark.skipif(shutil.which("go") is None, reason="needs go")
def test_grpcurl_finds_services_and_asks(serving, request):
    """The client of Go, which learns the messages by reflection."""
    program = by_go(request, "github.com/fullstorydev/grpcurl/cmd/grpcurl")
    server = serving(IDENTITY, grpc_port=0)

    def told(port, *words):
        where = f"127.0.0.1:{port}"
        given = [one for one in words if one.startswith("{")]
        command = [program, "-plaintext", *(["-d", given[0]] if given else []), where]
        command += [one for one in words if one not in given]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    tensor = '{"name":"data","datatype":"BYTES","shape":[1],"contents":{"bytes_contents":["YWJj"]}}'
    question = f'{{"model_name":"m","inputs":[{tensor}]}}'
    for port in (server.grpc_port, server.port):
        assert "inference.GRPCInferenceService" in told(port, "list").split()
        assert "SERVING" in told(port, "grpc.health.v1.Health/Check")
        for method in ("ModelInfer", "ModelStreamInfer"):
            answer = told(port, question, f"inference.GRPCInferenceService/{method}")
            assert "AwAAAGFiYw==" in answer  # the length, and abc
