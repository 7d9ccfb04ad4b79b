"""Models that change by themselves: a manager that swaps, models that their first request builds, a watched folder, aliases."""

from __future__ import annotations

import asyncio
import threading

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from serve_helpers import refused, until
from tritonclient.utils import InferenceServerException

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_models import Models, UnknownModelError
from headrace_serve import Keys, Server, asgi
from headrace_serve.models.entries import read_entries, read_models


class Says(headrace.Backend):
    """Writes a text, of which clients are told by the name of the output; ``wrong`` cannot be built."""

    class Options(headrace.Options):
        positional = ("text",)
        text: str

    built = 0
    living = 0

    def init(self, options, context):
        Says.built += 1
        if options.text == "wrong":
            raise RuntimeError("secret")
        self.text = options.text
        Says.living += 1

    def forward(self, batch):
        for request in batch:
            request["result"] = {self.text: np.zeros((1, 1), np.float32)}

    def describe(self):
        return {"outputs": {self.text: {"dtype": "float32", "shape": [None, 1]}}}

    def close(self):
        Says.living -= hasattr(self, "text")


@pytest.fixture(autouse=True)
def says():
    headrace.register("ServeSays", Says, replace=True)
    Says.built = Says.living = 0
    return Says


def saying(text):
    return {"backend": f"ServeSays({text})"}


def run(server, name="m", **headers):
    return httpx.post(f"{server.url}/run/{name}", content=b"x", headers=headers)


def said(server, name="m", **headers):
    answer = run(server, name, **headers)
    assert answer.status_code == 200, answer.text
    return next(iter(answer.json()))


def output(server, name="m"):
    return httpx.get(f"{server.url}/v2/models/{name}").json()["outputs"][0]["name"]


def index(server):
    rows = httpx.post(f"{server.url}/v2/repository/index").json()
    return {(row["name"], row["version"]): (row["state"], row["reason"]) for row in rows}


def when(source, name, state):
    """Return an event that is set once a version of a model is in a state."""
    came = threading.Event()

    def listen(change):
        if (change.name, change.state) == (name, state):
            came.set()

    source.subscribe(listen)
    return came


def test_a_manager_that_swaps_by_itself_loses_no_request(serving):
    with Models({"m": saying("one"), "n": saying("n")}) as manager:
        server = serving(manager)
        over, failed, counts = threading.Event(), [], []

        def ask():
            with httpx.Client(base_url=server.url) as client:
                while not over.is_set():
                    answer = client.post("/run/m", content=b"x")
                    counts.append(1)
                    if answer.status_code != 200:
                        failed.append(answer.text)

        clients = [threading.Thread(target=ask) for _ in range(3)]
        for client in clients:
            client.start()
        try:
            for number in range(20):
                manager.update("m", saying(f"t{number}"))
                assert said(server) == output(server) == f"t{number}"
        finally:
            over.set()
            for client in clients:
                client.join()
        assert failed == []
        assert len(counts) > 20
        assert index(server) == {("m", "21"): ("READY", ""), ("n", "1"): ("READY", "")}
        manager.replace({"m:3": saying("back"), "k": saying("new")})
        assert (said(server), said(server, "k")) == ("back", "new")
        assert run(server, "n").status_code == 404
        manager.unload("m")
        answer = run(server)
        assert (answer.status_code, answer.json()["code"]) == (503, "closed")
        assert index(server)["m", "3"] == ("UNAVAILABLE", "unloaded")
        manager.load("m")
        assert said(server) == "back"
        server.close()
        assert manager("m", {"data": 0})["result"].keys() == {"back"}  # it is not the server's
    assert Says.living == 0


def test_a_pipeline_that_cannot_be_served_is_not_and_the_others_are(serving):
    two = {"a": saying("a"), "b": saying("b")}  # there is no one node at which requests enter
    with Models({"m": saying("one"), "n": saying("n")}) as manager:
        server = serving(manager)
        manager.update("m:1", two)
        answer = run(server)
        assert (answer.status_code, said(server, "n")) == (503, "n")
        assert index(server)["m", "1"] == ("UNAVAILABLE", "it cannot be served: SetupError")
        manager.update("m:1", saying("two"))
        assert said(server) == "two"


