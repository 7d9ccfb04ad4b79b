"""Every route asks for the key of each request: of the first, of those behind a head that is known, and of the thousandth."""

from __future__ import annotations

import hashlib
import json
import re
import socket

import numpy as np
import pytest

import headrace
from headrace_serve import Keys, Server
from headrace_serve.http.rest import application

KEYS = {
    "full": {"rights": ["infer", "describe", "repository"]},
    "infer": {"rights": ["infer"]},
    "describe": {"rights": ["describe"]},
    "repository": {"rights": ["repository"]},
    "other": {"rights": ["infer", "describe", "repository"], "models": ["other"]},
}
OPEN = re.compile(r"/(ui/?|ui/\{file\}|health|ping|v2/health/(live|ready)|v2/models/.*/ready)?")
"""Pages that hold nothing, and health."""
UNSUPPORTED = re.compile(r".*(sharedmemory|trace/setting|logging).*")
BY_KEY = re.compile(r"/(embed|rerank|predict|invocations|v1/models)")
"""The answer is of the models that the key holds for."""
ANSWERED = re.compile(r".*/infer|.*/generate|/run/.*|/v1/embeddings|/v1/models/.*")
"""The models of these tests answer them."""
ROW = np.arange(4, dtype="<f4")
TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
MANY = 1000
PIPELINED = 40


class RightsVectors(headrace.Backend):
    """Gives a vector for anything."""

    max = 8

    def forward(self, batch):
        for request in batch:
            request["result"] = ROW


def right_of(method, path):
    """Return the right that a route needs, as the documents have it. None: it needs no key."""
    if method == "GET" and OPEN.fullmatch(path):
        return None
    if path.startswith("/v2/repository/models/"):
        return "repository"
    reads = method == "GET" or UNSUPPORTED.fullmatch(path) or path == "/v2/repository/index"
    return "describe" if reads else "infer"


def binary():
    tensor = {**TENSOR, "parameters": {"binary_data_size": 16}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + ROW.tobytes(), {"Inference-Header-Content-Length": len(head)}


def asked(method, path):
    """Return the requests of a route that the server can answer: target, body, headers."""
    names = {"model": "rows", "version": "1", "file": "page.js", "rest": "region/x/register"}
    if path.startswith("/v2/repository/models/"):
        names["model"] = "spare"
    if path.startswith(("/run", "/ui/load")):
        names["model"] = "vectors"
    target = re.sub(r"\{(\w+)(:path)?\}", lambda found: names[found[1]], path)
    kind = {"Content-Type": "application/json"}
    if path.endswith("/infer"):
        in_json = {"inputs": [{**TENSOR, "data": ROW.tolist()}]}
        return [(target, *binary()), (target, json.dumps(in_json).encode(), kind)]
    if path.startswith("/run"):
        return [(target, b"a file", {})]
    if method == "GET":
        return [(target, b"", {})]
    bodies = {
        "/v1/embeddings": {"model": "vectors", "input": "text"},
        "/v1/completions": {"model": "vectors", "prompt": "text"},
        "/v1/chat/completions": {
            "model": "vectors", "messages": [{"role": "user", "content": "text"}]
        },
        "/v1/rerank": {"model": "vectors", "query": "text", "documents": ["text"]},
        "/v2/rerank": {"model": "vectors", "query": "text", "documents": ["text"]},
        "/v1/classify": {"model": "vectors", "input": "text"},
        "/rerank": {"query": "text", "texts": ["text"]},
        "/invocations": {"instances": ["text"]},
        "/v1/models/{model}:predict": {"instances": [ROW.tolist()]},
    }  # fmt: skip
    body = {"x": ROW.tolist()} if "/generate" in path else bodies.get(path, {"inputs": "text"})
    if path.startswith("/v2/repository"):
        body = {}
    return [(target, json.dumps(body).encode(), kind)]


class Client:
    """A connection that stays open, which a stream of events ends."""

    def __init__(self, server, method):
        self.server, self.method = server, method
        self._connect()

    def _connect(self):
        self.connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=60)
        self.rest = b""

    def statuses(self, request, keys):
        """Send a request with each of some keys, pipelined, and return the statuses of the answers."""
        target, body, headers = request
        sent = []
        for key in keys:
            lines = [
                f"{self.method} {target} HTTP/1.1", "Host: localhost",
                *(f"{name}: {value}" for name, value in headers.items()),
                f"Content-Length: {len(body)}", *([f"X-API-Key: {key}-{'x' * 32}"] if key else []),
            ]  # fmt: skip
            sent.append("\r\n".join([*lines, "", ""]).encode() + body)
        self.connection.sendall(b"".join(sent))
        return [self._status() for _ in keys]

    def _status(self):
        head = self._until(b"\r\n\r\n").lower()
        if b"transfer-encoding: chunked" in head:
            while size := int(self._until(b"\r\n"), 16):
                self._take(size + 2)
            self._take(2)
        else:
            self._take(int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]))
        return int(head[9:12])

    def _until(self, end):
        while end not in self.rest:
            self._receive()
        found, _, self.rest = self.rest.partition(end)
        return found

    def _take(self, size):
        while len(self.rest) < size:
            self._receive()
        self.rest = self.rest[size:]

    def _receive(self):
        part = self.connection.recv(1 << 16)
        assert part, "the server has closed the connection"
        self.rest += part


