"""``--workers``: the supervisor with a clock of ours, and real processes that share the ports."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import types

import httpx
import pytest
import tritonclient.grpc as triton
from serve_helpers import refused

from headrace.errors import ConfigError, SetupError
from headrace_serve.admission.limits import Limits
from headrace_serve.operating import workers
from headrace_serve.operating.settings import Settings
from headrace_serve.operating.supervisor import Supervisor

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel spreads connections on Linux"
)


class Lines(io.StringIO):
    """Keeps what was written."""

    @property
    def written(self):
        return self.getvalue().splitlines(keepends=True)


class Process:
    """Notes what it is sent."""

    def __init__(self, number):
        self.number = number
        self.sent = []
        self.stdin = Lines()

    def send_signal(self, number):
        self.sent.append(number)

    def terminate(self):
        self.sent.append("terminate")

    def kill(self):
        self.sent.append("kill")


class Script:
    """Gives events one after the other; a number is time that passes."""

    def __init__(self, *steps):
        self.now = 0.0
        self.steps = list(steps)
        self.waits = []

    def get(self, timeout):
        if not self.steps:
            pytest.fail(f"waits for {timeout} at the end")
        step = self.steps.pop(0)
        if not isinstance(step, (int, float)):
            return step
        assert timeout is not None
        self.waits.append(timeout)
        assert step >= 0
        self.now += step
        raise queue.Empty


def supervise(count, *steps, **settings):
    script = Script(*steps)
    started = []
    ready = []

    def start(number):
        started.append(Process(number))
        return started[-1]

    made = Supervisor(
        count,
        start,
        all_ready=lambda: ready.append(script.now),
        end_s=5.0,
        events=script,
        clock=lambda: script.now,
        **settings,
    )
    return made.run(), started, ready, script


TERM = ("signal", int(signal.SIGTERM))


def test_all_are_told_to_end_and_waited_for():
    status, started, ready, _ = supervise(
        2, ("ready", 1), ("ready", 2), TERM, ("exit", 1, 0), ("exit", 2, 0)
    )
    assert (status, ready) == (0, [0.0])
    assert [one.sent for one in started] == [["terminate"]] * 2


def test_ctrl_c_is_told_by_the_exit_status():
    status, _, _, _ = supervise(
        1,
        ("ready", 1),
        ("signal", int(signal.SIGHUP)),
        ("signal", int(signal.SIGINT)),
        ("exit", 1, 0),
    )
    assert status == 130


def test_who_does_not_end_in_time_is_killed():
    status, started, _, script = supervise(
        2, ("ready", 1), ("ready", 2), TERM, ("exit", 1, 0), 5.0, ("exit", 2, -9)
    )
    assert script.waits == [5.0]
    assert [one.sent for one in started] == [["terminate"], ["terminate", "kill"]]
    assert status == 1


def test_a_dead_worker_is_started_again_with_growing_pauses():
    deaths = []
    for pause in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        deaths += [("exit", 1, -9), pause, ("ready", 1)]
    deaths += [("signal", int(signal.SIGHUP)), ("exit", 2, 1), 0.5, ("ready", 2)]
    _, started, ready, script = supervise(
        2, ("ready", 1), ("ready", 2), *deaths, TERM, ("exit", 1, 0), ("exit", 2, 0)
    )
    assert script.waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 0.5]
    assert [one.number for one in started] == [1, 2, *[1] * 8, 2]
    assert len(ready) == 1


def test_the_pauses_begin_anew_after_a_worker_was_well():
    script = (("ready", 1), ("ready", 2), ("exit", 1, -9), 0.5, ("ready", 1), ("exit", 2, -9), 61.0)
    more = (("ready", 2), ("exit", 1, -9), 0.5, ("ready", 1))
    _, _, _, done = supervise(2, *script, *more, TERM, ("exit", 1, 0), ("exit", 2, 0))
    assert done.waits[-1] == 0.5


@pytest.mark.parametrize(("ended_with", "expected"), [(2, 2), (0, 1), (-9, 1)])
def test_a_worker_that_cannot_start_ends_all(ended_with, expected):
    status, started, ready, _ = supervise(2, ("ready", 1), ("exit", 2, ended_with), ("exit", 1, 0))
    assert (status, ready) == (expected, [])
    assert started[0].sent == ["terminate"]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals of POSIX")
def test_who_starts_while_all_reload_is_told_once_it_listens():
    hangup = int(signal.SIGHUP)
    _, started, _, _ = supervise(
        2, ("ready", 1), ("ready", 2), ("exit", 1, -9), 0.5, ("signal", hangup), ("ready", 1), TERM,
        ("exit", 1, 0), ("exit", 2, 0),
    )  # fmt: skip
    assert [one.sent for one in started] == [[], [hangup, "terminate"], [hangup, "terminate"]]


def test_settings_travel_as_text():
    made = Settings(models=("a.toml",), allow=(), limits=Limits(max_body_bytes=5), keys="k.toml")
    assert Settings.from_json(made.to_json()) == made
    assert made.shared(7, None).limits.max_connection_age_s == 300


SIGNALLED = """
import signal, sys, threading
from headrace_serve.operating.running import signals

