"""The connection to an actor, without Ray: its worker runs in this process, and a container connects to it."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import pickle
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes import run_process
from ray_programs import FAILS_LATE_S, Client, built, until, wait_until_gone

import headrace
from headrace.errors import InputError, InstanceLostError, RequestsFailed, SetupError
from headrace_ray import machine as machines
from headrace_ray import worker as workers
from headrace_ray.greeting import BATCHES, CONTROL, WrongSecretError, accept, connect
from headrace_ray.machine import Machine
from headrace_ray.tcp import TcpLink
from headrace_ray.worker import Worker

SECRET, OTHER = b"s" * 32, b"o" * 32
NEARBY = """
import threading
import headrace
from headrace_ray.machine import Machine
from headrace_ray.worker import Worker
from headrace_process.apart import Apart
from headrace_process.places import Restarts

@headrace.register("Nearby")
class Nearby(Apart):
    \"\"\"Lets X live in a process of a worker, which runs in this process.\"\"\"

    same_clock = False

    def place_of(self, index):
        worker = Worker("127.0.0.1", b"s" * 32, 0.5)
        threading.Thread(target=worker.serve, args=(60.0,), daemon=True).start()
        return Machine("127.0.0.1", worker.port, b"s" * 32, 0.5)

    def restarts(self):
        return Restarts(None, 10.0)
