"""A server on a free port, and backends whose end the tests decide."""

from __future__ import annotations

import threading

import pytest

import headrace
from headrace.errors import InputError
from headrace_serve import Server


class Gate:
    """Runs until `open` is set; `entered` says that it runs."""

    def __init__(self):
        self.entered = threading.Event()
        self.open = threading.Event()
        self.seen = []

    def forward(self, batch):
        self.entered.set()
        assert self.open.wait(60)
        for request in batch:
            self.seen.append(request["data"])
            request["result"] = request["data"]


class Picky(headrace.Backend):
    """Refuses what starts with ``bad``, breaks on ``break``, tells what it is asked for."""

    rerun = True
    max = None

    def forward(self, batch):
        outcomes = []
        for request in batch:
            data, error = request["data"], None
            if data.startswith(b"bad"):
                error = InputError("this is bad")
            elif data.startswith(b"break"):
                error = RuntimeError("secret of the backend")
            elif data == b"context":
                request["result"] = dict(request["context"])
            else:
                request["result"] = data.decode().upper()
            outcomes.append(error)
        return outcomes


headrace.register("ServePicky", Picky)


@pytest.fixture
def gate():
    """A gate, and the name of a backend that is it."""
    made = Gate()

    class One:
        def forward(self, batch):
            made.forward(batch)

    headrace.register("ServeGate", One, replace=True)
    yield made
    made.open.set()


@pytest.fixture
def serving():
    """Start servers, which are closed at the end."""
    servers = []

    def start(models, **settings):
        server = Server(models, port=0, **settings)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close(timeout=5.0)
