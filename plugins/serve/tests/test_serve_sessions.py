"""Sessions of `StateFul` over the server: whose they are, how many each client has, who begins one, and in which process."""

from __future__ import annotations

import hashlib
import queue
import re
import shutil
import socket
import subprocess
import sys

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from pages import Page
from tritonclient.utils import InferenceServerException

import headrace
from headrace.errors import ConfigError
from headrace_serve.operating.settings import Settings

WAIT_S = 60.0
KEYS = {name: f"{name}-key-{name}-key-{name}-key-1234567890" for name in ("alice", "bob")}
STARTED = "must specify the START flag on the first request of the sequence"
"""What Triton says of a sequence that has not begun."""

HAPROXY = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")


@headrace.register("ServeSaid")
class Said(headrace.Backend):
    """Answers with all that its session has said, text by text."""

    reads = ("data",)

    def forward(self, batch):
        for request in batch:
            request["result"] = request.get("before", request["data"][:0]) + request["data"]


STATEFUL = {"backend": "StateFul(session)[ServeSaid]", "keep": {"result": "before"}, "max": 8}


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys.toml"
    hashes = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    file.write_text("".join(f'[{name}]\nsha256 = "{one}"\n' for name, one in hashes.items()))
    return file


def headers(name):
    return {"Authorization": f"Bearer {KEYS[name]}"} if name else {}


def infer(server, client, text, model="said", **sequence):
    """Send a text over REST; return the answer, or status and error."""
    tensor = {"name": "data", "datatype": "BYTES", "shape": [1], "data": [text]}
    body = {"inputs": [tensor], "parameters": sequence}
    url = f"{server.url}/v2/models/{model}/infer"
    found = httpx.post(url, json=body, headers=headers(client))
    if found.status_code != 200:
        return found.status_code, found.json()["error"]
    return found.json()["outputs"][0]["data"][0]


def generate(server, client, text, route="generate", **sequence):
    url = f"{server.url}/v2/models/said/{route}"
    found = httpx.post(url, json={"data": text, **sequence}, headers=headers(client))
    if route == "generate":
        if found.status_code != 200:
            return found.status_code, found.json()["error"]
        return found.json()["result"]
    event = found.text.removeprefix("data: ")
    return found.status_code, event


def plain(server, client, text, model="said", **query):
    """Send a text as a file; return the answer, or status and error."""
    url = f"{server.url}/run/{model}"
    found = httpx.post(url, content=text, params=query, headers=headers(client))
    if found.status_code != 200:
        return found.status_code, found.json()["error"]
    return found.text


def tensors(text):
    made = triton.InferInput("data", [1], "BYTES")
    made.set_data_from_numpy(np.array([text.encode()], object))
    return [made]


def call(server, client, text, model="said", **sequence):
    """Send a text by a call of gRPC."""
    sent = {"authorization": headers(client)["Authorization"]} if client else None
    with triton.InferenceServerClient(server.grpc_url.partition("://")[2]) as made:
        answer = made.infer(model, tensors(text), headers=sent, **sequence)
        return answer.as_numpy("result")[0].decode()


def stream(server, client, *steps):
    """Send texts over one stream of gRPC without waiting; return the answers, or their errors."""
    answers = queue.Queue()
    sent = {"authorization": headers(client)["Authorization"]} if client else None
    with triton.InferenceServerClient(server.grpc_url.partition("://")[2]) as made:
        made.start_stream(lambda result, error: answers.put((result, error)), headers=sent)
        for text, sequence in steps:
            made.async_stream_infer("said", tensors(text), **sequence)
        found = [answers.get(timeout=WAIT_S) for _ in steps]
    return [
        str(error.message()) if error else result.as_numpy("result")[0].decode()
        for result, error in found
    ]


