"""Loading and unloading by requests, and pipelines that a manager gives."""

from __future__ import annotations

import threading

import httpx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from serve_helpers import refused
from tritonclient.utils import InferenceServerException

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_serve import Server
from headrace_serve.models.manager import load_manager


@pytest.fixture(params=["http", "grpc"])
def client(request, serving):
    made = []

    def connect(models, **settings):
        server = serving(models, grpc_port=0, **{"allow": ["repository"], **settings})
        module, port = (
            (triton_http, server.port)
            if request.param == "http"
            else (triton_grpc, server.grpc_port)
        )
        made.append(module.InferenceServerClient(f"127.0.0.1:{port}"))
        made[-1].server = server
        return made[-1]

    yield connect
    for one in made:
        one.close()


def status(call, *args, **kwargs):
    with pytest.raises(InferenceServerException) as caught:
        call(*args, **kwargs)
    return caught.value.status().removeprefix("StatusCode.")


def run(server, name="m"):
    return httpx.post(f"{server.url}/run/{name}", content=b"x", timeout=60)


def index(server):
    rows = httpx.post(f"{server.url}/v2/repository/index").json()
    return {(row["name"], row["version"]): (row["state"], row["reason"]) for row in rows}


def test_load_reads_the_file_again_and_a_failure_leaves_the_old_one(client, tmp_path):
    headrace.register("ServeA", lambda data: "a", replace=True)
    headrace.register("ServeB", lambda data: "b", replace=True)
    path = tmp_path / "m.toml"
    path.write_text('backend = "ServeA"')
    c = client({"m": str(path), "n": {"backend": "Identity"}})
    old, other = (c.server._service.models.find(name).pipe for name in "mn")
    path.write_text('backend = "ServeB"')
    c.load_model("m")
    assert run(c.server).json() == {"result": "b"}
    poll = threading.Event()
    while old.stats()["state"] != "closed":  # once the requests that it has are answered
        poll.wait(0.002)
    assert other.stats()["state"] == "ready"
    assert run(c.server, "n").content == b"x"
    path.write_text('backend = "ServeNobody"')
    with pytest.raises(InferenceServerException, match="'config'") as failed:
        c.load_model("m")
    assert failed.value.status() in ("500", "StatusCode.INTERNAL")
    assert "the server's messages say why" in str(failed.value)  # and the client sees no more
    assert "ServeNobody" not in str(failed.value)
    assert run(c.server).json() == {"result": "b"}
    assert index(c.server)["m", "1"] == ("READY", "")
    assert c.server._service.models.find("n").pipe is other


def test_parameters_that_mean_nothing_are_refused_and_change_nothing(serving):
    server = serving({"m": {"backend": "Identity"}}, allow=["repository"])
    before = server._service.models.find("m").pipe

    def asked(what, parameters):
        url = f"{server.url}/v2/repository/models/m/{what}"
        return httpx.post(url, json={"parameters": parameters}).status_code

    assert asked("load", {"force": True}) == 400
    assert asked("load", {"unload_dependents": True}) == 400
    assert asked("load", {"config": "{}"}) == 403
    assert asked("load", ["force"]) == 400
    assert asked("unload", {"force": True}) == 400
    assert server._service.models.find("m").pipe is before
    assert run(server).status_code == 200
    assert asked("unload", {"unload_dependents": True}) == 200
    assert run(server).status_code == 503


def test_an_unloaded_model_refuses_and_comes_back(client):
    c = client(
        {"m": {"backend": "Identity"}, "m:2": {"backend": "Identity"}, "n": {"backend": "Identity"}}
    )
    old = c.server._service.models.find("m").pipe
    c.unload_model("m")
    assert old.stats()["state"] == "closed"
    answer = run(c.server)
    assert (answer.status_code, answer.json()["code"]) == (503, "closed")
    assert int(answer.headers["retry-after"]) >= 1
    assert not c.is_model_ready("m")
    assert c.is_model_ready("n")
    assert c.is_server_ready()
    assert index(c.server)["m", "2"] == ("UNAVAILABLE", "unloaded")
    ready = httpx.post(f"{c.server.url}/v2/repository/index", json={"ready": True}).json()
    assert [row["name"] for row in ready] == ["n"]
    c.unload_model("m")
    c.load_model("m")
    assert c.is_model_ready("m", "1")
    assert run(c.server).status_code == 200


def test_only_what_was_named_and_no_code(client):
    c = client({"m": {"backend": "Identity"}})
    for call in (c.load_model, c.unload_model):
        assert status(call, "other") in ("404", "NOT_FOUND")
    config = '{"backend": "Identity"}'
    for more in ({"config": config}, {"config": config, "files": {"file:1/model.py": b"x"}}):
        assert status(c.load_model, "m", **more) in ("403", "PERMISSION_DENIED")
    assert run(c.server).status_code == 200


class Slow:
    """Says that it is being built, and waits."""

    entered = threading.Event()
    open = threading.Event()
    fails = False

    def __init__(self):
        self.entered.set()
        assert self.open.wait(60)
        if Slow.fails:
            raise RuntimeError("secret")

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


