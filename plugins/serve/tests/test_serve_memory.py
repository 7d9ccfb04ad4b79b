"""Models that do not all fit: the serving file, requests to models that are not there, and what is told of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from pages import Page
from serve_helpers import until
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_cli.app import app
from headrace_models import Memory, Models, OutOfMemoryError
from headrace_serve import Server
from headrace_serve.models.entries import read_memory, read_models


def written(tmp_path, text):
    (tmp_path / "m.toml").write_text('backend = "Identity"\n')
    path = tmp_path / "serve.toml"
    path.write_text(text)
    return str(path)


def of_file(path):
    return {"models": read_models([], path), "memory": read_memory(path), "port": 0}


@pytest.mark.parametrize("listen_first", [False, True])
@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('[memory]\nhost = "8"\n', "'host' is '8', which is no size with a unit"),
        ('[memory]\nhosts = "8 GiB"\n', "(?s)serve.toml.*memory.hosts.*Did you mean 'host'"),
        ('[memory]\nmin_stay = 3\n', "(?s)memory.min_stay.*Did you mean 'min_stay_s'"),
        ('[memory]\nhost = "1 GiB"\nmin_stay_s = -1\n', "min_stay_s of the memory is -1"),
        ("memory = 3\n", r"it is a table \[memory\]"),
        ('[memory]\nhost = "1 GiB"\n[models.m]\nmemory = "2"\n', "models.m.memory: .* is '2', which is no size"),
        ('[memory]\nhost = "1 GiB"\n[models.m]\nmemory = "2 GiB"\n', "'m:1' takes 2147483648"),
        (
            ('[memory]\nhost = "3 GiB"\n[models.n]\nconfig = "m.toml"\nmemory = "2 GiB"\nkeep = true\n'
            '[models.m]\nmemory = "2 GiB"\nkeep = true\n'),
            "that are kept take 4294967296 bytes",
        ),
        ("[models.m]\nkeep = true\n", "'m' has `memory`, `keep` or `idle_unload_s`, and there is no budget"),
        ('[memory]\nhost = "1 GiB"\n[models.m]\nkept = true\n', "(?s)models.m.kept.*'keep'"),
    ],
)  # fmt: skip
def test_a_wrong_budget_is_refused_before_anything_is_built(tmp_path, text, match, listen_first):
    model = "" if "[models.m]" in text else "[models.m]\n"
    text = f"{text}{model}".replace("[models.m]\n", '[models.m]\nconfig = "m.toml"\n')
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=match):
        Server(**of_file(path), listen_first=listen_first)


@pytest.mark.parametrize("listen_first", [False, True])
def test_a_server_begins_with_those_that_fit(tmp_path, listen_first):
    text = '[memory]\nhost = "2 GiB"\nmin_stay_s = 0\n'
    for name in "abc":
        text += f'[models.{name}]\nconfig = "m.toml"\nmemory = "1 GiB"\nkeep = {"ac".count(name) > 0}\n'.lower()
    path = written(tmp_path, text.replace("gib", "GiB"))
    with Server(**of_file(path), listen_first=listen_first) as server:
        index = httpx.post(f"{server.url}/v2/repository/index").json()
        absent = "not in memory: its next request loads it"
        assert {one["name"]: (one["state"], one["reason"]) for one in index} == {
            "a": ("READY", ""), "b": ("READY", absent), "c": ("READY", ""),
        }  # fmt: skip
        assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200


def test_the_serving_file_of_the_page_is_served(tmp_path):
    text = Page("docs/models.md").block("toml", "[memory]")
    for name in ("m0", "m1"):
        (tmp_path / f"{name}.toml").write_text('backend = "Identity"\n')
    path = written(tmp_path, text)
    checked = CliRunner().invoke(app, ["serve", "--models", path, "--check"])
    assert (checked.exit_code, checked.stdout) == (0, "ok: m0:1, m1:1\n")
    with Server(**of_file(path)) as server:
        told = httpx.get(f"{server.url}/v2/models/m0").json()
    assert (told["state"], told["memory"]["bytes"]) == ("present", {"host": 1 << 30})


WRONG = """
[memory]
{host} = "8 GiB"
"cuda:7" = "{size}"