def test_the_session_of_one_client_is_none_of_another(serving, keys):
    server = serving({"said": STATEFUL}, grpc_port=0, keys=keys)
    assert infer(server, "alice", "secret", sequence_id=7, sequence_start=True) == "secret"
    assert call(server, "alice", "A", sequence_id="seven", sequence_start=True) == "A"
    assert plain(server, "alice", b"file", session="seven") == "Afile"

    status, text = infer(server, "bob", "b", sequence_id=7)
    assert (status, STARTED in text) == (400, True)
    assert infer(server, "bob", "b", sequence_id=7, sequence_start=True) == "b"
    assert call(server, "bob", "b", sequence_id=7) == "bb"
    edges = ("b", {"sequence_id": "seven", "sequence_start": True, "sequence_end": True})
    assert stream(server, "bob", edges, ("b", {"sequence_id": 7})) == ["b", "bbb"]
    assert plain(server, "bob", b"b", session="seven") == "b"
    assert generate(server, "bob", "b", sequence_id=7, sequence_end=True) == "bbbb"

    assert infer(server, "alice", "2", sequence_id=7) == "secret2"
    assert call(server, "alice", "2", sequence_id="seven") == "Afile2"


def test_each_key_has_its_share_of_the_states(serving, keys):
    server = serving({"said": {**STATEFUL, "states": 5}}, keys=keys)
    found = [infer(server, "bob", "b", sequence_id=i, sequence_start=True) for i in range(1, 5)]
    assert found[:2] == ["b", "b"]
    assert [status for status, _ in found[2:]] == [429, 429]
    assert "2 sessions of this client are kept" in found[2][1]
    for name in ("x", "y"):
        assert plain(server, "alice", b"a", session=name) == "a"
    assert plain(server, "alice", b"a", session="z")[0] == 429
    assert infer(server, "bob", "b", sequence_id=1, sequence_end=True) == "bb"
    assert infer(server, "bob", "b", sequence_id=3, sequence_start=True) == "b"


def test_with_more_keys_than_states_each_key_has_one(serving, keys):
    server = serving({"said": {**STATEFUL, "states": 1}}, keys=keys)
    for name in KEYS:
        assert infer(server, name, "1", sequence_id=1, sequence_start=True) == "1"
        assert infer(server, name, "2", sequence_id=2, sequence_start=True)[0] == 429


def test_after_a_reload_of_the_keys_sessions_go_on_and_shares_are_those_of_now(serving, keys):
    with headrace.pipe({**STATEFUL, "states": 6}) as pipe:  # a reload leaves it as it is
        server = serving({"said": pipe}, keys=keys)
        for i in (1, 2, 3):
            assert infer(server, "bob", "b", sequence_id=i, sequence_start=True) == "b"
        more = hashlib.sha256(b"a third client with a key of its own").hexdigest()
        keys.write_text(keys.read_text() + f'[carol]\nsha256 = "{more}"\n')
        server.reload(keys=keys)
        for i in (1, 2, 3):
            assert infer(server, "bob", "b", sequence_id=i) == "bb"
        assert infer(server, "alice", "a", sequence_id=1)[0] == 400
        for i in (1, 2):
            assert infer(server, "bob", "b", sequence_id=4, sequence_start=True)[0] == 429
            assert infer(server, "bob", "b", sequence_id=i, sequence_end=True) == "bbb"
        assert infer(server, "bob", "b", sequence_id=4, sequence_start=True) == "b"
        server.close(timeout=5.0)


def test_a_model_that_is_built_anew_begins_without_sessions(serving):
    server = serving({"said": STATEFUL})
    assert infer(server, None, "a", sequence_id=1, sequence_start=True) == "a"
    server.reload()  # which leaves alone what has not changed
    assert infer(server, None, "a", sequence_id=1) == "aa"
    server.reload({"said": {**STATEFUL, "queue_size": 9}})
    status, text = infer(server, None, "a", sequence_id=1)
    assert (status, STARTED in text) == (400, True)
    assert plain(server, None, b"a", session="1") == "a"


def test_two_models_have_sessions_of_their_own(serving):
    server = serving({"said": STATEFUL, "other": STATEFUL}, grpc_port=0)
    assert infer(server, None, "a", sequence_id=1, sequence_start=True) == "a"
    assert infer(server, None, "b", model="other", sequence_id=1)[0] == 400
    assert call(server, None, "b", model="other", sequence_id=1, sequence_start=True) == "b"
    assert infer(server, None, "a", sequence_id=1, sequence_end=True) == "aa"
    assert infer(server, None, "b", model="other", sequence_id=1) == "bb"