@pytest.fixture(params=[("openai", "kserve-v1", "sagemaker"), ("tei",)], ids=str)
def server(request, tmp_path):
    headrace.register("RightsVectors", RightsVectors, replace=True)
    port = {"datatype": "FP32", "shape": [-1, 4]}
    rows = {
        "config": {"backend": "Identity", "max": 8},
        "inputs": {"x": {**port, "batched": True}},
        "outputs": {"y": port},
    }
    others = {name: {"backend": "RightsVectors"} for name in ("vectors", "other", "spare")}
    path = tmp_path / "keys.toml"
    path.write_text("".join(table_of(*row) for row in KEYS.items()))
    options = {"keys": Keys.load(path), "apis": request.param, "ui": True, "allow": ["repository"]}
    with Server({"rows": rows, **others}, port=0, **options) as server:
        yield server


def table_of(name, table):
    known = hashlib.sha256(f"{name}-{'x' * 32}".encode()).hexdigest()
    rows = [f"{word} = {json.dumps(value)}" for word, value in table.items()]
    return "\n".join([f"[{name}]", f'sha256 = "{known}"', *rows, ""])


def routes(server):
    """Return method and path of each route."""
    return [
        (method, route.path)
        for route in application(server._service).routes
        for method in sorted(route.methods - {"HEAD"})
    ]


def refused_keys(method, path):
    """Return the keys that a route refuses, with the status."""
    right = right_of(method, path)
    if right is None:
        return []
    lacking = [(name, 403) for name, table in KEYS.items() if right not in table["rights"]]
    known = [] if BY_KEY.fullmatch(path) else [("other", 403)]
    return [*lacking, *known, ("unknown", 401), (None, 401)]


def test_every_route_refuses_a_key_that_lacks_the_right_and_one_of_another_model(server):
    found = routes(server)
    assert {right_of(*place) for place in found} == {None, "infer", "describe", "repository"}
    for method, path in found:
        client = Client(server, method)
        for request in asked(method, path):
            refused = refused_keys(method, path)
            for key, status in refused:  # the head is not known yet
                assert client.statuses(request, [key]) == [status], (path, key)
            if right_of(method, path) is None:
                assert not {401, 403} & {*client.statuses(request, [None])}, path
                continue
            for _ in range(2):
                assert not {401, 403} & {*client.statuses(request, ["full"] * 3)}, path
                keys = [one for key, _ in refused for one in (key, "full")]
                statuses = client.statuses(request, keys)
                assert statuses[::2] == [status for _, status in refused], path
                assert not {401, 403} & {*statuses[1::2]}, path
        client.connection.close()


def test_the_thousandth_request_needs_the_right_as_the_first_does(server):
    for method, path in routes(server):
        if right_of(method, path) != "infer" or "_stream" in path or "/ui/" in path:
            continue
        client = Client(server, method)
        for request in asked(method, path):
            refused = refused_keys(method, path)
            for start in range(0, MANY, PIPELINED):
                key, status = refused[start // PIPELINED % len(refused)]
                statuses = client.statuses(request, ["full", key] * (PIPELINED // 2))
                assert {*statuses[1::2]} == {status}, (path, key)
                assert not {401, 403} & {*statuses[::2]}, path
                if ANSWERED.fullmatch(path):
                    assert {*statuses[::2]} == {200}, path
        client.connection.close()
