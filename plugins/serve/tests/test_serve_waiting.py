"""Requests that wait for their model: what clients find where a fault is planted into the waiting."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import json
import socket
import threading
from typing import ClassVar

import httpx
import pytest
import storms

import headrace
from headrace_models import Memory
from headrace_models.builds import Build
from headrace_serve import Server
from headrace_serve.http import cycle
from headrace_serve.http.exchange import Exchange
from headrace_serve.models.updates import ModelUpdates

BODY = {"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
ASK = {"run": b"x", "v2/models": json.dumps(BODY).encode()}
QUEUE_SIZE = 4


class WaitsToServe(headrace.Backend):
    """Write its text. Its build waits for the gate."""

    class Options(headrace.Options):
        positional = ("text",)
        text: str

    gate: ClassVar[threading.Event] = threading.Event()

    def init(self, options, context):
        self.text = options.text
        assert WaitsToServe.gate.wait(60)

    def forward(self, batch):
        for request in batch:
            request["result"] = self.text


@pytest.fixture
def waits():
    headrace.register("WaitsToServe", WaitsToServe, replace=True)
    WaitsToServe.gate = threading.Event()
    WaitsToServe.gate.set()
    yield
    WaitsToServe.gate.set()


class Client:
    """One open connection of HTTP, which notices each byte that is not of its own answer."""

    def __init__(self, server, path, timeout_us=None):
        self.path, self.rest = path, b""
        self.socket = socket.create_connection(("127.0.0.1", server.port), storms.LATE_S)
        end = "" if path == "run" else "/infer"
        query = f"?timeout={timeout_us}" if timeout_us else ""
        self.send(f"POST /{path}/b{end}{query}", ASK[path])

    def send(self, line, body=b""):
        head = f"{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)

    def answered(self):
        """Return status and body of the next answer. Status 0: there is none."""
        try:
            status, _, body, self.rest = storms.answer(self.socket, self.rest)
        except TimeoutError:
            return 0, b""
        return status, body


def wait_for_in_flight(server, count):
    """Wait until so many requests are in flight. Where a fault is planted they may never be: return whether they are."""
    for _ in range(int(storms.LATE_S / 0.002)):
        if server._service.counters.in_flight["http"] == count:
            return True
        threading.Event().wait(0.002)
    return False


def wave(server):
    """Ask over open connections for a model that comes once its gate opens. Return what is wrong with the answers."""
    WaitsToServe.gate = threading.Event()
    wrong = collections.Counter()
    with contextlib.ExitStack() as stack:
        stack.callback(WaitsToServe.gate.set)

        def ask(count, **settings):
            clients = [Client(server, [*ASK][n % 2], **settings) for n in range(count)]
            for client in clients:
                stack.callback(client.socket.close)
            return clients

        def judge(clients, status, text):
            for client in clients:
                got, body = client.answered()
                wrong["lost" if not got else "wrong"] += got != status or text not in body

        patient = ask(QUEUE_SIZE - 2)
        judge(ask(2, timeout_us=30_000), 504, b'"deadline"')
        (gone, kept) = ask(2)
        patient.append(kept)
        wait_for_in_flight(server, QUEUE_SIZE)
        full = ask(1)
        judge(full, 429, b'"memory"')
        gone.socket.close()
        wrong["wrong"] += not wait_for_in_flight(server, QUEUE_SIZE - 1)
        patient += ask(1)
        wait_for_in_flight(server, QUEUE_SIZE)
        WaitsToServe.gate.set()
        judge(patient, 200, b"here is b")
        for client in [*patient, *full]:
            client.send("GET /v2")
            status, body = client.answered()
            wrong["twice"] += bool(client.rest) or (status, b'"extensions"' in body) != (200, True)
    return {kind for kind, count in wrong.items() if count}


def served():
    named = {name: f"WaitsToServe('here is {name}')" for name in "ab"}
    return {
        name: {"config": {"backend": text, "queue_size": QUEUE_SIZE}, "memory": "1 GiB"}
        for name, text in named.items()
    }


def faults(rounds=1):
    with Server(served(), port=0, memory=Memory({"host": "1 GiB"}, min_stay_s=0)) as server:
        wrong = set()
        for _ in range(rounds):
            wrong |= wave(server)
            httpx.post(f"{server.url}/run/a", content=b"x")
        return wrong


def test_each_waiter_gets_its_answer_once_and_in_time(waits):
    assert faults(rounds=5) == set()


def forget_a_waiter(monkeypatch):
    wait, number = ModelUpdates.wait, itertools.count()

    async def planted(self, *args, **more):
        if next(number) == 1:
            await asyncio.Event().wait()
        return await wait(self, *args, **more)

    monkeypatch.setattr(ModelUpdates, "wait", planted)


def lose_deadlines(monkeypatch):
    wait = ModelUpdates.wait

    async def planted(self, name, version="", key=None, until_s=None):
        return await wait(self, name, version, key)

    monkeypatch.setattr(ModelUpdates, "wait", planted)


def give_another_model(monkeypatch):
    wait = ModelUpdates.wait

    async def planted(self, *args, **more):
        await wait(self, *args, **more)
        return self._service.models.get("a", "1")

    monkeypatch.setattr(ModelUpdates, "wait", planted)


def answer_twice(monkeypatch):
    answer = cycle.Cycle.answer

    def planted(self, head, parts):
        wire = self.connection.transport
        done = answer(self, head, parts)
        if b"here is b" in b"".join(parts):
            wire.write(b"".join([head, b"date: now\r\n\r\n", *parts]))
        return done

    monkeypatch.setattr(cycle.Cycle, "answer", planted)


def let_all_wait(monkeypatch):
    monkeypatch.setattr(Build, "queued", lambda self, count=1: contextlib.nullcontext())


def let_who_has_gone_wait(monkeypatch):
    async def planted(self, work):
        return await work

    monkeypatch.setattr(Exchange, "while_connected", planted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "seen"),
    [
        (forget_a_waiter, "lost"),
        (lose_deadlines, "lost"),
        (give_another_model, "wrong"),
        (answer_twice, "twice"),
        (let_all_wait, "lost"),
        (let_who_has_gone_wait, "wrong"),
    ],
)
def test_a_planted_fault_is_found(waits, monkeypatch, plant, seen):
    plant(monkeypatch)
    monkeypatch.setattr(storms, "LATE_S", 3.0)
    assert seen in faults()
