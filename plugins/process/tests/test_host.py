"""Host: a part of an expression in a process of a worker, which here is on this machine as well."""

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
import ssl
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import headrace
from headrace.errors import ConfigError, InputError, InstanceLostError, RequestsFailed, SetupError
from headrace_workers import worker as workers
from headrace_workers.secret import accept, connect, read_secret
from headrace_workers.tcp import TcpLink
from headrace_workers.worker import Worker

FILE = '''
import logging, os, signal
import headrace

@headrace.register("Fragile")
class Fragile(headrace.Backend):
    """Notes each run; dies of what it is told to."""
    max = None
    def forward(self, batch):
        with open(os.environ["NOTES"], "a") as file:
            for request in batch:
                file.write(f"{len(batch)} {request['data']}\\n")
        for request in batch:
            if request["data"] == "poison":
                os.kill(os.getpid(), 9)
            if request["data"] == "freeze" and not os.path.exists(os.environ["NOTES"] + ".frozen"):
                open(os.environ["NOTES"] + ".frozen", "w").close()
                os.kill(os.getpid(), signal.SIGSTOP)
            request["result"] = request["data"]

@headrace.register("Innocent")
class Innocent(Fragile):
    rerun = True

@headrace.register("Speaks")
def speaks(text):
    logging.getLogger("far.away").warning("said %s", text)
    return os.getpid()

@headrace.register("Letters")
def letters(word):
    yield from word
    return word.upper()

@headrace.register("Negative")
def negative(data):
    if isinstance(data, str):
        raise headrace.errors.InputError(key="data", expected="a number", got=data)
    return -data
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with backends; what runs is written into ``notes``."""
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    path = tmp_path / "far_words.py"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("0a" * 32 + "\n")
    return str(path)


@pytest.fixture
def working(secret):
    """Start workers in this process, which end with the test; return the last one's address."""
    started = []

    def start(address="127.0.0.1:0", **how):
        one = Worker(address, read_secret(secret), **how)
        thread = threading.Thread(target=one.serve, daemon=True)
        thread.start()
        started.append((one, thread))
        return one

    yield start
    for one, thread in started:
        one.close()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def host(working, secret, file):
    """Return the keys of a node whose part lives at a new worker."""
    return {"import": [file], "at": [f"127.0.0.1:{working().port}"], "secret_file": secret}


def process_of(pipe):
    return pipe.describe()["nodes"]["main"]["tree"]["built"]["process"]


def wait_until_gone(process):
    """Wait for the end of a process that somebody else waits for, too."""
    try:
        end = os.pidfd_open(process)
    except ProcessLookupError:
        return
    with contextlib.closing(os.fdopen(end)) as watched:
        assert select.select([watched], [], [], 60.0)[0]


# What a batch meets.


def test_what_is_inside_runs_at_the_worker_and_ends_with_its_pipeline(host, caplog):
    caplog.set_level(logging.WARNING, logger="far.away")
    with headrace.pipe({**host, "backend": "Host[Speaks]"}) as pipe:
        far = process_of(pipe)
        assert pipe({"data": "ghosts"})["result"] == far != os.getpid()
    assert [one.getMessage() for one in caplog.records if one.name == "far.away"] == ["said ghosts"]
    wait_until_gone(far)


def test_each_request_has_its_own_outcome(host):
    with headrace.pipe({**host, "backend": "Host[Negative]", "max": 4}) as pipe:
        requests = [{"data": one} for one in (1, "bad", 3)]
        with pytest.raises(RequestsFailed) as failed:
            pipe(requests)
    first, bad, third = failed.value.errors
    assert first is third is None
    assert (type(bad), bad.key, bad.backend) == (InputError, "data", "Negative")
    assert [requests[0]["result"], requests[2]["result"]] == [-1, -3]


def test_parts_of_an_answer_come_before_its_end(host):
    with headrace.pipe({**host, "backend": "Host[Letters]"}) as pipe:
        *parts, last = pipe.stream({"data": "abc"})
    assert parts == [*"abc"]
    assert last["result"] == "ABC"


def test_large_values_arrive_as_they_were(host):
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
        "small",
    ]
    with headrace.pipe({**host, "backend": "Host[Call(copy:copy)]"}) as pipe:
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


@pytest.mark.parametrize("inside", ["Innocent", "Fragile"])
def test_a_process_that_dies_there_fails_its_batch_or_runs_its_items_once_more(
    host, inside, tmp_path
):
    data = ["a", "poison", "b"]
    with headrace.pipe({**host, "backend": f"Host[{inside}]", "max": 4}) as pipe:
        before = process_of(pipe)
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": one} for one in data])
        assert pipe({"data": "later"})["result"] == "later"
        assert process_of(pipe) != before
    errors = failed.value.errors
    lost = [isinstance(one, InstanceLostError) for one in errors]
    assert lost == ([True] * 3 if inside == "Fragile" else [False, True, False])
    assert re.search(r"died of signal SIGKILL, at 127\.0\.0\.1:\d+", str(errors[1]))
    alone = [] if inside == "Fragile" else ["1 a", "1 poison", "1 b"]
    runs = (tmp_path / "notes").read_text().splitlines()
    assert runs == [*(f"3 {one}" for one in data), *alone, "1 later"]


def test_a_frozen_process_is_away_after_three_heartbeats_and_is_ended(host):
    config = {**host, "backend": "Host[Innocent]", "heartbeat_ms": 1000}
    with headrace.pipe(config) as pipe:
        frozen = process_of(pipe)
        assert pipe({"data": "freeze"})["result"] == "freeze"  # in the next process
        assert process_of(pipe) != frozen
        wait_until_gone(frozen)


def test_a_frozen_process_fails_its_batch_and_says_so(host):
    config = {**host, "backend": "Host[Fragile]", "heartbeat_ms": 1000}
    with headrace.pipe(config) as pipe:
        with pytest.raises(InstanceLostError, match=r"is frozen: it said nothing for 3 s"):
            pipe({"data": "freeze"})
        assert pipe({"data": "later"})["result"] == "later"


def test_while_one_worker_is_away_its_instance_is_started_at_the_next_address(
    working, secret, file, until
):
    first, second = working(), working()
    at = [f"127.0.0.1:{one.port}" for one in (first, second)]
    keys = {"import": [file], "at": at, "secret_file": secret}
    with headrace.pipe({**keys, "backend": "Host[Innocent]"}) as pipe:
        before = process_of(pipe)
        first.close()
        until(lambda: process_of(pipe) != before)
        assert pipe({"data": 1})["result"] == 1
        assert len(second._children) == 1


def test_while_no_worker_is_there_the_pipeline_is_not_ready_and_requests_wait(
    working, secret, file, until
):
    gone = working()
    address = f"127.0.0.1:{gone.port}"
    keys = {"import": [file], "at": [address], "secret_file": secret}
    with headrace.pipe({**keys, "backend": "Host[Innocent]", "instance_num": 2}) as pipe:
        assert pipe.ready
        gone.close()
        until(lambda: not pipe.ready)
        waiting = pipe.submit({"data": 1})
        assert pipe.stats()["state"] == "degraded"
        working(address)
        assert waiting.result(60)["result"] == 1
        assert pipe.ready


# Who may have a process.


class Trap:
    """Whoever unpickles it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_another_secret_is_refused_before_anything_is_unpickled(host, tmp_path):
    other = tmp_path / "other"
    other.write_text("0b" * 32)
    with pytest.raises(SetupError, match="has another secret"):
        headrace.pipe({**host, "secret_file": str(other), "backend": "Host[Negative]"})
    trap = tmp_path / "trap"
    host_port = host["at"][0].rpartition(":")
    with socket.create_connection((host_port[0], int(host_port[2])), 60) as raw:
        raw.sendall(pickle.dumps(Trap(trap)) * 20)  # in place of a nonce and a proof
        assert read_all(raw).startswith(b"headrace-1\n")
    assert not trap.exists()
    with headrace.pipe({**host, "backend": "Host[Negative]"}) as pipe:
        assert pipe({"data": 1})["result"] == -1


def read_all(connection):
    """Read until the other side ends the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(4096):
            found += piece
    return found


@pytest.mark.slow
def test_who_repeats_what_another_has_said_has_not_proved_the_secret(secret):
    key = read_secret(secret)
    said = []
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            client = threading.Thread(target=heard, args=(theirs, key, said))
            client.start()
            if len(said) == 0:
                accept(ours, key)
                client.join(60)
                continue
            client.join(0)
            with pytest.raises(Exception, match=r"^$") as refused:
                accept(ours, key)
            client.join(60)
    assert type(refused.value).__name__ == "WrongSecretError"


def heard(connection, key, said):
    """Prove the secret, and note what was sent; or send what was noted before."""
    if not said:
        greeting = connection.recv(43)
        ours = b"n" * 32
        proof = hmac.digest(key, b"headrace-1\nconnects" + greeting[11:] + ours, "sha256")
        said.append(ours + proof)
        connection.sendall(said[0])
        connection.recv(32)
    else:
        connection.recv(43)
        connection.sendall(said[0])
        with contextlib.suppress(OSError):
            connection.recv(32)


def test_a_listener_that_has_not_the_secret_is_not_believed(secret):
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def listen():
            with contextlib.suppress(Exception):
                accept(theirs, b"o" * 32)
            theirs.close()

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(Exception, match=r"^$") as refused:
            connect(ours, read_secret(secret))
        thread.join(60)
    assert type(refused.value).__name__ == "WrongSecretError"


def test_a_secret_may_have_a_mark_and_other_ends_of_lines(tmp_path):
    (tmp_path / "secret").write_bytes(b"\xef\xbb\xbf" + b"0a" * 32 + b"\r\n")
    assert read_secret(tmp_path / "secret") == b"\n" * 32


@pytest.mark.parametrize("content", ["", "secret", "0a" * 31, "0a" * 33, "0g" * 32, "ä" * 64])
def test_a_file_that_holds_no_secret_is_refused(tmp_path, content):
    path = tmp_path / "secret"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SetupError, match="secret"):
        read_secret(path)


def test_half_a_greeting_keeps_nobody_else_out(host, monkeypatch):
    address, _, port = host["at"][0].rpartition(":")
    with contextlib.ExitStack() as held:
        for _ in range(5):
            raw = held.enter_context(socket.create_connection((address, int(port)), 60))
            raw.sendall(b"half")
        with headrace.pipe({**host, "backend": "Host[Negative]"}) as pipe:
            assert pipe({"data": 1})["result"] == -1


def test_a_greeting_that_never_ends_is_left(working, monkeypatch):
    monkeypatch.setattr(workers, "_GREETING_S", 0.1)
    with socket.create_connection(("127.0.0.1", working().port), 60) as raw:
        raw.sendall(b"half")
        assert len(read_all(raw)) == 43  # the greeting of the worker, and then the end


def test_a_greeting_that_comes_byte_by_byte_is_left(working, monkeypatch):
    monkeypatch.setattr(workers, "_GREETING_S", 0.2)
    sent = 0
    with socket.create_connection(("127.0.0.1", working().port), 60) as raw:
        assert len(raw.recv(43, socket.MSG_WAITALL)) == 43
        with contextlib.suppress(OSError):
            while not select.select([raw], [], [], 0.05)[0]:
                sent += raw.send(b"h")
    assert sent < 64  # what was asked for had not come


def test_an_announced_length_of_2_gib_takes_no_memory(working, secret):
    with socket.create_connection(("127.0.0.1", working().port), 60) as raw:
        connect(raw, read_secret(secret))
        raw.sendall(struct.pack("<I", 2**31) + b"{}")
        assert read_all(raw) == b""


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<4sQI", b"hrm1", 2**60, 0),
        struct.pack("<4sQI", b"hrm1", 10, 2**31),
        struct.pack("<4sQIQ", b"hrm1", 10, 1, 2**62),
        struct.pack("<4sQI", b"what", 10, 0),
        struct.pack("<4sQI", b"hrm1", 0, 0),
        struct.pack("<4sQIQ", b"hrm1", 10, 1, 2**31),  # and then the end
        b"hr",
    ],
)
def test_what_is_no_message_ends_a_link_and_takes_no_memory(head):
    ours, theirs = socket.socketpair()
    with ours:
        link = TcpLink(ours)
        theirs.sendall(head)
        theirs.close()
        with pytest.raises(EOFError):
            link.receive()


def test_a_link_waits_no_longer_than_it_is_told_and_can_be_cut():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = TcpLink(ours)
        with pytest.raises(TimeoutError):
            link.receive(0.01)
        waits = threading.Thread(target=pytest.raises, args=(EOFError, link.receive))
        waits.start()
        link.cut()
        waits.join(60)
        assert not waits.is_alive()


# Where may it listen, and connect?


def test_a_worker_listens_beyond_the_loopback_with_tls_or_when_told(secret):
    key = read_secret(secret)
    with pytest.raises(SetupError, match="without TLS"):
        Worker("0.0.0.0:0", key)
    Worker("0.0.0.0:0", key, insecure=True).close()
    with pytest.raises(SetupError, match="cannot listen"):
        Worker("nowhere", key)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Make a certificate for this machine; return the paths of certificate and key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", key, "-out", cert, "-subj", "/CN=localhost", "-addext", names]
    subprocess.run(command, check=True, capture_output=True)
    return str(cert), str(key)


def test_batches_pass_through_tls(working, secret, file, certificate, until):
    numpy = pytest.importorskip("numpy")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    at = [f"127.0.0.1:{working(tls=tls).port}"]
    keys = {"import": [file], "at": at, "secret_file": secret, "backend": "Host[Negative]"}
    with headrace.pipe({**keys, "tls_ca": certificate[0]}) as pipe:
        far = process_of(pipe)
        for data in (7, numpy.arange(1_000_000)):
            numpy.testing.assert_array_equal(pipe({"data": data})["result"], -data)
        os.kill(far, signal.SIGKILL)
        until(lambda: process_of(pipe) != far)
        assert pipe({"data": 1})["result"] == -1
        far = process_of(pipe)
    wait_until_gone(far)


# What is said at the start.


def test_other_versions_are_told_before_anything_is_unpickled(host, monkeypatch):
    monkeypatch.setattr(headrace, "__version__", "0.0.7")
    with pytest.raises(SetupError, match=r"headrace is 0\.0\.7 at the caller's, 0\.1"):
        headrace.pipe({**host, "backend": "Host[Negative]"})


def test_a_worker_that_is_not_there_is_told_with_the_line_to_start_it(host):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(SetupError, match=f"no worker answers at {free}") as refused:
        headrace.pipe({**host, "at": [free], "backend": "Host[Negative]"})
    assert "headrace worker --listen" in str(refused.value)


def test_a_worker_without_tls_is_not_told_to_be_started(host, certificate):
    with pytest.raises(SetupError, match="has one side TLS alone"):
        headrace.pipe({**host, "tls_ca": certificate[0], "backend": "Host[Negative]"})


@pytest.mark.parametrize("at", [["gpu1"], [], ["gpu1:port"], ["gpu1:70000"]])
def test_addresses_that_are_none_are_refused_without_network(host, at):
    with pytest.raises(ConfigError, match=r"main\.at"):
        headrace.PipelineConfig.load({**host, "at": at, "backend": "Host[Identity]"})


def test_a_part_that_cannot_be_built_there_says_why(host):
    with pytest.raises(SetupError, match="a float, not callable"):
        headrace.pipe({**host, "backend": "Host[Call(math:pi)]"})


# The command.


def test_the_command_listens_and_ends_when_told(secret, file):
    command = [sys.executable, "-m", "headrace_cli", "worker", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--secret-file", secret], stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            port = int(worker.stderr.readline().split()[-1])
            keys = {"import": [file], "at": [f"127.0.0.1:{port}"], "secret_file": secret}
            with headrace.pipe({**keys, "backend": "Host[Negative]"}) as pipe:
                assert pipe({"data": 1})["result"] == -1
                far = process_of(pipe)
            wait_until_gone(far)
        finally:
            worker.terminate()
            assert worker.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "0.0.0.0:0"], "without TLS"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "c.pem"], "go together"),
        (["--listen", "here"], "is no address"),
    ],
)
def test_the_command_refuses_what_would_be_open(secret, arguments, said):
    command = [sys.executable, "-m", "headrace_cli", "worker", *arguments, "--secret-file", secret]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_nothing_outlives_the_program_that_asked_for_it(host, tmp_path):
    program = tmp_path / "program.py"
    config = {**host, "backend": "Host[Identity]"}
    program.write_text(
        f"import headrace, os\npipe = headrace.pipe({config!r})\n"
        "print(pipe.describe()['nodes']['main']['tree']['built']['process'], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    wait_until_gone(int(done.stdout))