@pytest.mark.parametrize("owner", ["server", "manager"])
def test_a_lazy_model_is_built_by_its_first_request(serving, owner):
    if owner == "server":
        server = serving({"m": {"config": saying("one"), "preload": False}, "n": saying("n")})
        source = server._service.models.held.models
    else:
        source = Models({"m": saying("one"), "n": saying("n")}, preload=False)
        source("n", {"data": 0})
        server = serving(source)
    assert Says.built == 1
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    assert httpx.get(f"{server.url}/v2/models/m/ready").json() == {"name": "m", "ready": True}
    assert index(server)["m", "1"] == ("READY", "not in memory: its next request loads it")
    assert Says.built == 1  # who looks builds nothing
    ready = when(source, "m", "ready")
    assert run(server).status_code == 200
    assert ready.is_set()
    assert (said(server), output(server)) == ("one", "one")
    assert Says.built == 2
    server.close()
    source.close()
    assert Says.living == 0


def test_a_reload_that_changes_what_the_server_takes_builds_nothing(serving):
    given = {n: {"config": saying(n), "preload": n != "late"} for n in ("m", "n", "late")}
    server = serving(given)
    assert (said(server), said(server, "n")) == ("m", "n")
    server.reload({**given, "m": {**given["m"], "max_body_bytes": 2}})
    assert Says.built == 2
    url = f"{server.url}/run/m"
    assert [httpx.post(url, content=b"x" * n).status_code for n in (2, 3)] == [200, 413]
    assert said(server, "n") == "n"
    stats = {n: httpx.get(f"{server.url}/v2/models/{n}/stats").json() for n in "mn"}
    counts = {n: one["model_stats"][0]["inference_stats"]["success"] for n, one in stats.items()}
    assert {n: one["count"] for n, one in counts.items()} == {"m": 2, "n": 2}
    server.reload({"m": given["m"], "late": given["late"]})
    assert index(server).keys() == {("m", "1"), ("late", "1")}
    assert httpx.post(url, content=b"xxx").status_code == 200
    assert Says.built == 2
    assert said(server, "late") == "late"
    server.reload()
    assert said(server, "late") == "late"
    assert Says.built == 3


def test_metadata_build_a_lazy_model_too(serving):
    late = {"config": saying("one"), "preload": False}
    server = serving({"m": late, "n": late, "k": late}, grpc_port=0, apis=["openai"])
    with triton_grpc.InferenceServerClient(server.grpc_url.partition("://")[2]) as client:
        assert client.is_model_ready("m")
        assert client.get_model_metadata("m").outputs[0].name == "one"
        assert client.is_model_ready("m")
    assert httpx.get(f"{server.url}/v2/models/n").json()["outputs"][0]["name"] == "one"
    assert httpx.get(f"{server.url}/v1/models/k").json()["id"] == "k"


def test_a_lazy_model_that_cannot_be_built_says_when_to_come_back(serving):
    now = 100.0
    manager = Models({"m": saying("wrong"), "n": saying("n")}, preload=False, clock=lambda: now)
    server = serving(manager)
    assert "could not be built" in run(server).json()["error"]
    now += 0.5
    answer = run(server)
    assert answer.json()["error"] == "model 'm' could not be built (SetupError)"
    assert int(answer.headers["retry-after"]) == 1
    state, reason = index(server)["m", "1"]
    assert state == "UNAVAILABLE"
    assert reason.startswith("its last build has failed: ")
    assert Says.built == 1
    now += 0.6
    assert "could not be built" in run(server).json()["error"]
    assert int(run(server).headers["retry-after"]) == 2
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    server.close()
    manager.close()


def test_a_load_builds_a_lazy_model_and_a_reload_keeps_what_is_built(serving):
    models = {"m": {"config": saying("one"), "preload": False}}
    server = serving(models, allow=["repository"])
    server.reload()
    assert Says.built == 0
    assert httpx.post(f"{server.url}/v2/repository/models/m/load").status_code == 200
    assert said(server) == "one"
    server.reload()
    assert (said(server), Says.living) == ("one", 1)