main = threading.get_ident()

def send(number):
    while sys._current_frames()[main].f_code.co_name != "_numbers":
        pass
    signal.pthread_kill(threading.get_ident(), number)  # the main thread is not woken by it

with signals() as came:
    for number in (signal.SIGHUP, signal.SIGTERM):
        threading.Thread(target=send, args=(number,)).start()
        print(next(came) == number, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals reach the process only")
def test_a_signal_that_does_not_wake_the_main_thread_is_noticed():
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stdout, done.returncode) == ("True\nTrue\n", 0), done.stderr


@linux
def test_who_stops_answers_what_waits_in_the_backlog(serving):
    server = serving({"m": {"backend": "Identity"}}, worker=1)
    waiting = []

    async def connect_and_end():
        # In the loop's own thread: the kernel has taken the connection, the server has not.
        made = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        made.sendall(b"POST /run/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\na")
        waiting.append(made)
        await server._end(5.0)

    asyncio.run_coroutine_threadsafe(connect_and_end(), server._loop).result()
    with waiting[0] as made:
        got = b"".join(iter(lambda: made.recv(65536), b""))
    assert got.startswith(b"HTTP/1.1 200")
    assert got.endswith(b"\r\n\r\na")


TWO = ("--workers", "2")

PID = """
import os

import headrace

headrace.register("ServePid", lambda data: os.getpid())
"""


def seen(url, count):
    """Send requests over new connections until so many processes have answered."""
    found = set()
    while len(found) < count:
        answer = httpx.post(f"{url}/run/m", content=b"x")
        assert answer.status_code == 200
        found.add(answer.json()["result"])
    return found


@linux
def test_processes_share_the_ports_and_are_started_again(tmp_path, start):
    (tmp_path / "pid.py").write_text(PID)
    (tmp_path / "m.toml").write_text('import = ["pid.py"]\nbackend = "ServePid"\n')
    process, url = start("m.toml", *TWO, "--port", "0", "--grpc-port", "0", cwd=tmp_path)
    said = []

    def until(text):
        while not any(text in line for line in said):
            line = process.stderr.readline()
            assert line, said
            said.append(line)
        said.clear()

    until("2 workers")
    first = seen(url, 2)
    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    until("is started again in 0.5 s")
    (left,) = first - {victim}
    again = seen(url, 2)
    assert left in again
    assert victim not in again
    metrics = httpx.get(f"{url}/metrics").text
    assert 'worker="1"' in metrics or 'worker="2"' in metrics
    process.send_signal(signal.SIGHUP)
    for _ in range(2):
        until(": reloaded")
    process.terminate()
    assert process.wait(300) == 0, process.stderr.read()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v2")


@linux
@pytest.mark.parametrize("option", ["port", "grpc_port", "admin_port"])
@pytest.mark.parametrize("shares", [0, 1])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "::"),
        ("::", "127.0.0.1"),
        ("::1", "::1"),
    ],
)
def test_workers_take_no_port_on_which_another_program_listens(
    tmp_path, monkeypatch, theirs, ours, shares, option
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.toml").write_text('backend = "Identity"\n')
    with socket.socket(socket.AF_INET6 if ":" in theirs else socket.AF_INET) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shares)  # as gRPC does by default
        other.bind((theirs, 0))
        other.listen()
        port = other.getsockname()[1]
        settings = Settings(models=("m.toml",), **{"host": ours, "port": 0, option: port})
        with pytest.raises(
            SetupError, match=f"{ours} port {port}: Address already in use"
        ) as caught:
            workers.run_workers(settings, 2)
    assert f"with --{option.replace('_', '-')} (" in str(caught.value)