@pytest.fixture
def slow():
    Slow.entered.clear()
    Slow.open.set()
    Slow.fails = False
    headrace.register("ServeSlow", Slow, replace=True)
    yield Slow
    Slow.open.set()


@pytest.mark.parametrize("fails", [False, True])
def test_ready_and_index_tell_the_truth_while_loading(client, slow, fails):
    c = client({"m": {"backend": "ServeSlow"}})
    slow.entered.clear()
    slow.open.clear()

    def loading():
        slow.entered.clear()
        slow.open.clear()
        url = f"{c.server.url}/v2/repository/models/m/load"
        thread = threading.Thread(target=httpx.post, args=(url,), kwargs={"timeout": 60})
        thread.start()
        assert slow.entered.wait(30)
        return thread

    thread = loading()
    assert index(c.server)["m", "1"] == ("READY", "")
    assert run(c.server).status_code == 200
    slow.open.set()
    thread.join()
    c.unload_model("m")
    slow.fails = fails
    thread = loading()
    assert index(c.server)["m", "1"] == ("LOADING", "")
    assert not c.is_model_ready("m")
    answer = run(c.server)
    assert (answer.status_code, "being loaded" in answer.json()["error"]) == (503, True)
    slow.open.set()
    thread.join()
    state, reason = index(c.server)["m", "1"]
    assert state == ("UNAVAILABLE" if fails else "READY")
    assert ("failed" in reason) is fails
    assert "secret" not in reason


def test_a_server_that_ends_while_a_model_is_loaded_closes_it(serving, slow):
    server = serving({"m": {"backend": "ServeSlow"}}, allow=["repository"])
    slow.entered.clear()
    slow.open.clear()
    answers = []

    def load():
        url = f"{server.url}/v2/repository/models/m/load"
        answers.append(httpx.post(url, timeout=60).status_code)

    loading = threading.Thread(target=load)
    loading.start()
    assert slow.entered.wait(30)
    closing = threading.Thread(target=server.close)
    closing.start()
    while not server._service.draining:
        threading.Event().wait(0.002)
    slow.open.set()
    loading.join()
    closing.join()
    assert answers == [503]


def test_what_may_be_allowed_is_checked():
    with pytest.raises(ConfigError, match="repository"):
        Server({"m": {"backend": "Identity"}}, allow=["repositry"])


class Manager:
    """Two versions of one model; which pipelines it gave."""

    def __init__(self):
        self.pipes = {v: headrace.pipe({"backend": "Identity"}) for v in ("1", "3")}
        self.asked = []

    def versions(self):
        return {"m": list(self.pipes)}

    def pipeline(self, name, version):
        self.asked.append((name, version))
        return self.pipes[version]


def test_a_manager_gives_pipelines_which_stay_its_own():
    manager = Manager()
    with Server(manager, port=0, allow=["repository"]) as server:
        assert index(server) == {("m", "1"): ("READY", ""), ("m", "3"): ("READY", "")}
        manager.pipes["4"] = headrace.pipe({"backend": "Identity"})
        server.reload()
        assert ("m", "4") in index(server)
        manager.asked.clear()
        url = f"{server.url}/v2/repository/models/m"
        assert httpx.post(f"{url}/unload").status_code == 200
        assert run(server).status_code == 503
        assert httpx.post(f"{url}/load").status_code == 200
        assert manager.asked == [("m", "1"), ("m", "3"), ("m", "4")]
        assert run(server).content == b"x"
        good, manager.pipeline = manager.pipeline, manager.pipes.__getitem__
        with pytest.raises(SetupError, match="the manager of models failed: TypeError"):
            server.reload()
        assert httpx.post(f"{url}/load").json()["code"] == "setup"
        assert run(server).content == b"x"
        manager.pipeline = good
    for pipe in manager.pipes.values():
        assert pipe({"data": 1})["result"] == 1
        pipe.close()


MODULE = """
import headrace

class Manager:
    def versions(self):
        return {"m": ["1"]}
    def pipeline(self, name, version):
        return headrace.pipe({"backend": "Identity"})

manager = Manager()
number = 5
"""


def test_a_manager_is_imported_where_imports_are_allowed(tmp_path, monkeypatch, start):
    (tmp_path / "serve_manager_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_manager("serve_manager_module:manager").versions() == {"m": ["1"]}
    for wrong in (
        "serve_manager_module:number",
        "serve_manager_module:none",
        "serve_manager_module",
        "nowhere_at_all:x",
    ):
        with pytest.raises(ConfigError):
            load_manager(wrong)
    with pytest.raises(ConfigError, match="allow"):
        load_manager("serve_manager_module:manager", allow_import=False)
    monkeypatch.setenv("HEADRACE_IMPORT", "0")
    with pytest.raises(ConfigError, match="HEADRACE_IMPORT"):
        load_manager("serve_manager_module:manager")
    monkeypatch.delenv("HEADRACE_IMPORT")
    _, url = start("--manager", "serve_manager_module:manager", "--port", "0", cwd=tmp_path)
    assert httpx.post(f"{url}/run/m", content=b"x").content == b"x"
    for more in ("--no-import", "a.toml"):
        refused("serve", "--manager", "serve_manager_module:manager", more)