@pytest.mark.slow
def test_a_watched_folder_with_a_half_written_file(serving, tmp_path, caplog):
    def write(name, text):
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(tmp_path / name)

    write("m.toml", 'backend = "ServeSays(one)"')
    server = serving(str(tmp_path), watch=tmp_path)
    models = server._service.models.held.models
    assert said(server) == "one"
    (tmp_path / "m.toml").write_text('backend = "ServeSays(tw')
    until(lambda: "not updated" in models.status()["m"]["reason"])
    assert said(server) == "one"
    assert index(server)["m", "1"] == ("READY", "")
    until(lambda: "model 'm:1': not updated: ConfigError" in caplog.text)
    write("m.toml", 'backend = "ServeSays(two)"')
    until(lambda: said(server) == "two")
    assert output(server) == "two"
    (tmp_path / "k").mkdir()
    for number in "34":
        write(f"k/{number}.toml", f'backend = "ServeSays(v{number})"')
    until(lambda: run(server, "k").status_code == 200 and said(server, "k") == "v4")
    (tmp_path / "k" / "4.toml").unlink()
    until(lambda: said(server, "k") == "v3")  # the greatest one that takes requests
    assert run(server, "k").status_code == 200
    (tmp_path / "k" / "3.toml").unlink()
    write("n.toml", 'backend = "ServeSays(three)"')
    until(lambda: run(server, "n").status_code == 200)
    assert said(server, "n") == "three"
    (tmp_path / "m.toml").unlink()
    until(lambda: run(server).status_code == 404)
    until(lambda: [name for name, _ in index(server)] == ["n"])  # k is looked at after m
    write("m.toml", 'backend = "ServeSays(four)"')
    until(lambda: run(server).status_code == 200)
    assert said(server) == "four"
    until(lambda: Says.living == 2)


def test_a_version_that_was_deleted_is_unknown_also_by_its_alias(serving, tmp_path):
    (tmp_path / "k").mkdir()
    for number in "34":
        (tmp_path / "k" / f"{number}.toml").write_text(f'backend = "ServeSays(v{number})"')
    (tmp_path / "aliases.toml").write_text('live = "k:3"')
    server = serving(str(tmp_path), watch=tmp_path)
    assert (said(server, "k"), said(server, "live")) == ("v4", "v3")
    (tmp_path / "k" / "3.toml").unlink()
    until(lambda: run(server, "live").status_code == 404)
    assert "'k' has no version '3'; it has 4" in run(server, "live").json()["error"]
    assert said(server, "k") == "v4"
    url = f"{server.url}/v2/models/k/versions/3"
    assert httpx.get(url).status_code == httpx.get(f"{url}/ready").status_code == 404
    assert ("k", "3") not in index(server)
    # The file comes back: so does the version.
    (tmp_path / "k" / "3.toml").write_text('backend = "ServeSays(again)"')
    until(lambda: run(server, "live").status_code == 200)
    assert said(server, "live") == "again"


def test_a_model_that_was_unloaded_by_a_request_and_then_deleted_is_unknown(serving, tmp_path):
    for name in "mn":
        (tmp_path / f"{name}.toml").write_text('backend = "ServeSays(one)"')
    server = serving(str(tmp_path), watch=tmp_path, allow=["repository"])
    assert httpx.post(f"{server.url}/v2/repository/models/m/unload").status_code == 200
    assert run(server).status_code == 503
    (tmp_path / "m.toml").unlink()
    until(lambda: run(server).status_code == 404)
    assert said(server, "n") == "one"


@pytest.mark.parametrize("listen_first", [False, True])
def test_an_empty_folder_that_is_watched_is_served_and_takes_what_appears(
    serving, tmp_path, listen_first
):
    with pytest.raises(ConfigError, match="no model to serve"):
        Server(str(tmp_path), port=0, watch=True)
    server = serving(str(tmp_path), watch=tmp_path, listen_first=listen_first)
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    assert index(server) == {}
    assert run(server).status_code == 404
    (tmp_path / "m.toml").write_text('backend = "ServeSays(new)"')
    until(lambda: run(server).status_code == 200)
    assert said(server) == "new"
    (tmp_path / "m.toml").unlink()
    until(lambda: run(server).status_code == 404)
    server.reload()
    assert index(server) == {}


