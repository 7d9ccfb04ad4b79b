"""A server that listens before its models are built: alive at once, each model answers as soon as it is built."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import pytest
import tritonclient.grpc as triton

import headrace
from headrace.errors import ClosedError, ConfigError, SetupError
from headrace_serve import Server
from headrace_serve.grpc.messages import message


class Late(headrace.Backend):
    """Is built once the test says so."""

    begun, go_on = threading.Event(), threading.Event()
    wrong = False

    def init(self, options, context):
        Late.begun.set()
        assert Late.go_on.wait(60)
        if Late.wrong:
            raise RuntimeError("no weights")

    def forward(self, batch):
        for request in batch:
            request["result"] = "late"


headrace.register("ServeLate", Late)
MODELS = {
    "first": {"backend": "Identity"},
    "late": {"backend": "ServeLate"},
    "late:2": {"backend": "Identity"},
    "last": {"backend": "Identity"},
}


@pytest.fixture
def loading():
    """A server that builds its second model, and the thread in which it does so."""
    Late.begun.clear()
    Late.go_on.clear()
    Late.wrong = False
    server = Server(MODELS, port=0, grpc_port=0, allow=["repository"], listen_first=True)
    raised = []

    def load():
        try:
            server.start()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    assert Late.begun.wait(60)
    yield server, thread, raised
    Late.go_on.set()
    thread.join(60)
    server.close(timeout=5.0)


def states(server):
    rows = httpx.post(f"{server.url}/v2/repository/index").json()
    return {(one["name"], one["version"]): one["state"] for one in rows}


def test_models_that_are_built_answer_while_others_are_built(loading):
    server, thread, _ = loading
    url = server.url
    assert httpx.get(f"{url}/v2/health/live").status_code == 200
    assert httpx.get(f"{url}/v2/health/ready").status_code == 503
    assert httpx.post(f"{url}/run/first", content=b"x").content == b"x"
    assert httpx.get(f"{url}/v2/models/first/ready").json() == {"name": "first", "ready": True}
    for name in ("late", "last"):
        answer = httpx.post(f"{url}/run/{name}", content=b"x")
        assert (answer.status_code, answer.json()["code"]) == (503, "closed")
        assert f"{name!r} is being loaded" in answer.json()["error"]
        assert int(answer.headers["retry-after"]) >= 1
        ready = httpx.get(f"{url}/v2/models/{name}/ready")
        assert (ready.status_code, ready.json()) == (503, {"name": name, "ready": False})
        assert httpx.post(f"{url}/v2/repository/models/{name}/load").status_code == 503
    assert httpx.post(f"{url}/run/nobody", content=b"x").status_code == 404
    assert states(server) == {
        ("first", "1"): "READY",
        ("late", "1"): "LOADING",
        ("late", "2"): "LOADING",
        ("last", "1"): "LOADING",
    }
    Late.go_on.set()
    thread.join(60)
    assert httpx.get(f"{url}/v2/health/ready").status_code == 200
    assert set(states(server).values()) == {"READY"}
    for name in ("late", "last"):
        assert httpx.post(f"{url}/run/{name}", content=b"x").content == b"x"


def test_over_grpc_a_model_that_is_being_built_is_not_ready(loading):
    server, thread, _ = loading
    address = server.grpc_url.partition("://")[2]
    with triton.InferenceServerClient(address) as client, grpc.insecure_channel(address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")

        def serving(name):
            request = message("grpc.health.v1.HealthCheckRequest")(service=name)
            found = check(request.SerializeToString())
            return message("grpc.health.v1.HealthCheckResponse").FromString(found).status == 1

        assert client.is_server_live()
        assert not client.is_server_ready()
        assert [client.is_model_ready(name) for name in ("first", "late")] == [True, False]
        assert [serving(name) for name in ("first", "late")] == [True, False]
        Late.go_on.set()
        thread.join(60)
        assert client.is_server_ready()
        assert serving("late")


def test_a_model_that_cannot_be_built_ends_the_server(loading):
    server, thread, raised = loading
    Late.wrong = True
    Late.go_on.set()
    thread.join(60)
    (error,) = raised
    assert isinstance(error, SetupError)
    assert "no weights" in str(error)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/v2/health/live")


def test_what_is_wrong_in_a_configuration_is_an_error_before_it_listens():
    with pytest.raises(ConfigError, match="ServeNobodyHere"):
        Server({"m": {"backend": "ServeNobodyHere"}}, port=0, listen_first=True)


def test_a_server_that_is_closed_while_it_builds_says_so(loading):
    server, thread, raised = loading
    server.close(timeout=5.0)
    Late.go_on.set()
    thread.join(60)
    (error,) = raised
    assert isinstance(error, ClosedError)


LATE = """
import os, socket
import headrace