def test_over_the_routes_of_triton_a_client_begins_a_session_as_there(serving):
    server = serving({"said": STATEFUL}, grpc_port=0)
    for name in (5, "five"):
        assert infer(server, None, "a", sequence_id=name)[0] == 400
        assert STARTED in generate(server, None, "a", sequence_id=name)[1]
        assert STARTED in generate(server, None, "a", "generate_stream", sequence_id=name)[1]
        with pytest.raises(InferenceServerException, match=STARTED) as caught:
            call(server, None, "a", sequence_id=name)
        assert "INVALID_ARGUMENT" in caught.value.status()
        steps = [
            ("a", {"sequence_id": name}),
            ("b", {"sequence_id": name, "sequence_start": True}),
            ("c", {"sequence_id": name}),
            ("d", {"sequence_id": name, "sequence_end": True}),
            ("e", {"sequence_id": name}),
        ]
        before, *said, behind = stream(server, None, *steps)
        assert said == ["b", "bc", "bcd"]
        assert STARTED in before
        assert STARTED in behind
    assert infer(server, None, "a", sequence_id=0)[0] == 400
    assert plain(server, None, b"a", session="five") == "a"


@pytest.mark.parametrize(("start", "status"), [("begin", 200), ("required", 400)])
def test_the_option_says_it_for_every_route(serving, start, status):
    server = serving({"said": {**STATEFUL, "start": start}}, grpc_port=0)
    answers = {
        "infer": infer(server, None, "a", sequence_id=1),
        "generate": generate(server, None, "a", sequence_id=2),
        "run": plain(server, None, b"a", session="3"),
        "stream": stream(server, None, ("a", {"sequence_id": 4}))[0],
    }
    if status == 200:
        assert set(answers.values()) == {"a"}
    else:
        assert [STARTED in str(one) for one in answers.values()] == [True] * 4
        assert plain(server, None, b"a", session="3", sequence_start="1") == "a"


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        *(("true", True), ("True", True), ("TRUE", True), ("1", True)),
        *(("false", False), ("False", False), ("fALSE", False), ("0", False)),
        *(
            (text, None)
            for text in ("", "yes", "no", "2", "-1", "00", "1.0", " true", "none", "null")
        ),
    ],
)
def test_a_flag_in_a_query_is_true_or_false(serving, text, starts):
    server = serving({"said": STATEFUL})
    assert plain(server, None, b"a", session="s") == "a"
    found = plain(server, None, b"b", session="s", sequence_start=text)
    ended = plain(server, None, b"c", session="s", sequence_end=text)
    after = plain(server, None, b"d", session="s")
    if starts is None:
        assert (found[0], ended[0], after) == (400, 400, "ad")
        assert "true, false, 1 or 0" in found[1]
    else:
        assert (found, ended) == (("b", "bc") if starts else ("ab", "abc"))
        assert after == ("d" if starts else "abcd")


def test_a_body_of_json_tells_sessions_apart(serving):
    fields = {"data": "str", "session": "any", "sequence_start": "any"}
    model = {
        "config": STATEFUL,
        "request": {k: {"type": t, "required": k == "data"} for k, t in fields.items()},
    }
    server = serving({"said": model})

    def ask(**given):
        return httpx.post(f"{server.url}/run/said", json={"data": "a", **given})

    for name in (1, True, "1", "true", False, 0, ""):
        assert ask(session=name).json() == {"result": "a"}
    assert ask(session=1.0).json() == {"result": "aa"}  # JSON has one kind of number
    assert ask(session="1", sequence_start="FALSE").json() == {"result": "aa"}
    for wrong in (None, [1], {"a": 1}):
        found = ask(session=wrong)
        assert (found.status_code, "session" in found.json()["error"]) == (400, True)
    assert ask(session=1, sequence_start="maybe").status_code == 400
    assert ask(session=1, context={"client": "x"}).status_code == 422


TOTAL = """
import headrace
class Total(headrace.Backend):
    reads = ("data",)
    def forward(self, batch):
        for request in batch:
            request["result"] = request.get("before", 0) + 1
headrace.register("TotalOfWorker", Total, replace=True)
"""
STATELESS = 'backend = "Identity"\n'
IN_A_NODE = 'backend = "StateFul(session)[TotalOfWorker]"\nkeep = { result = "before" }\n'
WITH_STATE = {
    "alone": IN_A_NODE,
    "behind a map": f"""
[first]
backend = "Identity"
next = ["second"]
[second]
{IN_A_NODE}
map = {{ first = {{ session = "session", result = "data" }} }}
""",
    "with a thread": IN_A_NODE.replace('"StateFul', '"BackgroundThread[StateFul').replace(
        ']"', ']]"'
    ),
    "called": '[entry]\nbackend = "Forward[node.kept]"\n' + f"[kept]\n{IN_A_NODE}",
}