def test_an_unknown_name_is_answered_with_the_nearest_also_where_that_is_an_alias(serving):
    versions = {"detect:3": saying("three"), "read": saying("read"), "live": {"detect:3": 1.0}}
    server = serving(versions, grpc_port=0)
    for wrong, near in (("detct", "detect"), ("liv", "live"), ("Read", "read")):
        for path in (f"/run/{wrong}", f"/v2/models/{wrong}/infer"):
            answer = httpx.post(f"{server.url}{path}", content=b"x")
            assert answer.status_code == 404
            assert f"did you mean '{near}'?" in answer.json()["error"]
        assert f"'{near}'" in httpx.get(f"{server.url}/v2/models/{wrong}").json()["error"]
    with (
        triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
        pytest.raises(InferenceServerException, match="did you mean 'live'"),
    ):
        client.get_model_metadata("liv")
    said = httpx.post(f"{server.url}/run/zzz", content=b"x").json()["error"]
    assert said.endswith("served are: detect, live, read")


@pytest.mark.parametrize(
    "text",
    [
        'backend = "Identity"\npreload = false\n',
        'preload = false\n[a]\nbackend = "Identity"\n',
        '[a]\nbackend = "Identity"\npreload = false\n',
    ],
)
def test_a_key_of_a_model_in_a_file_of_its_pipeline_is_told_where_it_goes(tmp_path, text):
    (tmp_path / "m.toml").write_text(text)
    for listen_first in (False, True):
        with pytest.raises(ConfigError) as raised:
            Server(str(tmp_path), port=0, listen_first=listen_first)
        (problem,) = raised.value.problems
        assert "'preload' is a key of the model that is served" in problem.hint
        assert f"[models.NAME] with config = {str(tmp_path / 'm.toml')!r}" in problem.hint
        assert "Did you mean" not in str(raised.value)
    (tmp_path / "serve.toml").write_text(
        f"[models.m]\nconfig = '{tmp_path / 'plain.toml'}'\npreload = false\n"
    )
    (tmp_path / "plain.toml").write_text('backend = "Identity"\n')
    (entry,) = read_entries(read_models([], str(tmp_path / "serve.toml")))[0].values()
    assert entry.lazy


def test_a_reload_of_a_folder_changes_all_or_nothing(serving, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "3.toml").write_text('backend = "ServeSays(three)"')
    (tmp_path / "n.toml").write_text('backend = "ServeSays(n)"')
    (tmp_path / "aliases.toml").write_text('live = "m:3"')
    server = serving(tmp_path)
    assert (said(server), said(server, "n"), said(server, "live")) == ("three", "n", "three")
    (tmp_path / "m" / "4.toml").write_text('backend = "ServeSays(four)"')
    (tmp_path / "n.toml").write_text('backend = "ServeSays(wrong)"')
    with pytest.raises(SetupError, match="ServeSays"):
        server.reload()
    assert (said(server), said(server, "n"), Says.living) == ("three", "n", 2)
    (tmp_path / "n.toml").unlink()
    (tmp_path / "aliases.toml").write_text('live = "m:5"')
    with pytest.raises(UnknownModelError):
        server.reload()
    (tmp_path / "aliases.toml").write_text('live = {"m:3" = 1.0, "m:4" = 0.0}')
    server.reload()
    assert (said(server), said(server, "live")) == ("four", "three")
    assert run(server, "n").status_code == 404
    assert Says.living == 2


def test_an_alias_is_served_by_the_shares_of_its_versions(serving):
    versions = {"m:3": saying("three"), "m:4": saying("four")}
    server = serving({**versions, "live": {"m:3": 0.5, "m:4": 0.5}}, grpc_port=0)
    by_user = {user: said(server, "live", **{"X-Share-Key": user}) for user in map(str, range(40))}
    assert set(by_user.values()) == {"three", "four"}
    for user, text in by_user.items():  # the same one again, and over the other protocol too
        assert said(server, "live", **{"X-Share-Key": user}) == text
    assert {said(server, "live") for _ in range(60)} == {"three", "four"}
    given = triton_grpc.InferInput("data", [1], "BYTES")
    given.set_data_from_numpy(np.array([b"x"], object))
    with triton_grpc.InferenceServerClient(server.grpc_url.partition("://")[2]) as client:
        assert client.is_model_ready("live")
        assert client.get_model_metadata("live").name == "m"
        for user in list(by_user)[:10]:
            answer = client.infer("live", [given], headers={"x-share-key": user}).get_response()
            assert (answer.model_name, answer.outputs[0].name) == ("m", by_user[user])
    assert index(server)["live", ""] == ("ALIAS", "m:3 50%, m:4 50%")
    body = {"inputs": [{"name": "data", "shape": [1], "datatype": "BYTES", "data": ["x"]}]}
    answer = httpx.post(f"{server.url}/v2/models/live/infer", json=body).json()
    assert answer["model_name"] == "m"
    assert answer["outputs"][0]["name"] == {"3": "three", "4": "four"}[answer["model_version"]]
    assert httpx.get(f"{server.url}/v2/models/live/ready").status_code == 200
    assert run(server, "life").status_code == 404