@linux
def test_grpc_is_shared_too_but_no_port_with_another_server_and_all_end_with_the_first_process(
    tmp_path, start
):
    (tmp_path / "m.toml").write_text('backend = "Identity"\n')
    model = str(tmp_path / "m.toml")
    process, url = start(model, *TWO, "--port", "0", "--grpc-port", "0", cwd=tmp_path)
    rest, grpc = url.rpartition(":")[2], process.first_line.rpartition(":")[2].strip()
    with triton.InferenceServerClient(f"127.0.0.1:{grpc}") as client:
        assert client.is_server_ready()
    for ports in (["--port", rest], ["--port", "0", "--grpc-port", grpc]):
        for count in "12":
            said = refused("serve", model, "--workers", count, *ports)
            assert f"cannot listen on 127.0.0.1 port {ports[-1]}: Address already in use" in said
    process.kill()  # nobody tells the workers, which notice it
    process.wait(300)
    while reached(url):
        pass


def reached(url):
    try:
        httpx.get(f"{url}/v2/health/live")
    except httpx.TransportError:
        return False
    return True


def test_workers_need_ports_that_are_shared(monkeypatch):
    monkeypatch.setattr(workers, "REUSES_PORTS", False)
    with pytest.raises(ConfigError, match="--workers needs Linux"):
        workers.run_workers(Settings(models=("m.toml",)), 2)


THREADS = """
import headrace

class Threads(headrace.Backend):
    def init(self, options, context):
        self.threads = context.threads

    def forward(self, batch):
        for request in batch:
            request["result"] = self.threads

headrace.register("ServeThreads", Threads)
"""


def port_of_connections_that_have_just_ended():
    with socket.create_server(("127.0.0.1", 0)) as before:
        port = before.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            before.accept()[0].close()  # who ends a connection first keeps its port for a minute
            assert client.recv(1) == b""
    return port


@linux
def test_workers_share_the_cores_and_say_where_instances_are_too_many(tmp_path, start, monkeypatch):
    """They take a port whose connections have just ended."""
    port = port_of_connections_that_have_just_ended()
    monkeypatch.setenv("PYTHON_CPU_COUNT", "6")
    (tmp_path / "threads.py").write_text(THREADS)
    head = 'import = ["threads.py"]\nbackend = "ServeThreads"\n'
    (tmp_path / "one.toml").write_text(head)
    (tmp_path / "many.toml").write_text(head + "instance_num = 4\n")
    process, url = start("one.toml", "many.toml", *TWO, "--port", str(port), cwd=tmp_path)
    assert url == f"http://127.0.0.1:{port}"
    assert "2 workers" in (line := process.stderr.readline())
    assert "3 of 6 cores" in line
    assert httpx.post(f"{url}/run/one", content=b"x").json() == {"result": 3}
    assert httpx.post(f"{url}/run/many", content=b"x").json() == {"result": 1}
    process.terminate()
    said = process.stderr.read()
    assert "'many:1' may run 4 threads at a time in each worker" in said
    assert "'one:1'" not in said


@linux
def test_what_cannot_be_served_ends_all(tmp_path):
    (tmp_path / "m.toml").write_text('backend = "Identity"')
    assert "missing.toml" in refused("serve", *TWO, str(tmp_path / "missing.toml"))
    said = refused("serve", *TWO, str(tmp_path / "m.toml"), "--allow", "repositry")
    assert "repository" in said
    (tmp_path / "bad.py").write_text(
        "import headrace\n"
        "class Bad:\n"
        "    def __init__(self):\n"
        "        raise ValueError('this is not to be built')\n"
        "    def forward(self, batch): ...\n"
        "headrace.register('ServeBad', Bad)\n"
    )
    (tmp_path / "bad.toml").write_text('import = ["bad.py"]\nbackend = "ServeBad"')
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "bad.toml", *TWO, "--port", "0"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2
    assert "this is not to be built" in done.stderr
    assert "serving" not in done.stderr


def looked_after(*steps):
    """Two workers that serve, of which each has a second for its answer; their ends follow."""
    ends = (TERM, ("exit", 1, 0), ("exit", 2, 0))
    return supervise(2, ("ready", 1), ("ready", 2), *steps, *ends, answer_s=1.0)


FROZEN = "worker 2 has answered nothing for 1 s and is killed\n"
SECOND = (0.2, ("pong", 1))
"""A look, and the answer of the first worker alone."""


