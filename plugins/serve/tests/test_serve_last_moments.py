"""The first and last moments of a server, and those in which the system lacks something: none of them goes on for ever."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import httpx
import pytest

from headrace_serve.grpc.messages import message

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m.toml").write_text('backend = "Identity"\nmax = 8')
    return tmp_path


def test_a_server_closes_where_no_thread_can_be_started(serving, monkeypatch):
    server = serving({"m": {"backend": "Identity"}, "n": {"backend": "Identity"}}, grpc_port=0)
    pipes = [server._service.models.find(name).pipe for name in "mn"]
    assert httpx.post(f"{server.url}/run/m", content=b"x").status_code == 200

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as lacks:
        lacks.setattr(threading.Thread, "start", refuse)
        server.close(timeout=10.0)
    assert [pipe.stats()["state"] for pipe in pipes] == ["closed", "closed"]
    assert not server._thread.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_sigterm_ends_a_process_that_may_take_no_more_memory(folder, start):
    import resource

    process, url = start("m.toml", "--port", "0", "--drain-timeout", "3", cwd=folder)
    assert httpx.post(f"{url}/run/m", content=b"x").status_code == 200
    status = Path(f"/proc/{process.pid}/status").read_text()
    taken = (int(re.search(r"VmSize:\s*(\d+)", status)[1]) << 10) + (4 << 20)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (taken, taken))
    process.terminate()
    process.wait(120)


def test_what_fails_while_a_server_closes_keeps_no_process_alive(folder):
    program = (
        "import headrace_serve.operating.server as home, sys, runpy\n"
        "async def fails(*_): raise OSError('nothing is left')\n"
        "home.end_connections = fails\n"
        "sys.argv[:] = ['headrace', 'serve', 'm.toml', '--port', '0']\n"
        "runpy.run_module('headrace', run_name='__main__')"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        process.stderr.readline()
        process.terminate()
        assert process.wait(120) == 1
        assert "nothing is left" in process.stderr.read()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sighup_before_anything_is_there_is_a_reload_and_not_the_end(folder, workers):
    """It comes as soon as the command has begun, before what takes its time is imported."""
    program = (
        "import os, runpy, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'headrace_serve.operating.settings':\n"
        "            os.kill(os.getpid(), signal.SIGHUP)\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv[:] = ['headrace', 'serve', 'm.toml', '--port', '0', '--workers', '{workers}']\n"
        "runpy.run_module('headrace', run_name='__main__')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr.readline().startswith("serving http://")
    if workers == "1":
        assert process.stderr.readline() == "reloaded\n"
    process.terminate()
    assert process.wait(120) == 0
    process.stderr.close()


def test_a_log_that_nobody_reads_keeps_nobody_waiting(folder, start):
    process, url = start("m.toml", "--port", "0", "--access-log", cwd=folder)
    with httpx.Client() as client:  # far more lines than the pipe holds
        for _ in range(800):
            assert client.post(f"{url}/run/m", content=b"x").status_code == 200
        assert client.get(f"{url}/v2/health/live").status_code == 200
    process.terminate()
    assert process.wait(120) == 0


LOGS = """
import logging, sys
from headrace_serve.operating.logs import printing_logs

with printing_logs("text", access=False):
    logger = logging.getLogger("headrace.serve")
    for number in range(30_000):
        logger.warning("line %d", number)
    print(flush=True)
    sys.stdin.readline()
    logger.warning("the last one")
"""


def test_lines_that_nobody_reads_are_lost_and_counted():
    process = subprocess.Popen(
        [sys.executable, "-c", LOGS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()  # all were logged, and none was read
    read = [process.stderr.readline() for _ in range(10_000)]
    process.stdin.write("\n")
    process.stdin.close()
    read += process.stderr.readlines()
    assert process.wait(120) == 0
    process.stdout.close()
    process.stderr.close()
    assert read[-1] == "warning: the last one\n"
    number = lost = 0  # which line comes next; the queue may have been full more than once
    for line in read[:-1]:
        if "are lost" in line:
            gone = int(re.search(r"(\d+) lines", line)[1])
            number, lost = number + gone, lost + gone
        else:
            assert line == f"warning: line {number}\n"
            number += 1
    assert (number, lost > 0) == (30_000, True)


def infer():
    asked = message("inference.ModelInferRequest")(model_name="m")
    data = asked.inputs.add(name="data", datatype="BYTES", shape=[1])
    data.contents.bytes_contents.append(b"x")
    return asked.SerializeToString()


def test_clients_of_grpc_that_go_on_asking_hear_unavailable_until_the_end(folder, start):
    process, _ = start("m.toml", "--port", "0", "--grpc-port", "0", cwd=folder)
    address = re.search(r"grpc://(\S+)", process.first_line)[1]
    heard, ends, begun = collections.Counter(), threading.Event(), threading.Semaphore(0)

    def ask():
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(address, options=options) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            while not ends.is_set():
                try:
                    call(infer(), timeout=60)
                    heard["OK"] += 1
                    begun.release()
                except grpc.RpcError as error:
                    heard[error.code().name] += 1

    clients = [threading.Thread(target=ask) for _ in range(6)]
    for one in clients:
        one.start()
    for _ in range(100):
        assert begun.acquire(timeout=60)
    process.terminate()
    assert process.wait(120) == 0
    ends.set()
    for one in clients:
        one.join()
    assert {*heard} == {"OK", "UNAVAILABLE"}


def test_connections_of_grpc_end_and_no_others(serving):
    one, other = (serving({"m": {"backend": "Identity"}}, grpc_port=0) for _ in range(2))
    channels = [grpc.insecure_channel(f"127.0.0.1:{it.grpc_port}") for it in (one, other)]
    calls = [it.unary_unary("/inference.GRPCInferenceService/ModelInfer") for it in channels]
    for call in calls:
        assert call(infer(), timeout=60)
    one.close(timeout=5.0)
    assert calls[1](infer(), timeout=60)
    assert httpx.post(f"{other.url}/run/m", content=b"x").status_code == 200
    with pytest.raises(grpc.RpcError) as caught:
        calls[0](infer(), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    for channel in channels:
        channel.close()
