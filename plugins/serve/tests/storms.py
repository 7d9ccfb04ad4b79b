"""Random clients of a server, each of which takes nothing but its own answers."""

from __future__ import annotations

import collections
import contextlib
import json
import random
import socket
import struct
import threading

import numpy as np

LATE_S = 20.0
"""A client that waits longer for an answer has lost it."""
CUT = 0.03
HALF_CLOSED = 0.02
IN_PIECES = 0.15


class Storm:
    """Clients with their requests, and what they have seen.

    Args:
        server: The server. Its models ``add`` and ``slow`` give the sum of two arrays, ``tight`` does so with a short queue, and
            ``length`` the length of a file.
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

    def request(self, chooses, numbers):
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
        model = chooses.choice(("add",) * 6 + ("slow", "tight", "length", "length"))
        if model == "length":
            size = chooses.choice((0, 1, 10, 100, 70_000))
            path, body, right = "/run/length", b"x" * size, b'{"result":%d}' % size
        else:
            count = chooses.choice((8, 8, 8, 64, 3000, 40_000))
            first, second = numbers.random(count, np.float32), numbers.random(count, np.float32)
            path, right = f"/v2/models/{model}/infer", (first + second).tobytes()
            form = {
                "shape": [1, count],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 4 * count},
            }
            inputs = [{"name": name, **form} for name in ("first", "second")]
            said = json.dumps(
                {"inputs": inputs, "parameters": {"binary_data_output": True}}
            ).encode()
            headers.append(f"Inference-Header-Content-Length: {len(said)}")
            body = said + first.tobytes() + second.tobytes()

        def judge(status, head, found):
            if sent_id is not None and head.get("x-request-id") != sent_id:
                return "wrong"
            if status != 200:
                return "refused" if (status, must_fail) in REFUSED else "wrong"
            place = int(head.get("inference-header-content-length", 0))
            return "right" if found[place:] == right and not must_fail else "wrong"

        lines = [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Content-Length: {len(body)}",
            *headers,
        ]
        chooses.shuffle(lines[1:])
        return "\r\n".join([*lines, "", ""]).encode() + body, judge


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