"""


@pytest.fixture
def near(words, tmp_path):
    """Return the keys of a node whose part lives at a worker of this process."""
    path = tmp_path / "near_words.py"
    path.write_text(NEARBY, encoding="utf-8")
    return {"import": [words, str(path)]}


@pytest.fixture
def port():
    """Start a worker that waits for a container; return where. It ends with its test."""
    worker = Worker("127.0.0.1", SECRET, 0.5)
    serving = threading.Thread(target=worker.serve, args=(FAILS_LATE_S,), daemon=True)
    serving.start()
    yield worker.port
    with contextlib.suppress(ConnectionError):  # its container has come
        for role in (CONTROL, BATCHES):
            with socket.create_connection(("127.0.0.1", worker.port), FAILS_LATE_S) as comes:
                connect(comes, SECRET, role, FAILS_LATE_S)
    serving.join(FAILS_LATE_S)
    assert not serving.is_alive()


# What a batch meets.


def test_what_is_inside_runs_at_the_worker_and_ends_with_its_pipeline(near, caplog):
    caplog.set_level(logging.WARNING, logger="far.away")
    with headrace.pipe({**near, "backend": "Nearby[RaySpeaks]"}) as pipe:
        far = built(pipe)["process"]
        assert pipe({"data": "ghosts"})["result"] == far != os.getpid()
    assert [one.getMessage() for one in caplog.records if one.name == "far.away"] == ["said ghosts"]
    wait_until_gone(far)


def test_each_request_has_its_own_outcome(near):
    with headrace.pipe({**near, "backend": "Nearby[RayNegative]", "max": 4}) as pipe:
        requests = [{"data": one} for one in (1, "bad", 3)]
        with pytest.raises(RequestsFailed) as failed:
            pipe(requests)
    first, bad, third = failed.value.errors
    assert first is third is None
    assert (type(bad), bad.key, bad.backend) == (InputError, "data", "RayNegative")
    assert [requests[0]["result"], requests[2]["result"]] == [-1, -3]


def test_parts_of_an_answer_come_before_its_end(near):
    with headrace.pipe({**near, "backend": "Nearby[RayLetters]"}) as pipe:
        *parts, last = pipe.stream({"data": "abc"})
    assert parts == [*"abc"]
    assert last["result"] == "ABC"


def check_large_values(near):
    numpy = pytest.importorskip("numpy")
    read_only = numpy.arange(50_000.0)
    read_only.flags.writeable = False
    values = [
        b"b" * 100_000,
        bytearray(b"a" * 3_000_000),
        numpy.arange(2_000_000, dtype="u1").reshape(2, -1),
        read_only,
        numpy.zeros((0, 3)),
        {"several": [numpy.eye(300), b"x" * 5000], "text": "t" * 70_000},
        [bytes([one]) * 3000 for one in range(256)],
        "small",
    ]
    with headrace.pipe({**near, "backend": "Nearby[Call(copy:copy)]"}) as pipe:
        for one in values:
            result = pipe({"data": one})["result"]
            assert type(result) is type(one)
            if isinstance(one, numpy.ndarray):
                assert result.flags.writeable or one is read_only
                numpy.testing.assert_array_equal(result, one)
            elif isinstance(one, dict):
                numpy.testing.assert_array_equal(result["several"][0], one["several"][0])
                assert (result["several"][1], result["text"]) == (one["several"][1], one["text"])
            else:
                assert result == one


def test_large_values_arrive_as_they_were(near):
    check_large_values(near)


@pytest.mark.parametrize("inside", ["RayInnocent", "RayFragile"])
def test_a_process_that_dies_there_fails_its_batch_or_runs_its_items_once_more(near, inside, notes):
    data = ["a", "poison", "b"]
    with headrace.pipe({**near, "backend": f"Nearby[{inside}]", "max": 4}) as pipe:
        before = built(pipe)["process"]
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": one} for one in data])
        assert pipe({"data": "later"})["result"] == "later"
        assert built(pipe)["process"] != before
    errors = failed.value.errors
    lost = [isinstance(one, InstanceLostError) for one in errors]
    assert lost == ([True] * 3 if inside == "RayFragile" else [False, True, False])
    assert re.search(r"died of signal SIGKILL, at 127\.0\.0\.1:\d+", str(errors[1]))
    alone = [] if inside == "RayFragile" else ["1 a", "1 poison", "1 b"]
    assert notes() == [*(f"3 {one}" for one in data), *alone, "1 later"]


def test_a_part_that_cannot_be_built_there_says_why(near):
    with pytest.raises(SetupError, match="a float, not callable"):
        headrace.pipe({**near, "backend": "Nearby[Call(math:pi)]"})


def test_nothing_outlives_the_program_that_asked_for_it(near, tmp_path):
    program = tmp_path / "program.py"
    config = {**near, "backend": "Nearby[Identity]"}
    program.write_text(
        f"import headrace, os\npipe = headrace.pipe({config!r})\n"
        "print(pipe.describe()['nodes']['main']['tree']['built']['process'], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = run_process([sys.executable, program])
    assert done.returncode == -9, done.stderr
    wait_until_gone(int(done.stdout))


# When the connection ends, or nothing comes.


def test_a_process_ends_when_its_container_has_gone(port):
    machine = Machine("127.0.0.1", port, SECRET, 0.5)
    link, reports = machine.start()
    machine.kill()
    machine.wait()
    assert machine.how_ended()[0] == f"with its connection, at 127.0.0.1:{port}"
    with pytest.raises(EOFError):
        link.receive()
    with reports:
        assert reports.recv(1) == b""
    link.close()
    machine.close()


def listening(secret=SECRET):
    """Prove the secret to a container that comes, and say nothing then; return the port, and what is held open."""
    listener, held = socket.create_server(("127.0.0.1", 0)), []

    def listen():
        try:
            for _ in (CONTROL, BATCHES):
                held.append(listener.accept()[0])
                accept(held[-1], secret, FAILS_LATE_S)
        except WrongSecretError:
            held[-1].close()

    threading.Thread(target=listen, daemon=True).start()
    return listener, held


def test_a_machine_that_says_nothing_for_three_heartbeats_is_away():
    listener, held = listening()
    machine = Machine("127.0.0.1", listener.getsockname()[1], SECRET, 0.1)
    link, reports = machine.start()
    with pytest.raises(EOFError):
        link.receive()
    machine.wait()
    assert "is frozen: it said nothing for 0.3 s" in machine.how_ended()[0]
    link.close()
    machine.close()
    for one in (listener, reports, *held):
        one.close()


def test_a_worker_whose_container_does_not_come_waits_no_longer_than_it_is_told():
    worker = Worker("127.0.0.1", SECRET, 0.5)
    worker.serve(0.01)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", worker.port))


# Who may have a process.


class Trap:
    """Whoever unpickles it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def read_all(connection):
    """Read until the other side ends the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(4096):
            found += piece
    return found


def test_another_secret_is_refused_before_anything_is_unpickled(port, tmp_path):
    with pytest.raises(SetupError, match="is not reached"):
        Machine("127.0.0.1", port, OTHER, 0.5).start()
    trap = tmp_path / "trap"
    with socket.create_connection(("127.0.0.1", port), FAILS_LATE_S) as raw:
        raw.sendall(pickle.dumps(Trap(trap)) * 20)  # in place of a nonce and a proof
        assert len(read_all(raw)) == 32  # a nonce, and then the end
    assert not trap.exists()
    machine = Machine("127.0.0.1", port, SECRET, 0.5)  # it still waits for its container
    link, reports = machine.start()
    machine.kill()
    link.close()
    machine.close()
    reports.close()


def test_a_listener_that_has_not_the_secret_is_not_believed():
    listener, held = listening(OTHER)
    with pytest.raises(SetupError, match="is not reached"):
        Machine("127.0.0.1", listener.getsockname()[1], SECRET, 0.5).start()
    for one in (listener, *held):
        one.close()


def test_who_repeats_what_another_has_said_has_not_proved_the_secret():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        accepted = Client(accept, ours, SECRET, FAILS_LATE_S)
        nonce, mine = theirs.recv(32), b"n" * 32
        said = mine + hmac.digest(SECRET, b"batches" + nonce + mine, "sha256")
        theirs.sendall(said)
        assert accepted.outcome() == BATCHES
    ours, theirs = socket.socketpair()
    with ours, theirs:
        accepted = Client(accept, ours, SECRET, FAILS_LATE_S)
        theirs.sendall(said)
        with pytest.raises(WrongSecretError):
            accepted.outcome()


@pytest.mark.parametrize("role", [CONTROL, BATCHES])
def test_each_side_knows_what_a_connection_is_for(role):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        accepted = Client(accept, ours, SECRET, FAILS_LATE_S)
        connect(theirs, SECRET, role, FAILS_LATE_S)
        assert accepted.outcome() == role


def test_half_a_greeting_keeps_nobody_else_out(port):
    with contextlib.ExitStack() as held:
        for _ in range(100):
            raw = held.enter_context(socket.create_connection(("127.0.0.1", port), FAILS_LATE_S))
            raw.sendall(b"half")
        machine = Machine("127.0.0.1", port, SECRET, 0.5)
        link, reports = machine.start()
        machine.kill()
        link.close()
        machine.close()
        reports.close()


def test_a_greeting_that_comes_byte_by_byte_is_left(port, monkeypatch):
    monkeypatch.setattr(workers, "GREETING_S", 0.2)
    sent = 0
    with socket.create_connection(("127.0.0.1", port), FAILS_LATE_S) as raw:
        assert len(raw.recv(32, socket.MSG_WAITALL)) == 32
        with contextlib.suppress(OSError):
            while not select.select([raw], [], [], 0.05)[0]:
                sent += raw.send(b"h")
    assert sent < 64  # what was asked for had not come


# The link.


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"he",
        struct.pack("<QQ", 10, 1),
        struct.pack("<QQQ", 10, 1, 20) + b"0123456789",
        struct.pack("<QQ", 0, 0),
    ],
)
def test_a_message_that_is_cut_ends_a_link(content):
    ours, theirs = socket.socketpair()
    link = TcpLink(ours)
    theirs.sendall(content)
    theirs.close()
    with pytest.raises(EOFError):
        link.receive()
    link.close()


def test_a_link_waits_no_longer_than_it_is_told_and_can_be_cut():
    ours, theirs = socket.socketpair()
    with theirs:
        link = TcpLink(ours)
        with pytest.raises(TimeoutError):
            link.receive(0.01)
        waits = Client(link.receive)
        link.cut()
        with pytest.raises(EOFError):
            waits.outcome()
        link.close()


# TLS, as Ray names its certificates.


@pytest.fixture
def certificates(tmp_path, monkeypatch):
    """Make a certificate for this machine, which is its own root, and name it as Ray does."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", key, "-out", cert, "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    for name, file in {"SERVER_CERT": cert, "SERVER_KEY": key, "CA_CERT": cert}.items():
        monkeypatch.setenv(f"RAY_TLS_{name}", str(file))


