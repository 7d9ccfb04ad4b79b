"""The live page: what it is told, who may ask, and that nothing runs while no browser looks."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import headrace
from headrace.errors import ConfigError
from headrace_serve import Server
from headrace_serve.ui.limit import Sample, limit_of, running_of
from headrace_serve.ui.live import LivePage
from headrace_serve.ui.load import LoadTest, Replay

PICKY = {"backend": "ServePicky", "max": 8, "instance_num": 2}
KEYS = (
    "[looks]\n"
    'sha256 = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"\n'  # key
    'rights = ["describe"]\n'
)


def until(condition):
    """Ask again until something has happened; the limit only ends what hangs."""
    for _ in range(30_000):
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it never came")


def state(server, **since):
    return httpx.get(f"{server.url}/ui/state.json", params=since).json()


def test_there_is_no_page_unless_it_is_asked_for(serving):
    server = serving({"m": PICKY})
    for path in ("/ui", "/ui/state.json", "/ui/models.json", "/ui/main.js"):
        assert httpx.get(f"{server.url}{path}").status_code == 404


def test_page_and_scripts_may_ask_this_server_alone(serving):
    server = serving({"m": PICKY}, ui=True)
    page = httpx.get(f"{server.url}/ui")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    assert "http://" not in page.text.replace(server.url, "")
    assert httpx.get(f"{server.url}/ui/style.css").headers["content-type"].startswith("text/css")
    script = httpx.get(f"{server.url}/ui/main.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    for path in ("/ui/live.py", "/ui/..%2flive.py", "/ui/index.html"):
        assert httpx.get(f"{server.url}{path}").status_code == 404


def test_a_state_since_a_number_of_thousands_of_digits_is_the_whole_state(serving):
    server = serving({"m": PICKY}, ui=True)
    assert state(server, m="9" * 5000)["models"] == state(server)["models"]


def test_the_state_has_the_figures_of_the_pipeline_and_each_batch_once(serving):
    server = serving({"m": PICKY}, ui=True)
    before = state(server)
    assert before["models"][0]["batches"] == []
    for _ in range(3):
        httpx.post(f"{server.url}/run/m", content=b"good").raise_for_status()
    httpx.post(f"{server.url}/run/m", content=b"break it")
    found = until(lambda: (now := state(server)) and len(now["models"][0]["batches"]) == 4 and now)
    (model,) = found["models"]
    assert model["stats"]["nodes"]["main"]["ok"] == 3
    assert [(node, size, failed) for _, node, _, size, _, _, failed in model["batches"]] == [
        ("main", 1, 0), ("main", 1, 0), ("main", 1, 0), ("main", 1, 1),
    ]  # fmt: skip
    assert all(
        before["now"] <= started <= ended <= found["now"]
        for *_, started, ended, _ in model["batches"]
    )
    last = model["batches"][-1][0]
    assert state(server, **{"batches.m:1": last - 1})["models"][0]["batches"] == [
        model["batches"][-1]
    ]


def test_failures_are_shown_with_the_ids_of_their_requests(serving):
    server = serving({"m": PICKY}, ui=True)
    headers = {"x-request-id": "order-7"}
    httpx.post(f"{server.url}/run/m", content=b"break it", headers=headers)
    httpx.post(f"{server.url}/run/m", content=b"bad", headers={"x-request-id": "order-8"})
    first, second = state(server)["failures"]
    assert (first["model"], first["code"], first["request_id"]) == ("m", "backend", "order-7")
    assert "secret of the backend" not in first["text"]  # as in the answer to the client
    assert (second["code"], second["request_id"]) == ("input", "order-8")
    assert state(server, failures=first["number"])["failures"] == [second]
    shown = serving({"m": PICKY}, ui=True, debug_errors=True)
    httpx.post(f"{shown.url}/run/m", content=b"break it")
    assert "secret of the backend" in state(shown)["failures"][0]["text"]


def test_the_graph_and_a_form_for_each_kind_of_input(serving):
    graph = {
        "a": {"backend": "ServePicky", "next": "b,c"},
        "b": {"backend": "Identity", "next": "c", "instance_num": 3},
        "c": {"backend": "Identity", "map": "a[result:data],b[result:more]"},
    }
    tensors = {
        "config": {"backend": "Identity"},
        "inputs": {"x": {"datatype": "FP32", "shape": [-1, 3], "key": "data"}},
        "outputs": {"result": {"datatype": "FP32", "shape": [-1, 3]}},
    }
    fields = {
        "config": {"backend": "Identity"},
        "request": {
            "data": {"type": "list[float]", "description": "Lengths in cm."},
            "unit": {"type": "str", "required": False},
        },
    }
    server = serving({"graph": graph, "tensors": tensors, "fields": fields}, ui=True)
    models = {
        one["name"]: one for one in httpx.get(f"{server.url}/ui/models.json").json()["models"]
    }
    nodes = {one["name"]: one["instances"] for one in models["graph"]["nodes"]}
    assert nodes == {"a": 1, "b": 3, "c": 1}
    assert {(one["from"], one["to"], one["keys"]) for one in models["graph"]["edges"]} == {
        ("a", "b", ""), ("a", "c", "result:data"), ("b", "c", "result:more"),
    }  # fmt: skip
    assert models["graph"]["form"] == {
        "kind": "file", "path": "run/graph", "input": "data", "query": [], "text": False,
    }  # fmt: skip
    assert models["tensors"]["form"] == {
        "kind": "tensors",
        "path": "v2/models/tensors/versions/1/infer",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3], "optional": False}],
    }
    form = models["fields"]["form"]
    assert (form["kind"], form["path"]) == ("json", "run/fields")
    assert [(one["name"], one["type"], one["required"]) for one in form["fields"]] == [
        ("data", "array of number", True), ("unit", "string", False),
    ]  # fmt: skip
    answer = httpx.post(f"{server.url}/run/fields", json=form["example"])
    assert answer.status_code == 200, answer.text  # the example is a request that the model takes


def test_the_page_sees_that_other_models_are_served(serving):
    server = serving({"m": PICKY}, ui=True)
    first = state(server)["catalogue"]
    assert state(server)["catalogue"] == first
    server.reload({"m": PICKY, "n": PICKY})
    after = state(server)
    assert after["catalogue"] != first
    described = httpx.get(f"{server.url}/ui/models.json").json()
    assert described["catalogue"] == after["catalogue"]
    assert [one["id"] for one in described["models"]] == ["m:1", "n:1"]
    assert len(after["models"]) == 2


def test_a_load_test_sends_the_request_from_so_many_clients(serving):
    server = serving({"m": PICKY}, ui=True)
    load = f"{server.url}/ui/load/m"
    asked = {"to": "/run/m", "clients": 5}
    assert httpx.post(load, params=asked, content=b"again").json() == {"clients": 5}
    found = until(lambda: (now := state(server)["load"])["buckets"] and now)
    assert (found["clients"], found["path"]) == (5, "/run/m")
    bucket = found["buckets"][0]
    assert bucket["failed"] == 0
    assert bucket["requests"] > 0
    assert 0 < bucket["p50"] <= bucket["p95"] <= bucket["most"]
    assert state(server, load=bucket["number"])["load"]["buckets"] != found["buckets"]
    httpx.post(load, params={**asked, "clients": 0}, content=b"again")
    assert state(server)["load"]["clients"] == 0
    stats = httpx.get(f"{server.url}/v2/models/m/stats").json()["model_stats"][0]
    assert stats["inference_count"] >= bucket["requests"]


def test_a_load_test_counts_what_is_refused(serving):
    server = serving({"m": PICKY}, ui=True)
    asked = {"to": "/run/m", "clients": 2}
    httpx.post(f"{server.url}/ui/load/m", params=asked, content=b"bad")
    found = until(lambda: (now := state(server)["load"])["buckets"] and now)
    assert found["buckets"][0]["failed"] > 0
    assert found["refused"] == 400


@pytest.mark.parametrize(
    ("to", "clients"),
    [
        ("/v2/repository/models/m/unload", 1),
        ("/run/other", 1),
        ("/run/m", 129),
        ("/run/m", -1),
        ("/run/m", "9" * 5000),
    ],
)
def test_a_load_test_of_anything_else_is_refused(to, clients, serving):
    server = serving({"m": PICKY}, ui=True)
    asked = {"to": to, "clients": clients}
    assert httpx.post(f"{server.url}/ui/load/m", params=asked, content=b"x").status_code == 400


ROUTES = [
    ("GET", "/"),
    ("GET", "/ui/"),
    ("GET", "/ui"),
    ("GET", "/ui/main.js"),
    ("GET", "/ui/style.css"),
    ("GET", "/ui/models.json"),
    ("GET", "/ui/state.json"),
    ("POST", "/ui/load/m?to=/run/m&clients=1"),
]


def raw(server, method, path, host, *more):
    """Send a request as it is, and return its answer: a library would write the header Host itself."""
    port, body = int(server.url.rpartition(":")[2]), "x" if method == "POST" else ""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(body)}",
        *more,
        "Connection: close",
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(("\r\n".join(lines) + f"\r\n\r\n{body}").encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), body.decode()


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_page_of_another_origin_is_refused(method, path, serving):
    server = serving({"m": PICKY}, ui=True)
    host = server.url.removeprefix("http://")
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        status, _, body = raw(server, method, path, host, f"Origin: {origin}")
        assert status == 403
        assert origin in json.loads(body)["error"]
    assert raw(server, method, path, host, f"Origin: http://{host}")[0] < 400


def test_with_keys_any_name_may_be_asked_for(serving, tmp_path):
    (tmp_path / "keys.toml").write_text(KEYS)
    server = serving({"m": PICKY}, ui=True, keys=tmp_path / "keys.toml")
    assert raw(server, "GET", "/ui", "models.example")[0] == 200
    assert raw(server, "GET", "/ui/state.json", "models.example")[0] == 401
    key = "Authorization: Bearer key"
    assert raw(server, "GET", "/ui/state.json", "models.example", key)[0] == 200


def test_the_name_on_which_it_listens_may_be_asked_for(serving, monkeypatch):
    resolve = socket.getaddrinfo

    def with_name(host, *arguments, **named):
        return resolve("127.0.0.1" if host == "Desk.example" else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", with_name)
    server = serving({"m": PICKY}, host="Desk.example", ui=True)
    assert raw(server, "GET", "/ui", "desk.example")[0] == 200
    assert raw(server, "GET", "/ui", "evil.example")[0] == 403


def test_without_keys_it_is_served_to_this_machine_alone(serving, tmp_path):
    with pytest.raises(ConfigError, match="everybody who reaches this address"):
        Server({"m": PICKY}, host="0.0.0.0", port=0, ui=True)
    (tmp_path / "keys.toml").write_text(KEYS)
    server = serving({"m": PICKY}, host="0.0.0.0", ui=True, keys=tmp_path / "keys.toml")
    url = server.url.replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(f"{url}/ui").status_code == 200
    assert httpx.get(f"{url}/ui/state.json").status_code == 401
    key = {"authorization": "Bearer key"}
    assert httpx.get(f"{url}/ui/state.json", headers=key).status_code == 200
    asked = {"to": "/run/m", "clients": 1}
    load = httpx.post(f"{url}/ui/load/m", params=asked, content=b"x", headers=key)
    assert load.status_code == 403  # this key may not infer


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Served:
    name, version, ready = "m", "1", True

    def __init__(self, pipe):
        self.pipe = pipe


def test_when_no_browser_asks_nothing_of_it_runs():
    clock = Clock()

    async def work():
        page = LivePage(clock)
        with headrace.pipe({"backend": "Identity"}) as pipe:
            model = Served(pipe)
            assert "probes" not in pipe.stats()
            page.state([model], {})
            assert list(pipe.stats()["probes"]) == ["RecentBatches"]
            clock.now += 4
            page.expire()
            assert "probes" in pipe.stats()  # a browser asked four seconds ago
            running = asyncio.all_tasks()
            replay = Replay("/run/m", b"", (), b"x")
            page.load.run(lambda *_: asyncio.sleep(3600), replay, 3)
            assert len(asyncio.all_tasks() - running) == 3
            clock.now += 2
            page.expire()
            assert "probes" not in pipe.stats()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == running
            page.state([], {})  # the model is gone
            await page.end()

    asyncio.run(work())


def test_a_quarter_of_a_second_of_a_load_test_is_summed_up():
    clock, over, sent = Clock(), asyncio.Event(), []

    async def application(scope, receive, send):
        if len(sent) == 20:
            over.set()
            await asyncio.Event().wait()
        sent.append((await receive())["body"])
        clock.now += 0.02
        await send({"type": "http.response.start", "status": 200})

    async def work():
        load = LoadTest(clock)
        load.run(application, Replay("/run/m", b"", (), b"again"), 1)
        await over.wait()
        found = load.state(0)["buckets"]
        await load.end()
        return found

    found = asyncio.run(work())
    assert sent == [b"again"] * 20
    # The first answer begins a bucket, the thirteenth after it is the first that comes 250 ms later.
    assert [one["requests"] for one in found] == [13]
    assert found[0]["p50"] == found[0]["most"] == pytest.approx(20)


def test_more_batches_than_the_page_can_show_are_not_heard_of_until_it_asks_again():
    async def work():
        page = LivePage()
        with headrace.pipe({"backend": "Identity"}) as pipe:
            model = Served(pipe)
            page.state([model], {})
            for _ in range(400):
                await asyncio.to_thread(pipe, {"data": 1})
            while "probes" in pipe.stats():
                await asyncio.sleep(0)
            pipe({"data": 1})
            (shown,) = page.state([model], {})["models"]
            assert [one[0] for one in shown["batches"]] == list(range(1, 401))
            assert shown["missed"]
            pipe({"data": 1})
            (shown,) = page.state([model], {"batches.m:1": 400})["models"]
            assert len(shown["batches"]) == 1
            assert not shown["missed"]
            await page.end()

    asyncio.run(work())


def test_what_leads_to_the_page_leads_there_below_any_path(serving):
    server = serving({"m": PICKY}, ui=True)
    for path in ("/", "/ui/"):
        answer = httpx.get(f"{server.url}{path}", follow_redirects=True)
        assert (answer.url, answer.status_code) == (f"{server.url}/ui", 200)
        # Behind a proxy that serves this server below /live/, the browser stays below it.
        place = httpx.get(f"{server.url}{path}").headers["location"]
        assert str(httpx.URL(f"http://proxy/live{path}").join(place)) == "http://proxy/live/ui"
    for path in ("/", "/ui/"):
        assert httpx.get(f"{serving({'m': PICKY}).url}{path}").status_code == 404


@pytest.mark.parametrize("installed", [True, False])
def test_metrics_are_offered_where_they_can_be_had(installed, serving, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: (
            (object() if installed else None)
            if name == "prometheus_client"
            else find_spec(name, *more)
        ),
    )
    server = serving({"m": PICKY}, ui=True)
    assert httpx.get(f"{server.url}/ui/models.json").json()["metrics"] is installed


@pytest.fixture
def folder(tmp_path):
    """A folder with examples, and what must not be offered."""
    (tmp_path / "secret.png").write_bytes(b"pixels of another folder")
    made = tmp_path / "examples"
    (made / "inner").mkdir(parents=True)
    (made / "inner" / "deep.png").write_bytes(b"pixels below")
    (made / "a page.png").write_bytes(b"pixels")
    (made / "line.TXT").write_text("Zürich", encoding="utf-8")
    for name in ("code.py", ".hidden.png", "page.svg", "page.html"):
        (made / name).write_text("x")
    (made / "empty.png").touch()
    (made / "large.png").write_bytes(bytes((4 << 20) + 1))
    (made / "folder.png").mkdir()
    (made / "link.png").symlink_to(tmp_path / "secret.png")
    return made


def test_the_page_offers_the_pictures_and_texts_of_a_folder_and_nothing_else(serving, folder):
    server = serving({"m": PICKY}, ui=True, examples=folder)
    assert httpx.get(f"{server.url}/ui/models.json").json()["examples"] == [
        {"name": "a page.png", "type": "image/png", "size_bytes": 6},
        {"name": "line.TXT", "type": "text/plain; charset=utf-8", "size_bytes": 7},
    ]
    picture = httpx.get(f"{server.url}/ui/examples/a%20page.png")
    assert (picture.content, picture.headers["content-type"]) == (b"pixels", "image/png")
    assert "default-src 'none'" in picture.headers["content-security-policy"]
    assert picture.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(f"{server.url}/ui/examples/line.TXT").text == "Zürich"
    refused = {one.name for one in folder.iterdir()} - {"a page.png", "line.TXT"}
    outside = [
        "..%2fsecret.png",
        "..%2Fexamples%2Fa%20page.png",
        "inner%2fdeep.png",
        "%2e%2e",
        "%00",
    ]
    outside += [str(folder / "a page.png").replace("/", "%2f").replace(" ", "%20")]
    assert len(refused) == 9
    for name in [*refused, *outside]:
        status, _, body = raw(server, "GET", f"/ui/examples/{name}", "localhost")
        assert (status, "pixels" in body) == (404, False), name
    assert raw(server, "GET", "/ui/examples/line.TXT", "evil.example")[0] == 403


def test_the_page_offers_at_most_24_examples_and_those_that_are_there_now(serving, tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02}.png").write_bytes(b"x")
    server = serving({"m": PICKY}, ui=True, examples=tmp_path)

    def names():
        return [one["name"] for one in httpx.get(f"{server.url}/ui/models.json").json()["examples"]]

    assert names() == [f"{number:02}.png" for number in range(24)]
    assert httpx.get(f"{server.url}/ui/examples/29.png").status_code == 404
    for number in range(29):
        (tmp_path / f"{number:02}.png").unlink()
    assert names() == ["29.png"]


def test_with_keys_examples_need_one(serving, tmp_path, folder):
    (tmp_path / "keys.toml").write_text(KEYS)
    server = serving({"m": PICKY}, ui=True, keys=tmp_path / "keys.toml", examples=folder)
    assert httpx.get(f"{server.url}/ui/examples/line.TXT").status_code == 401
    key = {"authorization": "Bearer key"}
    assert httpx.get(f"{server.url}/ui/examples/line.TXT", headers=key).status_code == 200


def test_a_folder_that_offers_nothing_is_an_error_before_a_model_is_built(tmp_path):
    broken = {"m": {"backend": "NoSuchBackend"}}
    with pytest.raises(ConfigError, match="folder of examples 'gone' is not there"):
        Server(broken, port=0, ui=True, examples="gone")
    (tmp_path / "code.py").touch()
    with pytest.raises(ConfigError, match=r"has no example\n.*\.png.*4 MiB"):
        Server(broken, port=0, ui=True, examples=tmp_path)
    (tmp_path / "page.png").write_bytes(b"x")
    with pytest.raises(ConfigError, match="examples need the live page"):
        Server(broken, port=0, examples=tmp_path)


def test_the_state_says_which_node_is_the_limit(serving, gate):
    server = serving({"m": {"backend": "ServeGate"}}, ui=True)
    url = f"{server.url}/run/m"
    with ThreadPoolExecutor(4) as threads:
        try:
            answers = [threads.submit(httpx.post, url, content=b"x") for _ in range(4)]
            found = until(lambda: (now := state(server)["models"][0]["limit"])["node"] and now)
        finally:
            gate.open.set()
        assert all(one.result().status_code == 200 for one in answers)
    assert found["node"] == "main"
    assert "main is the limit: its instance is busy for 100 % of the time, and" in found["text"]
    until(lambda: state(server)["models"][0]["limit"]["text"] == "Nothing waits: no requests come.")


READ = {"name": "read", "most": 8, "batching_timeout_ms": 0}
TEXT = {"name": "text", "most": 8, "batching_timeout_ms": 0}


def told(*, processors=2, used=0.5, crowded=False, read=READ, advice=None, **figures):
    """What is said of two nodes that were looked at each second for four; figures are those of `read`.

    It has two instances, which were ``busy`` for this share of the time, ``waiting`` requests at each moment, and made
    batches of ``batch``; `text` has done little.
    """
    given = {"busy": 0.0, "waiting": 0, "batch": 1, "came": 40, "ends": 10} | figures

    def node(at, busy, waiting, batch, came, ends):
        instance = {"busy": busy > 0.5, "busy_s": busy * at, "batches": ends * at}
        return {
            "waiting": waiting,
            "submitted": came * at,
            "instances": [instance, instance],
            "advice": advice,
            "batch_size": {"histogram": {str(batch): ends * at}}
            if ends * at
            else {"histogram": {}},
        }

    def sample(at):
        little = node(at, 0.05, 0, 1, given["came"], 10)
        return Sample(100.0 + at, {"read": node(at, **given), "text": little}, 7.0 + used * at)

    return limit_of([sample(at) for at in range(5)], [read, TEXT], processors, crowded=crowded)


def test_a_node_whose_instances_are_busy_while_requests_wait_is_the_limit():
    assert told(busy=0.97, waiting=14, batch=8) == (
        "read",
        (
            "read is the limit: its 2 instances are busy for 97 % of the time, and 14 requests wait. Its batches are full, 8 of 8."
            " Raise max or instance_num: this process uses 0.5 of 2 processors."
        ),
    )
    assert "wait. Raise instance_num: this" in told(busy=0.97, waiting=14, batch=3).text
    alone = told(busy=0.97, waiting=14, read=READ | {"most": 1})
    assert "Raise instance_num, or max if its backend gains by larger batches:" in alone.text
    unbounded = told(busy=0.97, waiting=14, batch=64, read=READ | {"most": None})
    assert "wait. Raise instance_num: this" in unbounded.text


def test_what_was_measured_takes_the_place_of_a_guess():
    advice = "callers waited 92 % of the time"
    text = told(busy=0.97, waiting=14, batch=3, advice=advice).text
    assert text.endswith("14 requests wait. Callers waited 92 % of the time.")
    assert text.count("92 %") == 1
    full = told(busy=0.97, waiting=14, used=2.0, advice=advice).text
    assert "More processors" in full
    assert "92 %" not in full
    assert "92 %" not in told(busy=0.4, advice=advice).text


def test_more_instances_are_not_advised_where_all_processors_are_used():
    node, text = told(busy=0.97, waiting=14, used=2.0)
    assert node == "read"
    assert "Raise" not in text
    assert "More processors or a smaller model would lift it" in text
    assert "this process uses 2.0 of 2 processors" in text
    others = told(busy=0.97, waiting=14, crowded=True).text
    assert others.endswith("uses 0.5 of 2 processors, which other programs use too.")
    assert "other programs" not in told(busy=0.97, waiting=14, used=2.0, crowded=True).text
    assert told(busy=0.5, used=1.95).node is None
    assert told(busy=0.5, used=1.95).text.startswith("The processors are the limit")


def test_a_node_that_is_not_both_busy_and_waited_for_is_not_the_limit():
    assert told(busy=0.4) == (
        None,
        (
            "The clients are the limit: nothing waits, and the busiest node, read, is busy for 40 % of the time."
            " More clients would get more answers."
        ),
    )
    assert told(busy=0.95).node is None
    assert "read is about to be the limit" in told(busy=0.95).text
    bursts = told(busy=0.4, waiting=9)
    assert bursts.node is None
    assert "9 requests wait at read, though its 2 instances are busy for only 40 %" in bursts.text
    patient = READ | {"batching_timeout_ms": 20}
    assert "lower batching_timeout" in told(busy=0.4, waiting=9, batch=3, read=patient).text
    assert "lower batching_timeout" not in told(busy=0.4, waiting=9, batch=8, read=patient).text


def test_a_batch_that_has_run_all_the_time_makes_its_instance_busy():
    # Seconds are counted when a batch ends. Here none has ended, in nodes that have had four seconds.
    moments = []
    for at in range(5):
        instance = {"busy": True, "busy_s": 0.0, "batches": 1}
        node = {
            "waiting": 3,
            "submitted": 4,
            "instances": [instance],
            "batch_size": {"histogram": {}},
        }
        moments.append(Sample(float(at), {"read": node}, 0.0))
    assert "its instance is busy for 100 % of the time" in limit_of(moments, [READ], 2).text


def moments(*instances):
    """Samples of a node at 0, 1, 2, ... seconds, each from (busy, batches, busy_s) of its instances."""
    found = []
    for at, each in enumerate(instances):
        node = {
            "waiting": 0,
            "submitted": at,
            "instances": [
                dict(zip(("busy", "batches", "busy_s"), one, strict=True)) for one in each
            ],
            "batch_size": {"histogram": {}},
        }
        found.append(Sample(float(at), {"read": node}, 0.0))
    return found


def test_a_batch_that_runs_is_told_with_the_moment_when_it_had_begun():
    idle, runs = (False, 3, 9.0), (True, 4, 9.0)
    assert running_of(moments([idle, runs], [runs, runs], [runs, idle], [runs, runs])) == [
        ("read", 0, 1.0)
    ]
    # Batch after batch: which of them runs is not known for longer than the last sample.
    assert running_of(moments([(True, 4, 1.0)], [(True, 9, 2.0)])) == []
    assert running_of(moments([runs])) == []
    assert running_of(moments([], [runs], [runs])) == [("read", 0, 1.0)]  # an instance that is new


def test_the_seconds_of_a_batch_that_runs_count_as_busy():
    # Of four seconds one has been counted, and a batch has run for two.
    told = limit_of(
        moments([(False, 3, 9.0)], [(False, 4, 10.0)], *[[(True, 5, 10.0)]] * 3), [READ], 2
    )
    assert "the busiest node, read, is busy for 75 % of the time" in told.text
    # The page has begun to look in the midst of a batch that has ended since: it ran no longer than there was time.
    ended = moments([(True, 5, 0.0)], [(False, 5, 60.0)], [(True, 6, 60.0)])
    assert "busy for 100 %" in limit_of(ended, [READ], 2).text


def test_the_state_tells_of_a_batch_while_it_runs(gate):
    clock = Clock()

    async def work():
        page, backend = LivePage(clock), {"backend": "ServeGate"}
        with headrace.pipe(backend) as pipe:
            model = Served(pipe)
            answer = pipe.submit({"data": b"x"})
            await asyncio.to_thread(gate.entered.wait)
            for running in ([], [["main", 0, 1000.0]], [["main", 0, 1000.0]]):
                (shown,) = page.state([model], {})["models"]
                assert json.loads(json.dumps(shown["running"])) == running
                clock.now += 1
            gate.open.set()
            await asyncio.to_thread(answer.result)
            (shown,) = page.state([model], {})["models"]
            assert shown["running"] == []
            await page.end()

    asyncio.run(work())


def test_nothing_is_the_limit_where_nothing_runs_and_of_one_moment_nothing_is_said():
    assert told(came=0, ends=0) == (None, "Nothing waits: no requests come.")
    nodes = {
        "read": {"waiting": 9, "submitted": 9, "instances": [], "batch_size": {"histogram": {}}}
    }
    assert limit_of([Sample(1.0, nodes, 0.0)], [READ], 2) == (None, "")
