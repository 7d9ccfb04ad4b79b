"""Exchanges behind a server: a changed model proves itself by its answers, and no client is harmed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading

import httpx
import numpy as np
import pytest
from serve_helpers import refused, until

import headrace
from headrace_models import Exchange, Models
from headrace_serve.admission.clients import client_digest

over_grpc = pytest.importorskip("tritonclient.grpc")
onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("headrace_ort")

FEATURES, CLASSES, CLIENTS = 8, 5, 8
FAILS = 20
"""Each so many requests have an input that one of the models fails."""

COMPARED = 400
"""So many requests decide."""


def network(path, *, swap=(), half=False, normalised=True, fails=False):
    """Write a classifier of x [N, 8] with the outputs ``scores`` [N, 5] and ``label`` [N].

    Args:
        path: The file.
        swap: Two classes that change places.
        half: Whether it computes in halves.
        normalised: Whether it normalises its input.
        fails: Whether it fails where the first feature is above 100.
    """
    h, npy, kinds = onnx.helper, onnx.numpy_helper, onnx.TensorProto
    drawn = np.random.default_rng(0)
    weights = drawn.normal(size=(FEATURES, CLASSES)).astype(np.float32)
    if swap:
        weights[:, list(swap)] = weights[:, list(swap)[::-1]]
    kind = np.float16 if half else np.float32
    made = {"w": weights.astype(kind), "mean": np.full(FEATURES, 2, kind), "axis": np.array([1])}
    nodes = [h.make_node("Cast", ["x"], ["cast"], to=kinds.FLOAT16 if half else kinds.FLOAT)]
    nodes.append(
        h.make_node(
            "Sub" if normalised else "Identity", ["cast", "mean"][: 1 + normalised], ["normal"]
        )
    )
    nodes.append(h.make_node("MatMul", ["normal", "w"], ["logits"]))
    nodes.append(h.make_node("Softmax", ["logits"], ["soft"], axis=1))
    nodes.append(h.make_node("Cast", ["soft"], ["plain"], to=kinds.FLOAT))
    last = "plain"
    if fails:  # the index of a row that there is not
        made |= {"limit": np.array(100, np.float32), "row": np.zeros((1, CLASSES), np.float32)}
        nodes.append(h.make_node("ReduceMax", ["x"], ["top"], keepdims=0))
        nodes.append(h.make_node("Greater", ["top", "limit"], ["above"]))
        nodes.append(h.make_node("Cast", ["above"], ["index"], to=kinds.INT64))
        nodes.append(h.make_node("Gather", ["row", "index"], ["none"], axis=0))
        nodes.append(h.make_node("Add", [last, "none"], ["checked"]))
        last = "checked"
    nodes.append(h.make_node("Identity", [last], ["scores"]))
    nodes.append(h.make_node("ArgMax", [last], ["label"], axis=1, keepdims=0))
    graph = h.make_graph(
        nodes,
        "classifier",
        [h.make_tensor_value_info("x", kinds.FLOAT, ["N", FEATURES])],
        [
            h.make_tensor_value_info("scores", kinds.FLOAT, ["N", CLASSES]),
            h.make_tensor_value_info("label", kinds.INT64, ["N"]),
        ],
        [npy.from_array(one, name) for name, one in made.items()],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


def inputs():
    """Give inputs, each `FAILS`-th of which one model fails."""
    drawn = np.random.default_rng(1)
    for number in itertools.count(1):
        x = drawn.normal(2, 1, size=(1, FEATURES)).astype(np.float32)
        if number % FAILS == 0:
            x[0, 0] = 101
        yield x


class Clients:
    """Eight clients that ask until they are told to stop, and keep what they were answered."""

    def __init__(self, url):
        self._url, self._inputs, self._lock = url, inputs(), threading.Lock()
        self.answers, self.lost, self._over = [], [], threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def _ask(self):
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._over.is_set():
                with self._lock:
                    x = next(self._inputs)
                one = {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": [*x.shape],
                    "data": x.ravel().tolist(),
                }
                got = client.post("/v2/models/m/infer", json={"inputs": [one]})
                if got.status_code != 200:
                    self.lost.append(got.text)
                    continue
                outputs = {each["name"]: each["data"] for each in got.json()["outputs"]}
                self.answers.append((x, outputs["scores"], outputs["label"]))

    def __enter__(self):
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for one in self._threads:
            one.join()


def matches(path, answers, rtol=1e-5):
    """Return for each answer whether it is that of the model of a file, by onnxruntime itself."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = []
    for x, scores, label in answers:
        expected = session.run(None, {"x": x})
        near = np.allclose(scores, expected[0].ravel(), rtol=rtol, atol=1e-6)
        found.append(near and label == expected[1].tolist())
    return found


