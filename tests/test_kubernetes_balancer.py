"""Three servers behind the balancer of examples/kubernetes: one drains and nothing fails, one dies and what ran there fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import gt
from pathlib import Path
from types import SimpleNamespace

import grpc
import httpx
import pytest
from pages import Page

pytest.importorskip("headrace_serve")
HAPROXY = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAPROXY, reason="needs HAProxy (apt-get install haproxy)"),
]

HERE = Path(__file__).resolve().parent
CONFIGURATION = HERE.parent / "examples" / "kubernetes" / "haproxy.cfg"
NAMES = ("one", "two", "three")
CALL = "/inference.GRPCInferenceService/ServerReady"


def free_ports(number):
    """Ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Counted:
    """Numbers that go up, and a way to wait for one."""

    def __init__(self):
        self.condition, self.numbers = threading.Condition(), {}

    def up(self, name):
        with self.condition:
            self.numbers[name] = self.numbers.get(name, 0) + 1
            self.condition.notify_all()

    def wait_for(self, enough):
        with self.condition:
            assert self.condition.wait_for(lambda: enough(self.numbers), 240), self.numbers


@pytest.fixture
def setting(tmp_path):
    """Three servers and the balancer in front of them, and the lock that held requests wait for, held."""
    (tmp_path / "lock").touch()
    os.mkfifo(tmp_path / "told")
    (tmp_path / "held.toml").write_text(
        f'import = ["{HERE / "kubernetes_words.py"}"]\nbackend = "Held"\ninstance_num = 12\n'
    )
    environment = {**os.environ, "HELD_FOLDER": str(tmp_path)}
    command = [sys.executable, "-m", "headrace", "serve", str(tmp_path / "held.toml")]
    command += ["--port=0", "--grpc-port=0", "--drain-delay=5", "--drain-timeout=240"]
    with contextlib.ExitStack() as stack:
        servers = {}
        for name in NAMES:
            servers[name] = subprocess.Popen(
                command, env=environment, stderr=subprocess.PIPE, text=True
            )
            stack.callback(servers[name].stderr.close)
            stack.callback(servers[name].wait)
            stack.callback(servers[name].kill)
        addresses = {}
        for index, process in enumerate(servers.values(), 1):
            told = re.findall(r"127\.0\.0\.1:\d+", process.stderr.readline())
            addresses |= dict(
                zip((f"SERVER_{index}_HTTP", f"SERVER_{index}_GRPC"), told, strict=True)
            )
        http, rpc = (f"127.0.0.1:{port}" for port in free_ports(2))
        addresses |= {"BALANCER_HTTP": http, "BALANCER_GRPC": rpc}
        balancer = subprocess.Popen(
            [HAPROXY, "-db", "-f", str(CONFIGURATION)],
            env={**environment, **addresses},
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(balancer.stderr.close)
        stack.callback(balancer.wait)
        stack.callback(balancer.kill)
        # Its own lines tell when it listens; where they are not read it might wait for us.
        threading.Thread(target=balancer.stderr.read, daemon=True).start()
        lock = stack.enter_context((tmp_path / "lock").open())
        fcntl.flock(lock, fcntl.LOCK_EX)
        stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)
        # Open for both, it has no end while nobody writes.
        told = stack.enter_context(os.fdopen(os.open(tmp_path / "told", os.O_RDWR)))
        clients = httpx.Client(timeout=240, transport=httpx.HTTPTransport(retries=8))
        assert stack.enter_context(clients).get(f"http://{http}/v2/health/ready").status_code == 200
        yield SimpleNamespace(
            servers=servers, http=http, grpc=rpc, told=told, lock=lock, addresses=addresses
        )


def ask(client, setting, name):
    """Send one request; give its name, the status, the server that answered, and whether the answer is its own."""
    answer = client.post(f"http://{setting.http}/run/held", content=name.encode())
    own = answer.status_code != 200 or answer.json() == {"result": name}
    return name, answer.status_code, answer.headers.get("X-Served-By"), own


def hold(setting, pool, number):
    """Send requests that are held; give their answers to come, and by name the process in which each of them runs."""

    def one(name):
        with httpx.Client(timeout=240) as client:
            return ask(client, setting, name)

    sent = [pool.submit(one, f"held-{index}") for index in range(number)]
    told = (setting.told.readline().split() for _ in sent)
    return sent, {name: int(pid) for name, pid in told}


