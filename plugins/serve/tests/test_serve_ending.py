"""The end of a server that reloads or loads, and signal handlers that call the server."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import httpx
import pytest

import headrace
from headrace_serve import Server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

BEGIN = """
import os, signal, threading
import headrace, headrace_serve.operating.server, httpx
from headrace.errors import ClosedError
from headrace_serve import Server

alive = []


class Named(headrace.Backend):
    class Options(headrace.Options):
        positional = ("text",)
        text: str = "first"

    def init(self, options, context):
        self.text = options.text
        alive.append(self.text)

    def forward(self, batch):
        for request in batch:
            request["result"] = self.text

    def close(self):
        alive.remove(self.text)


headrace.register("Named", Named)


def interrupts(owner, name, handler):
    # The next call of a function by the main thread is interrupted before it begins.
    function = getattr(owner, name)

    def interrupted(*args, **named):
        setattr(owner, name, function)
        signal.raise_signal(signal.SIGUSR1)
        return function(*args, **named)

    setattr(owner, name, interrupted)
    signal.signal(signal.SIGUSR1, lambda *_: handler())
"""

CLOSE_IN_CLOSE = (
    BEGIN
    + """
entered, leave = threading.Event(), threading.Event()


class Gate:
    def forward(self, batch):
        entered.set()
        leave.wait()
        for request in batch:
            request["result"] = "whole"


headrace.register("Gate", Gate)
server = Server({"m": {"backend": "Gate"}}, port=0)
answers = []
ask = lambda: answers.append(httpx.post(f"{server.url}/run/m", content=b"x", timeout=None).json())
client = threading.Thread(target=ask)


def again():
    server.close()
    leave.set()


with server:
    client.start()
    entered.wait()
    interrupts(server, "_end", again)
client.join()
print(answers)
"""
)

CLOSE_IN_RELOAD = (
    BEGIN
    + """
server = Server({"m": {"backend": "Named"}}, port=0)
server.start()
interrupts(server, "_exchange", server.close)
try:
    server.reload()
except ClosedError as error:
    print(error, alive)
"""
)

RELOAD_IN_RELOAD = (
    BEGIN
    + """
def serve(text):
    server.reload({"m": {"backend": f"Named({text})"}})


with Server({"m": {"backend": "Named"}}, port=0) as server:
    interrupts(headrace_serve.operating.server, "build_models", lambda: serve("third"))
    serve("second")
    print(httpx.post(f"{server.url}/run/m", content=b"x").json()["result"], alive)
"""
)

IN_A_CHILD = (
    BEGIN
    + """
with Server({"m": {"backend": "Identity"}}, port=0) as server:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print(httpx.post(f"{server.url}/run/m", content=b"x").content)
    else:
        try:
            server.reload()
        except ClosedError as error:
            print(error, end=" ", flush=True)
if not child:
    os._exit(0)
"""
)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param(CLOSE_IN_CLOSE, "[{'result': 'whole'}]", id="close_in_close"),
        pytest.param(CLOSE_IN_RELOAD, "the server does not run []", id="close_in_reload"),
        pytest.param(RELOAD_IN_RELOAD, "third ['third']", id="reload_in_reload"),
        pytest.param(IN_A_CHILD, "the server does not run b'x'", id="in_a_child"),
    ],
)
def test_the_server_may_be_called_in_a_signal_handler_and_in_a_forked_child(program, said):
    # Newer Pythons warn of a fork beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (found.stdout.strip(), found.stderr) == (said, "")


SLOW = """
import pathlib, sys, threading
import headrace


@headrace.register("Slow")
class Slow(headrace.Backend):
    def init(self, options, context):
        mark = pathlib.Path(__file__).with_name("built")
        if mark.exists():
            print("building", file=sys.stderr, flush=True)
            threading.Event().wait()
        mark.touch()

    def forward(self, batch):
        for request in batch:
            request["result"] = "old"
"""


def test_sigterm_does_not_wait_for_pipelines_that_a_reload_builds(tmp_path, start):
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "a.toml").write_text('import = ["slow.py"]\nbackend = "Slow"')
    process, url = start("a.toml", "--port", "0", cwd=tmp_path)
    (tmp_path / "a.toml").write_text('import = ["slow.py"]\nbackend = "Slow"\nqueue_size = 9')
    process.send_signal(signal.SIGHUP)
    assert process.stderr.readline() == "building\n"
    assert httpx.post(f"{url}/run/a", content=b"x").json() == {"result": "old"}
    process.terminate()
    assert process.stderr.readline() == "draining\n"
    assert process.wait(300) == 0
    process.stderr.close()


class Swapped(Server):
    """Notes when a reload has put its models in place of the old ones."""

    def __init__(self, models, **settings):
        super().__init__(models, port=0, **settings)
        self.swapped = threading.Event()

    async def _exchange(self, *args):
        old = await super()._exchange(*args)
        self.swapped.set()
        return old


@pytest.mark.parametrize("how", ["reload", "load"])
def test_a_request_in_a_replaced_pipeline_gets_an_answer_when_the_time_is_over(gate, tmp_path, how):
    path = tmp_path / "m.toml"
    path.write_text('backend = "ServeGate"')
    server = Swapped({"m": str(path)}, allow=["repository"])
    answers = []

    def ask():
        answers.append(httpx.post(f"{server.url}/run/m", content=b"x", timeout=None))

    client, reload = threading.Thread(target=ask), threading.Thread(target=server.reload)
    server.start()
    try:
        client.start()
        assert gate.entered.wait(300)
        path.write_text('backend = "Identity"')
        if how == "reload":  # it returns when the old pipeline is closed
            reload.start()
            assert server.swapped.wait(300)
        else:
            loaded = httpx.post(f"{server.url}/v2/repository/models/m/load", timeout=None)
            assert loaded.status_code == 200
    finally:
        server.close(timeout=0)
    client.join(300)
    assert [(one.status_code, one.json()["code"]) for one in answers] == [(503, "closed")]
    gate.open.set()  # the backend itself nobody can end
    if how == "reload":
        reload.join(300)


def test_the_end_does_not_wait_for_a_pipeline_that_a_load_builds():
    entered, leave = threading.Event(), threading.Event()
    answers = []

    class Slow(headrace.Backend):
        def init(self, options, context):
            if ask.ident is not None:
                entered.set()
                leave.wait()

        def forward(self, batch):
            pass

    def load():
        url = f"{server.url}/v2/repository/models/m/load"
        answers.append(httpx.post(url, timeout=None))

    ask = threading.Thread(target=load)
    headrace.register("ServeLoads", Slow, replace=True)
    server = Server({"m": {"backend": "ServeLoads"}}, port=0, allow=["repository"])
    server.start()
    try:
        ask.start()
        assert entered.wait(300)
    finally:
        server.close(timeout=0)  # without an end it would wait for the event below
    ask.join(300)
    leave.set()
    assert [one.status_code for one in answers] == [503]