def write(folder, file):
    (folder / "m.toml").write_text(
        f'backend = "OnnxTensor"\nmodel = "{folder / file}"\nmax = 8\ninstance_num = 2\n'
    )


def told(server):
    return httpx.get(f"{server.url}/ui/state.json").json()["exchanges"].get("m")


def exchanged(server):
    """Wait for the end of an exchange, and return what is told of it."""
    until(lambda: (told(server) or {}).get("outcome"))
    return told(server)


def act(server, what, body=None):
    return httpx.post(f"{server.url}/v2/repository/models/m/{what}", json=body or {}, timeout=60)


@pytest.fixture
def served(serving, tmp_path):
    """Serve the classifier with an exchange."""

    def start(**how):
        network(tmp_path / "old.onnx")
        write(tmp_path, "old.onnx")
        exchange = {"share": 1.0, "requests": COMPARED, "slower": 1e9, **how}
        models = {"m": {"config": str(tmp_path / "m.toml"), "exchange": exchange}}
        return serving(models, allow=["repository"], ui=True)

    return start


CASES = {
    "swapped": ({"swap": (0, 1)}, {}, "failed", "rows differ"),
    "half": ({"half": True}, {"rtol": {"scores": 0.02}, "atol": 1e-3}, "passed", ""),
    "half, beyond": ({"half": True}, {"rtol": 1e-6, "atol": 1e-9}, "failed", "rows differ"),
    "not normalised": ({"normalised": False}, {}, "failed", "rows differ"),
    "fails": ({"fails": True}, {}, "failed", "it fails 1 of"),
    "equal": ({}, {}, "passed", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_each_model_gets_the_verdict_that_it_deserves(served, tmp_path, case):
    change, how, outcome, reason = CASES[case]
    server = served(**how)
    network(tmp_path / "new.onnx", **change)
    with Clients(server.url) as clients:
        until(lambda: clients.answers)
        write(tmp_path, "new.onnx")
        act(server, "load").raise_for_status()
        about = exchanged(server)
        during = [*clients.answers]
    assert about["outcome"] == outcome
    assert {*about["not_sampled"]} <= {"no room"}  # where the new model lags behind the clients
    assert reason in about["reason"]
    assert clients.lost == []
    # Clients of a shadow get the old answer, and after the end that of the model that stays.
    shared = 0.02 if outcome == "passed" else 1e-5
    assert all(matches(tmp_path / "old.onnx", during, rtol=shared))
    assert all(matches(tmp_path / "old.onnx", clients.answers, rtol=shared))
    assert len(about["worst"]) == (10 if reason == "rows differ" else 0)


def test_clients_of_a_canary_get_the_new_answer(served, tmp_path):
    server = served(compare="canary")
    network(tmp_path / "new.onnx", swap=(0, 1))
    write(tmp_path, "new.onnx")
    act(server, "load").raise_for_status()
    with Clients(server.url) as clients:
        about = exchanged(server)
    assert (about["outcome"], clients.lost) == ("failed", [])
    new = matches(tmp_path / "new.onnx", clients.answers)
    old = matches(tmp_path / "old.onnx", clients.answers)
    assert sum(new) >= about["requests"]
    assert all(a or b for a, b in zip(new, old, strict=True))


def test_a_canary_that_fails_gives_the_old_answer(served, tmp_path):
    server = served(compare="canary")
    network(tmp_path / "new.onnx", fails=True)
    write(tmp_path, "new.onnx")
    act(server, "load").raise_for_status()
    with Clients(server.url) as clients:
        about = exchanged(server)
    assert (about["outcome"], clients.lost) == ("failed", [])
    assert about["failed"][1] > about["failed"][0] == 0
    assert all(matches(tmp_path / "old.onnx", clients.answers))


def ask(server):
    x = next(inputs())
    one = {"name": "x", "datatype": "FP32", "shape": [1, FEATURES], "data": x.ravel().tolist()}
    return httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": [one]}, timeout=60)


@pytest.mark.parametrize(("action", "outcome"), [("stop", "stopped"), ("take", "taken")])
def test_an_exchange_ends_by_hand(served, tmp_path, action, outcome):
    server = served()
    network(tmp_path / "new.onnx", swap=(0, 1))
    write(tmp_path, "new.onnx")
    server.reload()
    before = ask(server).json()["outputs"]
    assert told(server)["outcome"] == ""
    assert act(server, "exchange", {"action": "halt"}).status_code == 400
    assert act(server, "exchange", {"action": action}).status_code == 200
    assert told(server)["outcome"] == outcome
    assert (ask(server).json()["outputs"] == before) == (action == "stop")
    refusal = act(server, "exchange", {"action": action})
    assert (refusal.status_code, "no exchange" in refusal.text) == (400, True)


def test_it_ends_by_hand_only_where_that_is_allowed(serving, tmp_path):
    server = serving({"m": {"backend": "Identity"}})
    assert act(server, "exchange", {"action": "stop"}).status_code == 403
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[a]\nsha256 = "{hashlib.sha256(b"key").hexdigest()}"\n')
    keyed = serving({"m": {"backend": "Identity"}}, allow=["repository"], keys=keys)
    assert act(keyed, "exchange", {"action": "stop"}).status_code == 401


def test_a_reload_of_the_same_file_begins_none(served, tmp_path):
    server = served()
    server.reload()
    assert told(server) is None
    assert ask(server).status_code == 200
    network(tmp_path / "new.onnx", swap=(0, 1))
    write(tmp_path, "new.onnx")
    server.reload()
    ask(server)
    until(lambda: told(server)["compared"] == 1)
    server.reload()  # the file of the one that is compared
    assert (told(server)["outcome"], told(server)["compared"]) == ("", 1)
    write(tmp_path, "old.onnx")
    server.reload()
    assert told(server)["outcome"] == "stopped"
    assert ask(server).status_code == 200


def test_a_watched_file_begins_one(serving, tmp_path):
    pytest.importorskip("watchfiles")
    file = tmp_path / "m.toml"
    file.write_text('backend = "Call(builtins:bytes.upper)"\n')
    entry = {"config": str(file), "exchange": {"share": 1.0, "requests": 3, "slower": 1e9}}
    server = serving({"m": entry}, watch=True, ui=True)
    file.write_text('backend = "Call(builtins:bytes.title)"\n')
    until(lambda: told(server))
    assert [httpx.post(f"{server.url}/run/m", content=b"ab").content for _ in range(3)] == [
        b"AB"
    ] * 3
    assert exchanged(server)["outcome"] == "failed"


def test_the_statistics_go_on_through_an_exchange(served, tmp_path):
    server = served()
    ask(server)
    network(tmp_path / "new.onnx", swap=(0, 1))
    write(tmp_path, "new.onnx")
    server.reload()
    ask(server)
    act(server, "exchange", {"action": "stop"})
    ask(server)
    found = httpx.get(f"{server.url}/v2/models/m/stats").json()["model_stats"][0]
    assert found["inference_count"] == 3


def test_requests_with_keys_traces_and_times_are_compared(serving, tmp_path, caplog):
    caplog.set_level("INFO")
    caplog.set_level("INFO", "headrace.serve.access")
    keys = tmp_path / "keys.toml"
    keys.write_text(
        f'[a]\nsha256 = "{hashlib.sha256(b"key").hexdigest()}"\nrights = ["infer", "repository"]\n'
    )
    file = tmp_path / "m.toml"
    file.write_text('backend = "Call(builtins:bytes.upper)"\n')
    entry = {"config": str(file), "exchange": {"share": 1.0, "requests": 3, "slower": 1e9}}
    server = serving({"m": entry}, keys=keys, allow=["repository"])
    file.write_text('backend = "Call(builtins:bytes.upper)"\nmax = 4\n')
    server.reload()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"x-api-key": "key", "traceparent": trace}
    for _ in range(3):
        got = httpx.post(f"{server.url}/run/m", content=b"ab", headers=headers)
        assert (got.status_code, got.content) == (200, b"AB")
    until(lambda: "exchange passed (3 of 3" in caplog.text)


def ask_by_grpc(server, key=None):
    with over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        given = over_grpc.InferInput("data", [1, 1], "FP32")
        given.set_data_from_numpy(np.ones((1, 1), np.float32))
        client.infer("m", [given], headers={"x-api-key": key} if key else None)


def ask_by_http(server, key=None, **more):
    one = {"name": "data", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    headers = {"x-api-key": key} if key else {}
    body = {"inputs": [one], **more}
    got = httpx.post(f"{server.url}/v2/models/m/infer", json=body, headers=headers)
    assert got.status_code == 200, got.text


@pytest.fixture
def compared(serving):
    """Serve a model that is compared with itself, by 8 requests."""
    headrace.register("Same", Same, replace=True)
    with contextlib.ExitStack() as stack:

        def start(**how):
            models = stack.enter_context(Models({"m": {"backend": "Same"}}))
            server = serving(models, grpc_port=0, **how)
            exchange = Exchange(share=1.0, requests=8, slower=1e9)
            models.update("m", {"backend": "Same", "max": 2}, exchange=exchange)
            return server, lambda: models.status()["m"]["exchange"], models

        yield start


class Same(headrace.Backend):
    """Give the data back."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]

    def describe(self):
        port = {"dtype": "float32", "shape": [None, 1]}
        return {"inputs": {"data": port}, "outputs": {"data": port}}


def test_a_client_is_its_key_at_both_doors(compared, tmp_path):
    keys = tmp_path / "keys.toml"
    tables = [f'[{key}]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n' for key in "abc"]
    keys.write_text("".join(tables))
    server, told, _ = compared(keys=keys)
    for key in "abc":
        ask_by_http(server, key)
    for number in range(5):  # of eight pairs one client gives at most four
        (ask_by_http if number % 2 else ask_by_grpc)(server, "a")
    until(lambda: told()["compared"] == 6)
    assert (told()["clients"], told()["not_sampled"]) == (3, {"of one client": 2})
    ask_by_grpc(server, "b")
    ask_by_http(server, "c")
    until(lambda: told()["outcome"] == "passed")
    assert told()["clients"] == 3


def test_without_keys_a_client_is_its_address_whatever_it_sends(compared, caplog):
    server, told, models = compared()
    for number in range(3):
        name = str(number)  # other keys of the body are refused
        ask_by_http(server, parameters={"client_digest": name, "context": name})
        ask_by_grpc(server)
    rows = np.ones((1, 1), np.float32)
    models("m", {"data": rows})  # of the program: nothing tells who asks
    models("m", {"data": rows, "context": {"client_digest": "of the program"}})
    until(lambda: told()["outcome"] == "passed")
    assert (told()["clients"], told()["not_sampled"]) == (3, {})
    until(lambda: models.status()["m"]["versions"]["1"]["state"] == "unloaded")
    assert not caplog.records, "the new version serves, which is no warning"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (("", "10.0.0.1:5000"), ("", "10.0.0.1:5001"), True),
        (("", "10.0.0.1:5000"), ("", "ipv4:10.0.0.1:7"), True),
        (("", "10.0.0.1:5000"), ("", "10.0.0.2:5000"), False),
        (("", "10.0.0.1:5000"), ("", "ipv6:[::ffff:10.0.0.1]:7"), True),
        (("", "2001:db8::1:5000"), ("", "ipv6:%5B2001:db8::ffff%5D:7"), True),
        (("", "2001:db8::1:5000"), ("", "2001:db8:0:1::1:5000"), False),
        (("a", "10.0.0.1:5000"), ("a", "10.0.0.2:5000"), True),
        (("a", "10.0.0.1:5000"), ("b", "10.0.0.1:5000"), False),
        (("a", "10.0.0.1:5000"), ("", "10.0.0.1:5000"), False),
        (("", ""), ("", "unix:"), True),
    ],
)
def test_which_requests_are_those_of_one_client(one, other, is_same):
    assert (client_digest(*one) == client_digest(*other)) is is_same


def test_models_of_a_program_are_exchanged_too(serving, tmp_path):
    upper, title = ({"backend": f"Call(builtins:bytes.{name})"} for name in ("upper", "title"))
    with Models({"m": upper}) as models:
        server = serving(models)
        models.update("m", title, exchange=Exchange(share=1.0, requests=10, slower=1e9))
        run = f"{server.url}/run/m"
        assert [httpx.post(run, content=b"ab").content for _ in range(9)] == [b"AB"] * 9
        assert models("m", {"data": b"ab"})["result"] == b"AB"
        until(lambda: models.status()["m"]["exchange"]["outcome"] == "failed")
        # Who asks over HTTP is known by its address, and the program is another client.
        assert models.status()["m"]["exchange"]["clients"] == 2


@pytest.mark.parametrize(
    ("exchange", "what"),
    [
        ("share = 1.5", "models.m.exchange.share: Input should be less than or equal to 1"),
        ("per_client = 0", "models.m.exchange.per_client: Input should be greater than 0"),
        ("shares = 0.5", "models.m.exchange.shares: there is no such key"),
        ('compare = "canry"', "canary"),
        ('verdict = "nowhere_to_be_found:judge"', "nowhere_to_be_found"),
        ('verdict = "math:nothing"', "names no function"),
    ],
)
def test_wrong_settings_are_refused_before_it_serves(tmp_path, exchange, what):
    (tmp_path / "m.toml").write_text('backend = "Identity"\n')
    file = tmp_path / "models.toml"
    file.write_text(f'[models.m]\nconfig = "m.toml"\n[models.m.exchange]\n{exchange}\n')
    assert what in refused("serve", "--models", str(file), "--port", "0")


def test_several_processes_have_no_exchange(tmp_path):
    (tmp_path / "m.toml").write_text('backend = "Identity"\n')
    file = tmp_path / "models.toml"
    file.write_text('[models.m]\nconfig = "m.toml"\n[models.m.exchange]\nshare = 0.5\n')
    said = refused("serve", "--models", str(file), "--port", "0", "--workers", "2")
    assert "with --workers each process" in said