def test_a_key_may_name_an_alias_and_an_alias_needs_a_model(tmp_path):
    digest = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"
    (tmp_path / "keys.toml").write_text(f'[a]\nsha256 = "{digest}"\nmodels = ["live"]')
    keys = Keys.load(tmp_path / "keys.toml")
    with Server({"m": saying("one"), "live": {"m": 1.0}}, port=0, keys=keys) as server:
        assert said(server, "live", **{"X-API-Key": "key"}) == "one"
        assert run(server, "m", **{"X-API-Key": "key"}).status_code == 403
    with pytest.raises(UnknownModelError, match="'k'"):
        Server({"m": saying("one"), "live": {"k": 1.0}}, port=0)
    with pytest.raises(ConfigError, match="share"):
        Server({"m": saying("one"), "live": {"m": -1.0}}, port=0)
    assert Says.living == 0


def test_a_server_that_listens_first_has_lazy_models_and_aliases_too(serving):
    models = {"m": saying("one"), "n": {"config": saying("two"), "preload": False}}
    server = serving({**models, "live": {"m": 1.0}}, listen_first=True)
    assert (said(server, "live"), Says.built) == ("one", 1)
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    until(lambda: run(server, "n").status_code == 200)
    assert said(server, "n") == "two"


def test_asgi_follows_its_manager():
    async def asked():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            first = await client.post("/run/m", content=b"x")
            await asyncio.to_thread(manager.update, "m", saying("two"))
            return [first.json(), (await client.post("/run/m", content=b"x")).json()]

    async def started():
        async with app.router.lifespan_context(app):
            return await asked()

    with Models({"m": saying("one")}) as manager:
        app = asgi(manager)
        assert [list(one) for one in asyncio.run(started())] == [["one"], ["two"]]


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_the_command_serves_a_folder_and_watches_it(start, tmp_path, workers):
    (tmp_path / "served" / "m").mkdir(parents=True)
    (tmp_path / "served" / "m" / "2.toml").write_text('backend = "Call(builtins:bytes.upper)"')
    (tmp_path / "served" / "aliases.toml").write_text('live = "m:2"')
    words = ["served", "--port", "0", "--watch", "--access-log", *workers]
    process, url = start(*words, cwd=tmp_path)
    threading.Thread(target=process.stderr.read, daemon=True).start()
    assert httpx.post(f"{url}/run/live", content=b"ab").content == b"AB"
    (tmp_path / "new").write_text('backend = "Call(builtins:bytes.title)"')
    (tmp_path / "new").replace(tmp_path / "served" / "m" / "2.toml")
    until(lambda: {httpx.post(f"{url}/run/m", content=b"ab").content for _ in range(12)} == {b"Ab"})


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_the_command_serves_a_folder_that_is_empty_yet(start, tmp_path, workers):
    (tmp_path / "served").mkdir()
    process, url = start("served", "--port", "0", "--watch", *workers, cwd=tmp_path)
    threading.Thread(target=process.stderr.read, daemon=True).start()
    assert httpx.post(f"{url}/run/m", content=b"ab").status_code == 404
    (tmp_path / "new").write_text('backend = "Call(builtins:bytes.upper)"')
    (tmp_path / "new").replace(tmp_path / "served" / "m.toml")
    until(lambda: {httpx.post(f"{url}/run/m", content=b"ab").content for _ in range(12)} == {b"AB"})


def test_a_folder_without_models_and_one_that_is_wrong_are_told_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "m.toml").write_text("backend = ")
    said = refused("serve", str(tmp_path / "empty"))
    assert "no model to serve\n  A folder has NAME.toml" in said
    assert "m.toml" in refused("serve", str(tmp_path / "wrong"))
