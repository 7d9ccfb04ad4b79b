"""A server on a free port, and backends whose end the tests decide."""

from __future__ import annotations

import asyncio
import functools
import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from certificate_files import write_certificates

import headrace
from headrace.errors import InputError
from headrace_serve import Server

# A busy machine is ten times slower than an idle one, and httpx gives up after five seconds.
for _part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _part, 60.0)

_usual_context = functools.cache(httpx.create_ssl_context)


def context_read_once(verify=True, cert=None, trust_env=True):
    """Return the context for TLS of a client. The usual one has all authorities: 30 ms, also for who asks without TLS."""
    if verify is True and cert is None:
        return _usual_context(trust_env=trust_env)
    return httpx.create_ssl_context(verify, cert, trust_env)


httpx._transports.default.create_ssl_context = context_read_once


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

sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside this one


@pytest.fixture
def held_bytes():
    """Return the bytes that a server holds of bodies when every request of REST has ended, not just got its answer."""

    async def ended(server):
        while server._state.tasks:
            await asyncio.sleep(0)
        return server._service._inflight_bytes

    def held_bytes(server):
        return asyncio.run_coroutine_threadsafe(ended(server), server._loop).result()

    return held_bytes


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


@pytest.fixture(scope="module")
def plain():
    """A server with a model ``m`` that gives back what comes, for tests that change nothing of it."""
    with Server({"m": {"backend": "Identity"}}, port=0) as made:
        yield made


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return write_certificates(tmp_path_factory.mktemp("tls"))


SERVE = (
    "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "sys.argv[:1] = ['headrace', 'serve']; runpy.run_module('headrace', run_name='__main__')"
)
"""``headrace serve`` that takes SIGINT, which a shell's background jobs ignore.

A ``preexec_fn`` would do it, too, but then the child is forked, and gRPC, if a test before has used
it, writes to the child's stderr.
"""


@pytest.fixture
def start():
    """Start ``headrace serve`` and give the process and the address that it says."""
    processes = []

    def run(*args, cwd):
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *args], cwd=cwd, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        line = process.stderr.readline()
        process.first_line = line
        found = re.search(r'serving ([^\s"]+)', line)  # also in an object of JSON
        assert found is not None, line + process.stderr.read()
        return process, found[1]

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(300)
        process.stderr.close()