@pytest.mark.usefixtures("certificates")
def test_batches_pass_through_tls(near):
    check_large_values(near)
    with headrace.pipe({**near, "backend": "Nearby[RayNegative]"}) as pipe:
        far = built(pipe)["process"]
        assert pipe({"data": 7})["result"] == -7
        os.kill(far, signal.SIGKILL)
        until(lambda: built(pipe)["process"] != far)
        assert pipe({"data": 1})["result"] == -1
        far = built(pipe)["process"]
    wait_until_gone(far)


@pytest.mark.usefixtures("certificates")
def test_nothing_of_a_batch_is_seen_from_between_the_two_sides(port):
    """A relay passes the greeting on, and all that follows: it sees TLS in both directions."""
    relay, seen, held = socket.create_server(("127.0.0.1", 0)), bytearray(), []

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                seen.extend(piece)
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)

    def carry():
        for _ in (CONTROL, BATCHES):
            here = relay.accept()[0]
            there = socket.create_connection(("127.0.0.1", port))
            held.extend((here, there))
            for pair in ((here, there), (there, here)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=carry, daemon=True).start()
    machine = Machine("127.0.0.1", relay.getsockname()[1], SECRET, 5.0)
    link, reports = machine.start()
    link.send({"part": "a text that nobody else reads"})
    machine.wait()  # it is no part: the process ends
    assert b"nobody else reads" not in seen
    assert seen.count(b"\x17\x03\x03") > 2  # records of TLS
    link.close()
    machine.close()
    for one in (reports, relay, *held):
        one.close()


def test_tls_on_one_side_alone_is_told(port, certificates, monkeypatch):
    monkeypatch.setattr(machines, "GREETING_S", 0.5)
    with pytest.raises(SetupError, match="RAY_USE_TLS"):
        Machine("127.0.0.1", port, SECRET, 0.5).start()
