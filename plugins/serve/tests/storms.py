"""Random clients of a server, each of which takes nothing but its own answers."""

from __future__ import annotations

import collections
import contextlib
import json
import random
import socket
import struct
import threading
from functools import partial

import numpy as np

LATE_S = 20.0
"""A client that waits longer for an answer has lost it."""
CUT = 0.03
HALF_CLOSED = 0.02
IN_PIECES = 0.15
KINDS = ("add",) * 4 + ("slow", "tight", "length", "length", "JSON", "JSON", "embeddings")
KIND = {}


class Storm:
    """Clients with their requests, and what they have seen.

    Args:
        server: The server. Its models ``add`` and ``slow`` give the sum of two arrays, ``tight`` does so with a short queue,
            ``length`` the length of a file, and ``vectors`` that of a text as the first of two numbers. It has the API ``openai``.
        seed: Of all random choices.
        keys: The keys that clients send. Empty where none are needed.

    Attributes:
        seen: How many answers there were of each kind. ``wrong`` is that of another request, or of no request.
        revoked: The keys that must be refused from now on.
    """

    def __init__(self, server, seed, keys=()):
        self.server, self.random, self.keys = server, random.Random(seed), keys
        self.seen, self.revoked = collections.Counter(), set()
        self._lock = threading.Lock()

    def run(self, clients, connections, meanwhile=()):
        """Let clients open connections one after the other, and call each of ``meanwhile`` in between."""
        threads = [
            threading.Thread(
                target=self._client, args=(self.random.randrange(1 << 30), connections)
            )
            for _ in range(clients)
        ]
        for one in threads:
            one.start()
        for call in meanwhile:
            call()
        for one in threads:
            one.join()
        return self.seen

    def count(self, kind):
        with self._lock:
            self.seen[kind] += 1

    def _client(self, seed, connections):
        chooses, numbers = random.Random(seed), np.random.default_rng(seed)
        for _ in range(connections):
            try:
                self._connection(chooses, numbers)
            except (EOFError, OSError, ValueError, KeyError, IndexError) as error:
                self.count("lost" if isinstance(error, (EOFError, ConnectionError)) else "wrong")

    def _connection(self, chooses, numbers):
        with socket.create_connection(("127.0.0.1", self.server.port)) as client:
            client.settimeout(LATE_S)
            for _ in range(chooses.randrange(1, 30)):
                asked = [
                    self.request(chooses, numbers) for _ in range(chooses.choice((1, 1, 1, 2, 4)))
                ]
                data = b"".join(sent for sent, _ in asked)
                if chooses.random() < IN_PIECES:
                    place = chooses.randrange(1, len(data))
                    client.sendall(data[:place])
                    data = data[place:]
                client.sendall(data)
                if chooses.random() < CUT:
                    if chooses.random() < 0.5:
                        linger = struct.pack("ii", 1, 0)
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.count("cut")
                    return
                ends = chooses.random() < HALF_CLOSED
                if ends:
                    client.shutdown(socket.SHUT_WR)
                rest = b""
                for _, is_right in asked:
                    status, head, body, rest = answer(client, rest)
                    self.count(is_right(status, head, body))
                if rest:
                    self.count("wrong")
                if ends:
                    return

    def request(self, chooses, numbers, kinds=KINDS):
        """Return the bytes of a request, and a function that judges its answer."""
        headers, key = [], chooses.choice(self.keys) if self.keys else None
        must_fail = key in self.revoked
        if key is not None:
            headers.append(f"X-API-Key: {key}")
        if chooses.random() < 0.3:
            headers.append(f"X-Request-Id: r{chooses.randrange(1 << 30)}")
        if chooses.random() < 0.2:  # heads that differ in one byte
            headers.append(f"User-Agent: storm/{chooses.randrange(3)}")
        sent_id = next((one[14:] for one in headers if one.startswith("X-Request-Id")), None)
        path, body, more, is_right = KIND[chooses.choice(kinds)](chooses, numbers)

        def judge(status, head, found):
            if sent_id is not None and head.get("x-request-id") != sent_id:
                return "wrong"
            if status != 200:
                return "refused" if (status, must_fail) in REFUSED else "wrong"
            return "right" if is_right(head, found) and not must_fail else "wrong"

        lines = [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Content-Length: {len(body)}",
            *headers,
            *more,
        ]
        chooses.shuffle(lines[1:])
        return "\r\n".join([*lines, "", ""]).encode() + body, judge