[models.wrong_key]
config = "m.toml"
kept = true

[models.no_pipeline]
config = "none.toml"

[models.wrong_pipeline]
config = "wrong.toml"

[models.large]
config = "m.toml"
memory = "9 GiB"

[models.kept]
config = "m.toml"
memory = "5 GiB"
keep = true

[models.kept_too]
config = "m.toml"
memory = "4 GiB"
keep = true

[mdels]
"""


def check(path, *options):
    result = CliRunner().invoke(app, ["serve", "--models", path, "--check", "--json", *options])
    told = json.loads(result.stdout)
    return result.exit_code, {each["path"]: each for each in told["problems"]}, told


def test_check_tells_all_mistakes_of_a_serving_file_at_once(tmp_path, late):
    (tmp_path / "wrong.toml").write_text('backend = "Identitty"\n')
    path = written(tmp_path, WRONG.format(host="hosts", size="9"))
    assert check(path)[:1] == (2,)
    near = {"memory.hosts": "host", "models.wrong_key.kept": "keep", "mdels": "models"}
    wrong = {"memory.cuda:7", "main.backend", *near}
    code, problems, _ = check(path)
    assert wrong <= {*problems}
    assert {place: problems[place]["suggestion"] for place in near} == near
    assert "none.toml" in str(problems)
    assert problems["memory.cuda:7"]["file"] == path
    assert "Write it as" in problems["memory.cuda:7"]["hint"]
    path = written(tmp_path, WRONG.format(host="host", size="9 GiB"))
    told = [each["message"] for each in check(path)[2]["problems"] if each["path"] == "memory.host"]
    assert [text.partition(" bytes")[0] for text in told] == [
        f"model 'large:1' takes {9 << 30}", f"the models that are kept take {9 << 30}",
    ]  # fmt: skip
    few = "".join(re.split(r"(?=\[m)", WRONG)[i] for i in (1, 5))
    path = written(tmp_path, few.format(host="host", size="9 GiB").replace("9 GiB", "3 GiB"))
    ready = {"ok": True, "problems": [], "models": ["large:1"]}
    assert check(path)[::2] == (0, ready)
    code, problems, _ = check(path, "--workers", "3")
    assert (code, {*problems}) == (2, {"memory.host"})
    assert not late.building.acquire(blocking=False)


def test_workers_share_the_budget(tmp_path):
    path = written(tmp_path, '[memory]\nhost = "8 GiB"\n"cuda:1" = "4 GiB"\n')
    assert read_memory(path, 4).budget_bytes == {"host": 2 << 30, "cuda:1": 1 << 30}
    assert read_memory(None) is None


class ServeLate(headrace.Backend):
    """Writes its text, by which its output is named. Its build waits for the gate, if there is one."""

    class Options(headrace.Options):
        positional = ("text",)
        text: str

    gate: ClassVar[threading.Event | None] = None
    fails: ClassVar[str] = ""
    building: ClassVar[threading.Semaphore] = threading.Semaphore(0)

    def init(self, options, context):
        self.text = options.text
        ServeLate.building.release()
        if ServeLate.gate is not None:
            assert ServeLate.gate.wait(60)
        if self.text == ServeLate.fails:
            raise ValueError(self.text)

    def forward(self, batch):
        for request in batch:
            request["result"] = {self.text: np.zeros((1, 1), np.float32)}

    def describe(self):
        return {"outputs": {self.text: {"dtype": "float32", "shape": [None, 1]}}}


@pytest.fixture(autouse=True)
def late():
    headrace.register("ServeLate", ServeLate, replace=True)
    ServeLate.gate, ServeLate.building = None, threading.Semaphore(0)
    ServeLate.fails = ""
    yield ServeLate
    if ServeLate.gate is not None:
        ServeLate.gate.set()


def entries(names, **keys):
    return {n: {"config": {"backend": f"ServeLate({n})", **keys}, "memory": "1 GiB"} for n in names}


def budget(text="1 GiB"):
    return Memory({"host": text}, min_stay_s=0)


BODY = {"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}


def infer(server, name, **parameters):
    body = {**BODY, "parameters": parameters}
    return httpx.post(f"{server.url}/v2/models/{name}/infer", json=body, timeout=60)


def present(server):
    return ready_at(server.url)


def ready_at(url):
    index = httpx.post(f"{url}/v2/repository/index").json()
    return {one["name"] for one in index if (one["state"], one["reason"]) == ("READY", "")}


def in_flight(server):
    return server._service.counters.in_flight["http"]


def client_of(server):
    return triton_grpc.InferenceServerClient(server.grpc_url.partition("://")[2])


def given():
    found = triton_grpc.InferInput("data", [1], "BYTES")
    found.set_data_from_numpy(np.array([b"x"], object))
    return [found]


def over_run(server, name):
    return next(iter(httpx.post(f"{server.url}/run/{name}", content=b"x", timeout=60).json()))


def over_pieces(server, name):
    pieces = iter([b"x", b"y"])
    return next(iter(httpx.post(f"{server.url}/run/{name}", content=pieces, timeout=60).json()))


def over_infer(server, name):
    return infer(server, name).json()["outputs"][0]["name"]


def over_generate(server, name):
    url = f"{server.url}/v2/models/{name}/generate"
    return name if name in httpx.post(url, json={"data": "x"}, timeout=60).json() else None


def over_kserve(server, name):
    url = f"{server.url}/v1/models/{name}:predict"
    answer = httpx.post(url, json={"instances": ["x"]}, timeout=60).json()
    return name if name in str(answer["predictions"]) or answer["predictions"] else None


def over_grpc(server, name):
    with client_of(server) as client:
        return client.infer(name, given()).get_response().outputs[0].name


def over_stream(server, name):
    came = []
    done = threading.Event()

    def note(result, error):
        came.append(error or result.get_response().outputs[0].name)
        done.set()

    with client_of(server) as client:
        client.start_stream(note)
        client.async_stream_infer(name, given())
        assert done.wait(60)
        client.stop_stream()
    return came[0]


DOORS = [over_run, over_pieces, over_infer, over_generate, over_kserve, over_grpc, over_stream]


@pytest.mark.parametrize("owner", ["server", "manager"])
def test_each_door_brings_a_model_back(serving, owner):
    with contextlib.ExitStack() as stack:
        if owner == "server":
            server = serving(entries("ab"), memory=budget(), grpc_port=0, apis=["kserve-v1"])
        else:
            sizes = dict.fromkeys("ab", "1 GiB")
            memory = Memory({"host": "1 GiB"}, sizes=sizes, min_stay_s=0)
            configs = {name: one["config"] for name, one in entries("ab").items()}
            held = stack.enter_context(Models(configs, memory=memory))
            server = serving(held, grpc_port=0, apis=["kserve-v1"])
        assert present(server) == {"a"}
        for door in DOORS:
            for name in "ba":
                assert door(server, name) == name
                assert present(server) == {name}
            assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
        assert httpx.get(f"{server.url}/v2/models/b").json()["outputs"][0]["name"] == "b"
        assert present(server) == {"a"}, "who looks brings nothing back"
        server.close()


def test_one_that_has_left_is_ready_and_one_whose_build_has_failed_is_not(serving, late):
    server = serving(entries("ab"), memory=budget(), grpc_port=0)
    over_http = triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")
    with client_of(server) as over_rpc, contextlib.closing(over_http):

        def told():
            """Return who is ready, and who is in the index of those that are, by each client."""
            ready = [{n for n in "ab" if each.is_model_ready(n)} for each in (over_http, over_rpc)]
            rows = over_rpc.get_model_repository_index().models
            listed = {one.name: one.reason for one in rows if one.state == "READY"}
            assert ready[0] == ready[1] == {*listed}
            return listed

        absent = "not in memory: its next request loads it"
        assert told() == {"a": "", "b": absent}
        assert infer(server, "b").status_code == 200
        assert told() == {"a": absent, "b": ""}
        late.fails = "a"
        assert infer(server, "a").status_code == 503
        assert told() == {"b": ""} or told() == {"b": absent}
        rows = httpx.post(f"{server.url}/v2/repository/index").json()
        (failed,) = [one for one in rows if one["name"] == "a"]
        assert failed["state"] == "UNAVAILABLE"
        assert "SetupError" in failed["reason"]


def test_who_waits_has_a_deadline_a_place_in_the_queue_and_may_hang_up(serving, late):
    server = serving(entries("ab", queue_size=2), memory=budget(), grpc_port=0)
    late.gate = threading.Event()
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        stack.callback(late.gate.set)
        answer = infer(server, "b", timeout=50_000)
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline")
        url = f"{server.url}/run/b?timeout=50000"
        assert httpx.post(url, content=b"x", timeout=60).status_code == 504
        with client_of(server) as client, pytest.raises(InferenceServerException) as raised:
            client.infer("b", given(), timeout=50_000)
        assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        waiting = [pool.submit(infer, server, "b") for _ in range(2)]
        until(lambda: in_flight(server) == 2)
        answer = infer(server, "b")
        assert (answer.status_code, answer.json()["code"]) == (429, "memory")
        assert int(answer.headers["retry-after"]) >= 1
        with client_of(server) as client, pytest.raises(InferenceServerException) as raised:
            client.infer("b", given())
        assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        late.gate.set()
        assert [one.result(60).status_code for one in waiting] == [200, 200]
    late.gate = threading.Event()
    gone = socket.create_connection(("127.0.0.1", server.port))
    gone.sendall(b"POST /run/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(infer, server, "a")]
        until(lambda: in_flight(server) == 2)
        assert infer(server, "a").status_code == 429
        gone.close()
        until(lambda: in_flight(server) == 1)
        assert infer(server, "a", timeout=1000).status_code == 504
        late.gate.set()
        assert waiting[0].result(60).status_code == 200


def test_a_server_that_stops_answers_who_waits(serving, late):
    server = serving(entries("ab"), memory=budget())
    late.gate = threading.Event()
    while late.building.acquire(blocking=False):
        pass
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(infer, server, "b")
        assert late.building.acquire(timeout=60)
        closing = pool.submit(server.close, timeout=0.1)
        assert (waiting.result(60).status_code, waiting.result().json()["code"]) == (503, "closed")
        late.gate.set()
        closing.result(60)


def test_a_model_that_nobody_uses_leaves_and_comes_back(serving):
    served = entries("ab")
    served["a"]["idle_unload_s"] = 0.2
    server = serving(served, memory=budget("2 GiB"))
    until(lambda: present(server) == {"b"})
    assert over_infer(server, "a") == "a"
    until(lambda: present(server) == {"b"})


def test_a_model_that_cannot_come_is_refused_and_the_server_is_ready(serving):
    server = serving(
        {**entries("a"), "b": {**entries("b")["b"], "keep": True}}, memory=budget("1 GiB")
    )
    answer = infer(server, "a")
    assert (answer.status_code, answer.json()["code"]) == (429, "memory")
    assert "These stay" not in answer.text
    assert int(answer.headers["retry-after"]) >= 1
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    assert over_infer(server, "b") == "b"


def sizes(server, names):
    told = {name: httpx.get(f"{server.url}/v2/models/{name}").json() for name in names}
    return {name: one["memory"]["bytes"]["host"] >> 30 for name, one in told.items()}


def test_a_reload_changes_the_budget_or_nothing(serving, late):
    server = serving(entries("ab"), memory=budget("2 GiB"))
    wrong = [
        ({"memory": budget("1 MiB")}, ConfigError, "'a:1' takes"),
        ({"memory": Memory({"cuda:0": "9 GiB"})}, ConfigError, "were .'host'. at the start, and"),
        (
            {"models": entries("ab", queue_size=9), "memory": budget("3 GiB")},
            OutOfMemoryError,
            "These stay",
        ),
        ({"models": {**entries("a"), "b": {**entries("b")["b"], "keep": 3}}}, ConfigError, "keep"),
    ]
    for settings, kind, match in wrong:
        with pytest.raises(kind, match=match):
            server.reload(**settings)
        assert [over_infer(server, name) for name in "ab"] == [*"ab"]
        assert present(server) == {*"ab"}
    more = {name: {**one, "memory": "2 GiB"} for name, one in entries("abc").items()}
    server.reload({**more, "c": {**more["c"], "keep": True}}, memory=budget("9 GiB"))
    assert sizes(server, "abc") == dict.fromkeys("abc", 2)
    assert [over_infer(server, name) for name in "abca"] == [*"abca"]
    assert present(server) == {*"abc"}
    late.fails = "b"
    with pytest.raises(SetupError):
        server.reload(entries("abc", queue_size=9), memory=budget("20 GiB"))
    for name in "abcacb":
        assert over_infer(server, name) == name
    assert sizes(server, "abc") == dict.fromkeys("abc", 2)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals of POSIX")
def test_a_hangup_reads_the_budget_again(tmp_path, start):
    text = '[memory]\nhost = "{}"\nmin_stay_s = 0\n'
    for name in "ab":
        text += f'[models.{name}]\nconfig = "m.toml"\nmemory = "1 GiB"\n'
    path = written(tmp_path, text.format("1 GiB"))
    process, url = start("--models", path, "--port", "0", cwd=tmp_path)

    def hang_up(text):
        written(tmp_path, text)
        process.send_signal(signal.SIGHUP)
        said = process.stderr.readline()
        return said if "reloaded" in said else said + process.stderr.readline()

    assert ready_at(url) == {"a"}
    assert "'12', which is no size" in hang_up(text.format("12"))
    assert "nothing has changed" in process.stderr.readline()
    said = hang_up(text.format('1 GiB"\n"cuda:0" = "1 GiB'))
    assert "memory: its devices were ['host'] at the start" in said
    assert "start the server again" in said
    assert "nothing has changed" in process.stderr.readline()
    assert ready_at(url) == {"a"}
    assert "reloaded" in hang_up(text.format("4 GiB"))
    assert ready_at(url) == {"a", "b"}


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals of POSIX")
def test_a_hangup_with_a_full_budget_builds_what_has_changed_alone(tmp_path, start):
    text = '[memory]\nhost = "3 GiB"\nmin_stay_s = 0\n'
    for name in "abc":
        text += f'[models.{name}]\nconfig = "{name}.toml"\nmemory = "1 GiB"\n'
        (tmp_path / f"{name}.toml").write_text('backend = "Call(builtins:len)"\n')
    process, url = start("--models", written(tmp_path, text), "--port", "0", cwd=tmp_path)

    def answered():
        """Return what each model answers, and how many requests its pipeline has answered before."""
        told = {}
        for name in "abc":
            stats = httpx.get(f"{url}/v2/models/{name}/stats").json()["model_stats"]
            counts = [one["inference_stats"]["success"]["count"] for one in stats]
            told[name] = httpx.post(f"{url}/run/{name}", content=b"ab").text, sum(counts)
        return told

    def hang_up():
        process.send_signal(signal.SIGHUP)
        assert "reloaded" in process.stderr.readline()

    assert answered() == dict.fromkeys("abc", ('{"result":2}', 0))
    hang_up()
    assert answered() == dict.fromkeys("abc", ('{"result":2}', 1))
    with (tmp_path / "c.toml").open("a") as file:
        file.write("queue_size = 5\n")
    assert ready_at(url) == {*"abc"}
    hang_up()
    told = answered()
    assert told["b"] == ('{"result":2}', 2)
    assert told["c"][1] == 0


def test_metadata_and_metrics_tell_who_is_here(serving):
    server = serving(entries("ab"), memory=budget(), grpc_port=0)
    assert [over_infer(server, name) for name in "babb"] == [*"babb"]
    told = {n: httpx.get(f"{server.url}/v2/models/{n}").json() for n in "ab"}
    memory = {"bytes": {"host": 1 << 30}, "origin": "given"}
    assert {n: one["memory"] for n, one in told.items()} == {"a": memory, "b": memory}
    assert {n: one["state"] for n, one in told.items()} == {"a": "absent", "b": "present"}
    with client_of(server) as client:
        assert client.get_model_metadata("a").outputs[0].name == "a"
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    for line in (
        'headrace_serve_models_loaded_total{model="b"} 2.0',
        'headrace_serve_models_loaded_total{model="a"} 1.0',
        'headrace_serve_models_evicted_total{model="a"} 2.0',
        'headrace_serve_models_evicted_total{model="b"} 1.0',
        'headrace_serve_model_memory_bytes{device="host",model="a",model_version="1"} 1.073741824e+09',
        'headrace_serve_model_present{model="b",model_version="1"} 1.0',
        'headrace_serve_model_present{model="a",model_version="1"} 0.0',
    ):
        assert line in lines, [one for one in lines if "_model" in one and one[0] != "#"]
    took = [one for one in lines if one.startswith("headrace_serve_models_loading_seconds_total{")]
    assert all(float(one.split()[-1]) > 0 for one in took)
    assert len(took) == 2


def test_without_a_budget_nothing_more_is_told(serving):
    server = serving({"m": {"backend": "Identity"}})
    assert "state" not in httpx.get(f"{server.url}/v2/models/m").json()
    assert "headrace_serve_model" not in httpx.get(f"{server.url}/metrics").text


def product(path, factor):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("x", "y")]
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32) * factor, "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)


def test_eight_clients_of_models_of_onnx_get_one_right_answer_each(serving, tmp_path):
    served = {}
    for number in range(6):
        product(tmp_path / f"{number}.onnx", number + 1)
        config = {"backend": f"OnnxTensor(model={str(tmp_path / str(number)) + '.onnx'!r})"}
        served[f"m{number}"] = {"config": {**config, "queue_size": 4}, "memory": "1 GiB"}
    server = serving(served, memory=budget("2 GiB"))
    came = {}

    async def ask(client, draw):
        for _ in range(15):
            number = min(5, int(draw.expovariate(0.7)))
            row = [draw.random() for _ in range(4)]
            tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": row}
            late_us = draw.choice([0, 0, 300, 3000, 30_000])
            body = {"inputs": [tensor], "parameters": {"timeout": late_us} if late_us else {}}
            answer = await client.post(f"{server.url}/v2/models/m{number}/infer", json=body)
            came.setdefault(answer.status_code, []).append(answer)
            assert late_us or answer.status_code != 504
            if answer.status_code == 200:
                got = answer.json()["outputs"][0]["data"]
                assert got == pytest.approx([(number + 1) * one for one in row], rel=1e-5)

    async def run():
        async with httpx.AsyncClient(timeout=60) as client:
            await asyncio.gather(*(ask(client, random.Random(seed)) for seed in range(8)))

    asyncio.run(run())
    assert sum(map(len, came.values())) == 120
    assert came.keys() <= {200, 429, 504}, {*came}
    assert came[200]
    assert {one.json()["code"] for one in came.get(429, [])} <= {"memory", "overloaded"}