class Late(headrace.Backend):
    def init(self, options, context):
        with socket.create_connection(("127.0.0.1", int(os.environ["SERVE_LATE_PORT"]))) as made:
            made.recv(1)  # until the test closes the connection

    def forward(self, batch):
        for request in batch:
            request["result"] = os.getpid()

class Gate(headrace.Backend):
    def forward(self, batch):
        Late.init(self, None, None)
        for request in batch:
            request["result"] = "done"

headrace.register("ServeLate", Late)
headrace.register("ServeGate", Gate)
"""


def status_of(url, path):
    return httpx.get(f"{url}{path}").status_code


def until_answered(url, name):
    while httpx.post(f"{url}/run/{name}", content=b"x").status_code != 200:
        pass


def answers(url, name, count=24):
    """Ask over so many new connections, which the kernel spreads over the processes; give the statuses."""
    return {httpx.post(f"{url}/run/{name}", content=b"x").status_code for _ in range(count)}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel spreads connections on Linux")
def test_workers_are_alive_while_they_build_and_a_restarted_one_listens_once_it_has_its_models(
    tmp_path, monkeypatch
):
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "late.toml").write_text('import = ["late.py"]\nbackend = "ServeLate"\n')
    (tmp_path / "first.toml").write_text('backend = "Identity"\n')
    with socket.socket() as free:  # the address is not said before all is built
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as builds:
        monkeypatch.setenv("SERVE_LATE_PORT", str(builds.getsockname()[1]))
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "headrace", "serve", "first.toml", "late.toml"]
        options = ["--workers", "2", "--port", str(port), "--allow", "repository"]
        with subprocess.Popen(
            [*command, *options], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as process:
            building = [builds.accept()[0] for _ in range(2)]
            assert status_of(url, "/v2/health/live") == 200
            assert status_of(url, "/v2/health/ready") == 503
            assert answers(url, "first") == {200}
            refused = httpx.post(f"{url}/run/late", content=b"x")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            changed = httpx.post(f"{url}/v2/repository/models/first/unload")
            assert (changed.status_code, changed.json()["code"]) == (503, "closed")
            building[0].close()
            until_answered(url, "late")
            # A process that has its models is not ready either: the next connection may reach one that has not.
            assert {status_of(url, "/v2/health/ready") for _ in range(24)} == {503}
            building[1].close()
            assert process.stderr.readline().startswith(f"serving {url}")
            assert {status_of(url, "/v2/health/ready") for _ in range(24)} == {200}
            assert answers(url, "late") == {200}
            os.kill(httpx.post(f"{url}/run/late", content=b"x").json()["result"], signal.SIGKILL)
            with builds.accept()[0]:  # the process is started again, and builds
                assert answers(url, "late") == {200}
            process.terminate()
            assert process.wait(300) == 0, process.stderr.read()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "status"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_a_signal_while_models_are_built_lets_requests_end(tmp_path, monkeypatch, number, status):
    (tmp_path / "late.py").write_text(LATE)
    for name in ("Gate", "Late"):
        text = f'import = ["late.py"]\nbackend = "Serve{name}"\n'
        (tmp_path / f"{name.lower()}.toml").write_text(text)
    with (
        socket.create_server(("127.0.0.1", 0)) as gates,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        monkeypatch.setenv("SERVE_LATE_PORT", str(gates.getsockname()[1]))
        port = free.getsockname()[1]
        free.close()
        command = [sys.executable, "-m", "headrace", "serve", "gate.toml", "late.toml"]
        command += ["--port", str(port)]
        with (
            subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process,
            gates.accept()[0],  # the second model is being built
            ThreadPoolExecutor(1) as pool,
        ):
            url = f"http://127.0.0.1:{port}/run/gate"
            answer = pool.submit(httpx.post, url, content=b"x")
            with gates.accept()[0]:  # the request runs
                process.send_signal(getattr(signal, number))
                assert process.stderr.readline() == "draining\n"
            assert answer.result(60).json() == {"result": "done"}
            assert process.wait(300) == status, process.stderr.read()