# Kinds of requests: path, body, headers, and what says whether a 200 is its own answer.


def of_length(chooses, _):
    size = chooses.choice((0, 1, 10, 100, 70_000))
    right = b'{"result":%d}' % size
    return "/run/length", b"x" * size, [], lambda head, found: found == right


def binary(model, chooses, numbers):
    count = chooses.choice((8, 8, 8, 64, 3000, 40_000))
    first, second = numbers.random(count, np.float32), numbers.random(count, np.float32)
    right = (first + second).tobytes()
    form = {
        "shape": [1, count],
        "datatype": "FP32",
        "parameters": {"binary_data_size": 4 * count},
    }
    inputs = [{"name": name, **form} for name in ("first", "second")]
    said = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()

    def is_right(head, found):
        return found[int(head.get("inference-header-content-length", 0)) :] == right

    more = [f"Inference-Header-Content-Length: {len(said)}"]
    return f"/v2/models/{model}/infer", said + first.tobytes() + second.tobytes(), more, is_right


def in_json(chooses, numbers):
    count = chooses.choice((8, 8, 8, 30, 9000))
    first, second = (numbers.integers(0, 1000, count).tolist() for _ in range(2))
    right = [a + b for a, b in zip(first, second, strict=True)]
    identifier = chooses.choice(({}, {"id": str(chooses.randrange(1 << 30))}))
    form = {"shape": [1, count], "datatype": "FP32"}
    inputs = [{"name": "first", **form, "data": first}, {"name": "second", **form, "data": second}]

    def is_right(head, found):
        answer = json.loads(found)
        (output,) = answer["outputs"]
        return answer.get("id") == identifier.get("id") and output["data"] == right

    body = json.dumps({**identifier, "inputs": inputs}).encode()
    return "/v2/models/add/infer", body, [], is_right


def embedded(chooses, _):
    texts = ["x" * chooses.randrange(1, 500) for _ in range(chooses.choice((1, 1, 1, 3)))]

    def is_right(head, found):
        rows = json.loads(found)["data"]
        return [row["embedding"] for row in rows] == [[len(text), 0.5] for text in texts]

    body = json.dumps({"model": "vectors", "input": texts if len(texts) > 1 else texts[0]})
    return "/v1/embeddings", body.encode(), ["Content-Type: application/json"], is_right


KIND.update(
    add=partial(binary, "add"), slow=partial(binary, "slow"), tight=partial(binary, "tight"),
    length=of_length, JSON=in_json, embeddings=embedded,
)  # fmt: skip

REFUSED = {(429, False), (401, True), (401, False)}
"""Statuses that may come, and whether the key was revoked before. One that is revoked in between may be refused or not."""


def answer(client, rest):
    """Read one answer; return its status, its head, its body and what came behind it."""
    head, rest = until(client, rest, b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    size = int(headers["content-length"])
    while len(rest) < size:
        rest += received(client)
    return int(first[9:12]), headers, rest[:size], rest[size:]


def until(client, rest, end):
    while end not in rest:
        rest += received(client)
    head, _, rest = rest.partition(end)
    return head, rest


def received(client):
    found = client.recv(1 << 16)
    if not found:
        raise EOFError
    return found


def left_over(server):
    """Return what of requests a server still holds; wait until those that were cut off have been noticed."""
    service = server._service
    with contextlib.suppress(TimeoutError):
        for _ in range(2000):
            held = {
                "in_flight": service.counters.in_flight["http"],
                "bytes": service._inflight_bytes,
                "unsent": service.unsent_bytes,
                "inside": sum(model.inside for model in service.models),
                "receiving": sum(model.receiving for model in service.models),
                "tasks": len(server._state.tasks),
            }
            if not any(held.values()):
                break
            threading.Event().wait(0.01)
    return {name: value for name, value in held.items() if value}