@pytest.fixture
def written(tmp_path):
    (tmp_path / "total.py").write_text(TOTAL)

    def write(text, name="m.toml"):
        (tmp_path / name).write_text(f'import = ["total.py"]\n{text}')
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("how", WITH_STATE)
def test_several_workers_serve_no_state(written, how):
    path = written(WITH_STATE[how])
    headrace.PipelineConfig.load(path)  # alone it is right
    with pytest.raises(ConfigError, match="StateFul keeps a state in its process") as caught:
        Settings(models=(written(STATELESS, "other.toml"), path), port=0, processes=2).check()
    assert "proxy" in str(caught.value)
    Settings(models=(written(STATELESS),), port=0, processes=2).check()


@pytest.mark.skipif(sys.platform != "linux", reason="processes share a port on Linux")
def test_a_worker_takes_no_state_later_either(serving, written):
    path = written(STATELESS)
    server = serving({"m": path}, worker=1, allow=["repository"], debug_errors=True)

    def load():
        return httpx.post(f"{server.url}/v2/repository/models/m/load", json={})

    assert load().status_code == 200
    written(IN_A_NODE)
    refused = load()
    assert (refused.status_code, "StateFul keeps a state" in refused.text) == (500, True)
    with pytest.raises(ConfigError, match="StateFul keeps a state"):
        server.reload()
    assert plain(server, None, b"as before", model="m") == "as before"


@pytest.mark.skipif(sys.platform != "linux", reason="processes share a port on Linux")
def test_a_worker_takes_no_pipeline_with_a_state(serving):
    with (
        headrace.pipe(STATEFUL) as pipe,
        pytest.raises(ConfigError, match="StateFul keeps a state"),
    ):
        serving({"m": pipe}, worker=1)


@pytest.mark.skipif(not HAPROXY, reason="needs HAProxy (apt-get install haproxy)")
def test_the_proxy_of_the_page_sends_each_session_to_one_server(serving, tmp_path):
    servers = [serving({"said": STATEFUL}, grpc_port=0) for _ in range(2)]
    ports = {}
    for first, server in zip((8010, 8020), servers, strict=True):
        ports |= {first: server.port, first + 1: server.grpc_port}
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        ports |= {8000: one.getsockname()[1], 8001: other.getsockname()[1]}
    text = Page("docs/streams.md").files["haproxy.cfg"]
    configuration = tmp_path / "haproxy.cfg"
    configuration.write_text(
        re.sub(r"\b80[0-2][01]\b", lambda port: str(ports[int(port[0])]), text)
    )
    done = subprocess.run([HAPROXY, "-c", "-f", configuration], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    proxy = subprocess.Popen([HAPROXY, "-db", "-f", configuration], stderr=subprocess.DEVNULL)
    try:
        transport = httpx.HTTPTransport(retries=8)
        with httpx.Client(
            base_url=f"http://127.0.0.1:{ports[8000]}", transport=transport
        ) as client:
            assert client.get("/v2/health/ready").status_code == 200
            for step in range(1, 5):
                for name in map(str, range(12)):
                    sent = {"X-Session": name}
                    query = {"session": name}
                    answer = client.post("/run/said", content=b"a", params=query, headers=sent)
                    assert answer.content == b"a" * step
        with triton.InferenceServerClient(f"127.0.0.1:{ports[8001]}") as client:
            for name in map(str, range(12)):
                marks = {"sequence_id": name, "sequence_end": True, "headers": {"x-session": name}}
                answer = client.infer("said", tensors("b"), **marks)
                assert answer.as_numpy("result")[0] == b"aaaab"
    finally:
        proxy.kill()
        proxy.wait()
    stats = [httpx.get(f"{one.url}/v2/models/said/stats").json() for one in servers]
    counts = [one["model_stats"][0]["inference_count"] for one in stats]
    assert sum(counts) == 12 * 5
    assert all(count and count % 5 == 0 for count in counts)