def test_a_worker_that_does_not_answer_is_killed_and_started_again(capsys):
    replaced = (("exit", 2, -9), *SECOND, *SECOND, 0.1, ("ready", 2))
    _, started, _, script = looked_after(0.0, ("pong", 1), *SECOND * 5, *replaced)
    assert [one.number for one in started] == [1, 2, 2]
    assert started[1].sent == ["kill"]
    assert started[0].sent == started[2].sent == ["terminate"]
    assert capsys.readouterr().err.startswith(FROZEN)
    assert script.waits[:6] == [0.0, *[pytest.approx(0.2)] * 5]


def test_a_worker_is_asked_again_once_it_has_answered(capsys):
    answers = (0.2, ("pong", 1), ("pong", 2))
    _, started, _, _ = looked_after(0.0, *answers, *SECOND * 4, *answers, *SECOND * 4, ("pong", 2))
    assert [one.sent for one in started] == [["terminate"]] * 2
    assert started[1].stdin.written == ['{"ping": true}\n'] * 3


def test_a_worker_that_does_not_serve_yet_is_not_asked():
    building = (("exit", 2, -9), 0.0, *SECOND * 20)
    _, started, _, _ = looked_after(*building, ("ready", 2))
    assert [one.sent for one in started] == [["terminate"], [], ["terminate"]]
    assert started[2].stdin.written == []


@pytest.mark.parametrize("away_s", [0.5, 5.0, 3600.0])
def test_no_worker_is_late_because_the_supervisor_was_stopped(away_s):
    """Whatever is late then had no chance: the workers were stopped as well, or nobody has read their answers."""
    steps = (0.0, *SECOND * 3, away_s, ("pong", 1), ("pong", 2))
    _, started, _, _ = looked_after(*steps)
    assert [one.sent for one in started] == [["terminate"]] * 2


def test_a_worker_that_has_ended_is_not_written_to():
    made = Process(1)
    made.stdin.close()
    Supervisor.send(
        types.SimpleNamespace(workers={1: types.SimpleNamespace(process=made)}), 1, {"ping": True}
    )


FREEZES = """
import ctypes, os, signal, threading
import headrace


@headrace.register("ServeFreezes")
def freezes(data):
    if data == b"stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        threading.Event().wait()  # other threads stop a moment later
    elif data == b"hold":
        ctypes.PyDLL(None).pause()  # with the interpreter lock
    return os.getpid()
"""


@pytest.mark.slow
@linux
def test_a_frozen_process_is_replaced(tmp_path, start):
    (tmp_path / "freezes.py").write_text(FREEZES)
    (tmp_path / "m.toml").write_text('import = ["freezes.py"]\nbackend = "ServeFreezes"\n')
    process, url = start("m.toml", *TWO, "--port", "0", "--worker-healthcheck-s", "1", cwd=tmp_path)
    before = seen(url, 2)
    for how in (b"stop", b"hold"):
        with pytest.raises(httpx.TransportError):  # its connection ends with the process
            httpx.post(f"{url}/run/m", content=how, timeout=300)
        line = ""
        while "is started again" not in line:
            line = process.stderr.readline()
            assert line
            if "answered nothing" in line:
                frozen = line
        assert re.fullmatch(r"worker [12] has answered nothing for 1 s and is killed\n", frozen)
        after = seen(url, 2)
        assert len(before & after) == 1
        before = after
    process.terminate()
    assert process.wait(300) == 0, process.stderr.read()


TWICE = """
import signal, sys
from headrace_serve.operating import running

running._TWICE_S = float(sys.argv[1])
with running.signals(ends_at_second=sys.argv[2] == "True") as came:
    signal.raise_signal(signal.SIGTERM)
    print(next(came) == signal.SIGTERM, flush=True)
    signal.raise_signal(getattr(signal, sys.argv[3]))
    print("it goes on")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("apart_s", "ends_at_second", "number", "status"),
    [
        pytest.param(0.0, True, "SIGTERM", 130, id="later"),
        pytest.param(1e9, True, "SIGINT", 130, id="another"),
        pytest.param(1e9, True, "SIGTERM", 0, id="at_once_as_timeout_sends_it"),
        pytest.param(0.0, False, "SIGTERM", 0, id="a_worker_process"),
    ],
)
def test_a_second_signal_ends_at_once_unless_it_is_the_first_one_again(
    apart_s, ends_at_second, number, status
):
    given = [str(apart_s), str(ends_at_second), number]
    done = subprocess.run(
        [sys.executable, "-c", TWICE, *given],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    expected = "True\n" if status else "True\nit goes on\n"
    assert (done.stdout, done.returncode) == (expected, status), done.stderr