def load(setting, stop, seen):
    """Send request after request until told to stop; give what came back."""
    answers = []
    with httpx.Client(timeout=240) as client:
        while not stop.is_set():
            name = f"free-{threading.get_ident()}-{len(answers)}"
            answers.append(ask(client, setting, name))
            seen.up(answers[-1][2])
    return answers


def test_of_three_servers_one_drains_under_load_and_no_request_fails(setting):
    stop, seen = threading.Event(), Counted()
    with ThreadPoolExecutor(16) as pool:
        held, processes = hold(setting, pool, 9)
        loads = [pool.submit(load, setting, stop, seen) for _ in range(4)]
        seen.wait_for(lambda numbers: all(numbers.get(name, 0) >= 5 for name in NAMES))
        drained = setting.servers["one"]
        assert drained.pid in processes.values()
        drained.send_signal(signal.SIGTERM)  # while some of the held ones run there
        fcntl.flock(setting.lock, fcntl.LOCK_UN)
        assert drained.wait(240) == 0
        before = sum(seen.numbers.values())
        seen.wait_for(lambda numbers: sum(numbers.values()) >= before + 100)
        at_the_end = seen.numbers["one"]
        seen.wait_for(lambda numbers: sum(numbers.values()) >= before + 200)
        assert seen.numbers["one"] == at_the_end  # what is not there is asked no more
        stop.set()
        answers = [one.result() for one in held] + [a for one in loads for a in one.result()]
    assert [one for one in answers if one[1] != 200 or not one[3]] == []
    assert {one[2] for one in answers} == set(NAMES)


def test_of_three_servers_one_is_killed_and_only_what_ran_there_fails(setting):
    stop, seen = threading.Event(), Counted()
    with ThreadPoolExecutor(16) as pool:
        held, processes = hold(setting, pool, 9)
        killed = setting.servers["two"]
        there = {name for name, pid in processes.items() if pid == killed.pid}
        assert 1 <= len(there) < 9
        killed.kill()
        killed.wait(240)
        loads = [pool.submit(load, setting, stop, seen) for _ in range(4)]
        seen.wait_for(lambda numbers: sum(numbers.values()) >= 200)
        stop.set()
        fcntl.flock(setting.lock, fcntl.LOCK_UN)
        answers = [one.result() for one in held]
        later = [a for one in loads for a in one.result()]
    failed = {name: (status, server) for name, status, server, _ in answers if status != 200}
    assert failed == dict.fromkeys(there, (502, "two"))
    assert all(one[3] for one in answers)
    assert [one for one in later if one[1] != 200 or not one[3]] == []
    assert {one[2] for one in later} == {"one", "three"}


def test_calls_of_one_grpc_connection_are_dealt_out_over_all_servers(setting):
    with grpc.insecure_channel(setting.grpc) as channel:
        call = channel.unary_unary(CALL)
        by = []
        for _ in range(12):
            answer, of = call.with_call(b"", timeout=240, wait_for_ready=True)
            assert answer == b"\x08\x01"  # ready = true
            by.append(dict(of.initial_metadata())["x-served-by"])
    assert {name: by.count(name) for name in NAMES} == dict.fromkeys(NAMES, 4)


def asked(address):
    """How many calls a server has got."""
    text = httpx.get(f"http://{address}/metrics").text
    found = re.findall(
        r"^headrace_serve_requests_total\{.*ServerReady.*\} (\S+)$", text, re.MULTILINE
    )
    return sum(map(float, found))


def test_a_client_deals_its_calls_out_with_the_program_of_the_page(setting):
    program = Page("docs/kubernetes.md").block("python")
    servers = ",".join(setting.addresses[f"SERVER_{index}_GRPC"] for index in (1, 2, 3))
    assert "dns:///thumbnail-grpc:8001" in program
    http = [setting.addresses[f"SERVER_{index}_HTTP"] for index in (1, 2, 3)]
    for policy, spread in (("round_robin", 3), ("pick_first", 1)):
        text = textwrap.dedent(program).replace("dns:///thumbnail-grpc:8001", f"ipv4:{servers}")
        names = {}
        exec(text.replace("round_robin", policy), names)
        before = [asked(one) for one in http]
        with names["channel"] as channel:
            call = channel.unary_unary(CALL)
            for made in range(1, 30_001):
                assert call(b"", timeout=240, wait_for_ready=True) == b"\x08\x01"
                # The first calls go to who is connected already.
                if made >= 30 and (spread == 1 or all(map(gt, map(asked, http), before))):
                    break
        got = [asked(one) - b for one, b in zip(http, before, strict=True)]
        assert sum(got) == made
        assert sum(one > 0 for one in got) == spread
