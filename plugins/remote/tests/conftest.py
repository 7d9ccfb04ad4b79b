"""Servers and pipelines, which end with their test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace_serve import Server

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # from here on the tests find it among the modules that are loaded
try:
    from remote_servers import StandIn
finally:
    sys.path.remove(str(HERE))


@pytest.fixture
def stand_in():
    """Start stand-ins, which end with the test."""
    made = []

    def start(**how):
        made.append(StandIn(**how))
        return made[-1]

    yield start
    for one in made:
        one.stop()


@pytest.fixture
def remote():
    """Make pipelines of a `Remote`, which are closed at the end."""
    made = []

    def start(urls, model="m", **options):
        config = {"backend": "Remote", "model": model, "urls": urls, "max": 8, **options}
        made.append(headrace.pipe(config))
        return made[-1]

    yield start
    for one in made:
        one.close(timeout=30)


@pytest.fixture
def serving():
    """Start servers of `headrace_serve` in this process; give the address of gRPC."""
    servers = []

    def start(models, **settings):
        server = Server(models, port=0, grpc_port=0, **settings)
        servers.append(server)
        server.start()
        return f"127.0.0.1:{server.grpc_port}"

    yield start
    for server in servers:
        server.close(timeout=5.0)


@pytest.fixture
def served(tmp_path):
    """Start ``headrace serve`` in processes; give the process and its address of gRPC."""
    processes = []

    def start(config, *arguments):
        folder = tmp_path / str(len(processes))
        folder.mkdir()
        (folder / "m.toml").write_text(config)
        command = [sys.executable, "-m", "headrace", "serve", "m.toml", *arguments]
        process = subprocess.Popen(
            [*command, "--port", "0", "--grpc-port", "0"],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        line = process.stderr.readline()
        found = re.search(r" and \S*?(127\.0\.0\.1:\d+)", line)
        assert found is not None, line + process.stderr.read()
        return process, found[1]

    yield start
    for process in processes:
        process.kill()
        process.wait(60)
        process.stderr.close()
