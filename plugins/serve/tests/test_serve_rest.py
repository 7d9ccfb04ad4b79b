"""REST as tritonclient, httpx and raw sockets see it."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import threading
import zlib

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from starlette.applications import Starlette
from starlette.routing import Mount
from tritonclient.utils import InferenceServerException

import headrace
from headrace_serve import Limits, Server, asgi
from headrace_serve.grpc import tensors as grpc_tensors
from headrace_serve.http import tensors as rest_tensors

FP32 = {
    "config": {"backend": "S[Identity]", "max": 8},
    "inputs": {"x": {"datatype": "FP32", "shape": [-1, 16], "batched": True}},
    "outputs": {"y": {"datatype": "FP32", "shape": [-1, 16]}},
}


def anything(datatype, axes=1, **more):
    port = {"datatype": datatype, "shape": [-1] * axes, "each": False, **more}
    return {
        "config": {"backend": "Identity"},
        "inputs": {"x": port},
        "outputs": {"y": {"datatype": datatype, "shape": [-1] * axes}},
    }


def tensor(name, array, datatype, *, binary=True):
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


class ServeWords(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = request["words"] = request["data"].decode().split()


@pytest.fixture(scope="module")
def common():
    """A server for tests that change nothing of it: rows of floats, two bytes as numbers, and texts."""
    headrace.register("ServeText", lambda data: bytes(data).decode())
    headrace.register("ServeLong", lambda data: "x" * 5000)
    models = {name: {"backend": f"Serve{name.title()}"} for name in ("text", "long")}
    with Server({"m": FP32, "int8": anything("INT8"), **models}, port=0) as made:
        yield made


@pytest.fixture
def client(serving):
    def connect(models, **settings):
        server = serving(models, **settings)
        made = triton.InferenceServerClient(server.url.removeprefix("http://"), concurrency=4)
        made.server = server
        return made

    return connect


def test_bf16_comes_to_the_pipeline_as_the_floats_it_holds(serving):
    outputs = {"y": {"datatype": "FP32", "shape": [-1]}}
    server = serving({"m": {**anything("BF16"), "outputs": outputs}})
    bits = np.array([1.0, -2.5, 3.0e38], np.float32).view(np.uint32) >> 16
    raw = bits.astype("<u2").tobytes()
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": [3],
                    "datatype": "BF16",
                    "parameters": {"binary_data_size": 6},
                }
            ]
        }
    ).encode()
    answer = httpx.post(
        f"{server.url}/v2/models/m/infer",
        content=head + raw,
        headers={"Inference-Header-Content-Length": str(len(head))},
    ).json()
    (output,) = answer["outputs"]
    assert output["datatype"] == "FP32"
    assert output["data"][:2] == [1.0, -2.5]


def test_rows_are_one_request_and_more_than_max_is_refused_with_both_numbers(client):
    c = client({"m": FP32})
    x = np.arange(48, dtype=np.float32).reshape(3, 16)
    assert (c.infer("m", [tensor("x", x, "FP32")]).as_numpy("y") == x).all()
    assert c.server._service.models.find("m").pipe.stats()["nodes"]["main"]["submitted"] == 1
    with pytest.raises(InferenceServerException, match=r"9.*8|8.*9") as caught:
        c.infer("m", [tensor("x", np.zeros((9, 16), np.float32), "FP32")])
    assert caught.value.status() == "400"


def declared(function, datatype, shape, **entry):
    headrace.register("ServeDeclared", function, replace=True)
    outputs = {"y": {"datatype": datatype, "shape": shape}}
    return {"config": {"backend": "ServeDeclared"}, "outputs": outputs, **entry}


@pytest.mark.parametrize(
    ("result", "datatype", "shape", "message"),
    [
        (0.5, "FP32", [-1], ("FP32", [1], [0.5])),
        (3, "INT8", [-1], ("INT8", [1], [3])),
        (True, "BOOL", [-1], ("BOOL", [1], [True])),
        ([[1, 2]], "FP64", [-1, 1, 2], ("FP64", [1, 1, 2], [1.0, 2.0])),
        ({"a": 1}, "BYTES", [-1], ("BYTES", [1], ['{"a": 1}'])),
        (((1, 2), [3, 4]), "FP32", [-1, 2, 2], ("FP32", [1, 2, 2], [1.0, 2.0, 3.0, 4.0])),
        (10**400, "FP32", [-1], "and the result is int"),
        ([1e39], "FP32", [-1, 1], "and the result is list"),
        (300, "INT8", [-1], "INT8 [], and the result is int"),
        (0.5, "INT8", [-1], "and the result is float"),
        ([[1], [2, 3]], "FP32", [-1, 2], "and the result is list"),
        ("text", "FP32", [-1], "and the result is BYTES [1]"),
        (np.zeros(3), "FP32", [-1, 3], "FP32 [3], and the result is FP64 [3]"),
        (np.zeros(2, "f4"), "FP32", [-1, 3], "FP32 [3], and the result is FP32 [2]"),
        (np.zeros(2, "f4"), "BYTES", [-1], "BYTES [], and the result is FP32 [2]"),
        (np.zeros(2, "c8"), "FP32", [-1, 2], "the result is complex64 [2]"),
    ],
)
def test_a_result_is_what_the_entry_declares_or_an_error(serving, result, datatype, shape, message):
    model = declared(lambda data: b"ok" if data == b"ok" else result, datatype, shape)
    server = serving({"m": model}, debug_errors=True)
    text = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": [text]}).json()
    if isinstance(message, str):
        assert answer["code"] == "contract"
        assert answer["error"].startswith("item 0: ")
        assert message in answer["error"]
    else:
        (y,) = answer["outputs"]
        assert (y["datatype"], y["shape"], y["data"]) == message


def test_numbers_that_json_does_not_have_leave_as_binary_data(client):
    c = client({"m": declared(lambda data: [0.5, float("nan")], "FP16", [-1, 2])})
    answer = c.infer("m", [tensor("data", np.array([b"x"], object), "BYTES")]).as_numpy("y")
    assert (answer.dtype, answer.shape) == (np.float16, (1, 2))
    np.testing.assert_array_equal(answer[0], [0.5, np.nan])


class TorchTensor:
    """What torch's tensors of BF16 are to numpy: it refuses them, and reads what `float` gives."""

    dtype = "torch.bfloat16"

    def __init__(self, values):
        self.values = np.float32(values)

    def float(self):
        return self.values

    def __dlpack__(self, **_):
        raise BufferError("numpy has no such dtype")

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize("kind", [TorchTensor, np.float32, "ml_dtypes"])
@pytest.mark.parametrize("said", [True, False])
def test_bf16_of_other_libraries_leaves_as_bf16_where_the_model_says_so(serving, kind, said):
    values = [1.5, -2.0, 0.0078125]  # BF16 has these exactly
    if kind == "ml_dtypes":
        kind = pytest.importorskip("ml_dtypes").bfloat16
        result = np.array(values, kind)
    else:
        result = kind(values)

    class Model(headrace.Backend):
        def describe(self):
            port = {"dtype": "bfloat16", "shape": [None, 3]}
            return {"outputs": {"y": port}}

        def forward(self, batch):
            for request in batch:
                request["result"] = result

    headrace.register("ServeBf16", Model, replace=True)
    model = {"config": {"backend": "ServeBf16"}}
    if said:
        model["outputs"] = {"y": {"datatype": "BF16", "shape": [-1, 3]}}
    server = serving({"m": model}, debug_errors=True)
    output = {"name": "y", "parameters": {"binary_data": True}}
    text = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    url, asked = f"{server.url}/v2/models/m/infer", {"inputs": [text], "outputs": [output]}
    answer = httpx.post(url, json=asked)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["inference-header-content-length"])
    (y,) = json.loads(answer.content[:length])["outputs"]
    assert (y["datatype"], y["shape"]) == ("BF16", [1, 3])
    bits = np.frombuffer(answer.content[length:], "<u2").astype("<u4") << 16
    assert bits.view("<f4").tolist() == values


def test_a_tensor_that_is_not_the_declared_one_is_an_error(serving):
    rows = {"x": {"datatype": "FP32", "shape": [-1, 2], "batched": True}}
    model = declared(lambda data: data[:, :1], "FP32", [-1, 2], inputs=rows)
    server = serving({"m": model}, debug_errors=True)
    x = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": [x]}).json()
    assert "declared as FP32 [-1, 2], and the result is FP32 [1, 1]" in answer["error"]


def test_batches_are_counted_where_requests_enter(serving):
    config = {"last": {"backend": "Identity"}, "first": {"backend": "Identity", "next": "mid"}}
    each = {"backend": "Identity", "each": "words", "next": "last"}
    headrace.register("ServeWords", ServeWords, replace=True)
    config["first"]["backend"] = "ServeWords"
    server = serving({"m": {**config, "mid": each}})
    assert httpx.post(f"{server.url}/run/m", content=b"a b c").json() == {"result": ["a", "b", "c"]}
    (stats,) = httpx.get(f"{server.url}/v2/models/m/stats").json()["model_stats"]
    assert stats["execution_count"] == 1


def test_without_a_version_the_greatest_serves(client):
    c = client({"m:2": {"backend": "Identity"}, "m:10": {"backend": "Identity"}})
    given = [tensor("data", np.array([b"x"], object), "BYTES")]
    assert c.infer("m", given).get_response()["model_version"] == "10"
    assert c.infer("m", given, model_version="2").get_response()["model_version"] == "2"


def test_items_are_requests_of_their_own_in_order(client):
    c = client({"m": {"backend": "ServePicky", "max": 4}})
    sent = np.array([b"a", b"\xc3\xa9", b"c"], object)
    for binary in (True, False):
        answer = c.infer("m", [tensor("data", sent, "BYTES", binary=binary)], request_id="r7")
        assert [value.decode() for value in answer.as_numpy("result")] == ["A", "É", "C"]
        assert answer.get_response()["id"] == "r7"
    assert c.server._service.models.find("m").pipe.stats()["nodes"]["main"]["ok"] == 6


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_too_many_items_are_refused_before_any_is_read(serving, monkeypatch, over):
    def read(*given):
        raise AssertionError("read")

    for module in (rest_tensors, grpc_tensors):
        for name in ("from_bytes", "from_json"):
            monkeypatch.setattr(module, name, read, raising=False)
    models = {"m": {"config": {"backend": "ServePicky"}, "max_items": 2}}
    server = serving(models, grpc_port=0)
    kind, port = (triton, server.port) if over == "http" else (triton_grpc, server.grpc_port)
    given = kind.InferInput("data", [3], "BYTES")
    given.set_data_from_numpy(np.array([b"a"] * 3, object))
    with (
        kind.InferenceServerClient(f"{server.host}:{port}") as client,
        pytest.raises(InferenceServerException, match="3 items are more than the 2"),
    ):
        client.infer("m", [given])


def test_one_item_that_fails_fails_all_and_is_named(client):
    c = client({"m": {"backend": "ServePicky", "max": 4}})
    given = [tensor("data", np.array([b"a", b"bad", b"c"], object), "BYTES")]
    with pytest.raises(InferenceServerException, match="item 1: this is bad"):
        c.infer("m", given)
    answer = c.infer("m", given, parameters={"partial": True})
    assert answer.as_numpy("result").tolist() == [b"A", b"C"]
    (found,) = json.loads(answer.get_response()["parameters"]["errors"])
    assert (found["index"], found["code"]) == (1, "input")
    assert "this is bad" in found["message"]
    given = [tensor("data", np.array([b"bad", b"bad"], object), "BYTES")]
    answer = c.infer("m", given, parameters={"partial": True})
    assert answer.as_numpy("result").shape == (0,)
    found = json.loads(answer.get_response()["parameters"]["errors"])
    assert [one["index"] for one in found] == [0, 1]


def test_where_no_item_had_the_time_the_request_has_not(client, gate):
    c = client({"m": {"backend": "ServeGate", "max": 4}})
    given = [tensor("data", np.array([b"a", b"b"], object), "BYTES")]
    with pytest.raises(InferenceServerException) as caught:
        c.infer("m", given, parameters={"partial": True}, timeout=1)
    assert caught.value.status() == "504"


def test_no_item_is_no_request(client):
    c = client({"m": {"backend": "ServePicky", "max": 4}})
    answer = c.infer("m", [tensor("data", np.array([], object), "BYTES")])
    assert answer.as_numpy("result").shape == (0,)


def test_all_elements_are_json_where_one_is_no_text(serving):
    headrace.register("ServeMixed", {b"a": "é", b"b": None, b"c": 3}.get, replace=True)
    server = serving({"m": {"backend": "ServeMixed"}})

    def read(*data):
        body = {
            "inputs": [{"name": "data", "shape": [len(data)], "datatype": "BYTES", "data": data}]
        }
        answer = httpx.post(f"{server.url}/v2/models/m/infer", json=body).json()
        return answer["outputs"][0]

    mixed = read("a", "b", "c")
    assert mixed["parameters"] == {"content_type": "application/json"}
    assert [json.loads(one) for one in mixed["data"]] == ["é", None, 3]
    assert (read("a", "a")["data"], "parameters" in read("a")) == (["é", "é"], False)


def test_what_is_no_tensor_is_json_text(serving):
    headrace.register(
        "ServeTable", lambda data: {"n": np.arange(2), "t": data.decode()}, replace=True
    )
    server = serving({"m": {"backend": "ServeTable"}})
    body = {"inputs": [{"name": "data", "shape": [1], "datatype": "BYTES", "data": ["é"]}]}
    (output,) = httpx.post(f"{server.url}/v2/models/m/infer", json=body).json()["outputs"]
    assert output["parameters"] == {"content_type": "application/json"}
    assert json.loads(output["data"][0]) == {"n": [0, 1], "t": "é"}
    assert httpx.post(f"{server.url}/run/m", content="é".encode()).json() == {
        "result": {"n": [0, 1], "t": "é"}
    }


X = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [0.5] * 16}


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [X], "id": None},
        {"inputs": [X], "parameters": None, "outputs": None, "model_name": None},
        {"inputs": [{**X, "parameters": None}], "outputs": [{"name": "y", "parameters": None}]},
        # What MLServer's types give, which name every parameter and field.
        {
            "inputs": [{**X, "parameters": {"content_type": None, "headers": None}}],
            "parameters": {"priority": None, "timeout": None, "mine": None},
            "outputs": [{"name": "y", "parameters": {"binary_data": None, "classification": None}}],
        },
        {"inputs": [{**X, "more": None}], "more": None},
    ],
)
def test_what_is_null_is_as_if_it_were_not_there(common, body):
    url = f"{common.url}/v2/models/m/infer"
    wanted = httpx.post(url, json={"inputs": [X]})
    assert wanted.status_code == 200
    for _ in range(2):  # the second is read as the first was
        answer = httpx.post(url, json=body)
        assert (answer.status_code, answer.json()) == (200, wanted.json())


def test_null_parameters_are_not_the_pipelines_and_null_fields_of_other_routes_are_none(serving):
    server = serving({"m": {"backend": "ServePicky"}}, allow=["repository"])
    asked = {"data": "context", "id": None, "mine": None, "parameters": {"a": 1, "b": None}}
    answer = httpx.post(f"{server.url}/v2/models/m/generate", json=asked)
    assert answer.json()["result"] == {"parameters": {"a": 1}}
    for path, body in (
        ("/v2/repository/index", {"ready": None}),
        ("/v2/repository/models/m/load", {"parameters": None}),
        ("/v2/repository/models/m/load", {"parameters": {"config": None}}),
    ):
        assert httpx.post(server.url + path, json=body).status_code == 200
    asked = {"data": "a", "parameters": None}
    assert httpx.post(f"{server.url}/v2/models/m/generate", json=asked).json()["result"] == "A"


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": None},
        {"inputs": [{**X, "name": None}]},
        {"inputs": [{**X, "datatype": None}]},
        {"inputs": [{**X, "shape": None}]},
        {"inputs": [{**X, "data": None}]},
        {"inputs": [X], "outputs": [{"name": None}]},
        {"inputs": [None]},
    ],
)
def test_what_is_needed_may_not_be_null(common, body):
    answer = httpx.post(f"{common.url}/v2/models/m/infer", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "input")


@pytest.mark.parametrize(
    "wrong", [{"inputs": []}, {"inputs": 5}, {"inputs": [{"name": "x"}]}, {"other": 1}]
)
def test_an_error_has_the_id_of_its_request_whatever_is_wrong(common, wrong):
    answer = httpx.post(f"{common.url}/v2/models/m/infer", json={"id": "r7", **wrong})
    assert (answer.status_code, answer.json()["id"]) == (400, "r7")


def test_nan_as_json_is_an_error_that_says_so(client):
    c = client({"m": anything("FP32")})
    x = [tensor("x", np.array([np.nan], np.float32), "FP32")]
    assert np.isnan(c.infer("m", x).as_numpy("y")).all()
    with pytest.raises(InferenceServerException, match="NaN"):
        c.infer("m", x, outputs=[triton.InferRequestedOutput("y", binary_data=False)])


@pytest.mark.parametrize(
    ("odd", "word", "status"), [(np.float32("nan"), "NaN", 500), (b"\xff", "UTF-8", 400)]
)
def test_the_item_that_json_cannot_hold_is_named(serving, odd, word, status):
    fine = type(odd)() if isinstance(odd, bytes) else np.float32(1)
    headrace.register("ServeNan", lambda data: odd if data == b"odd" else fine, replace=True)
    server = serving({"m": {"backend": "ServeNan", "max": 4}})
    text = {"name": "data", "datatype": "BYTES", "shape": [3], "data": ["a", "b", "odd"]}
    url = f"{server.url}/v2/models/m/infer"
    told = httpx.post(url, json={"inputs": [text]})
    assert told.status_code == status
    assert re.match(rf"item 2: .*{word}", told.json()["error"])
    binary = {"inputs": [text], "parameters": {"binary_data_output": True}}
    assert httpx.post(url, json=binary).status_code == 200


def test_errors_inside_show_their_text_only_where_the_server_says_so(serving):
    for debug in (False, True):
        server = serving({"m": {"backend": "ServePicky"}}, debug_errors=debug)
        answer = httpx.post(f"{server.url}/run/m", content=b"break")
        body = answer.json()
        assert (answer.status_code, body["code"], body["node"]) == (500, "backend", "main")
        assert ("secret" in body["error"]) is debug


def one(**changes):
    return {"inputs": [{"name": "x", "shape": [2], "datatype": "INT8", "data": [1, 2], **changes}]}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (one(), 200, ""),
        (one(shape=[3]), 400, r"\[3\]"),
        (one(shape=[-1]), 400, "shape"),
        (one(shape=[True]), 400, "shape"),
        (one(shape=[1 << 40]), 400, "0 to 1099511627775"),
        (one(datatype="BYTES", shape=[2, 2], data=[["a"], ["b", "c", "d"]]), 400, "list"),
        (one(datatype="BYTES", data=[["a", "b"]]), 400, "a list of 1"),
        (one(shape=[2, 1]), 400, "expected INT8"),
        (one(datatype="INT16"), 400, "INT16"),
        (one(datatype="X"), 400, "datatype"),
        (one(name="z"), 400, "no input 'z'"),
        (one(data=[1, 200]), 400, "outside of INT8"),
        (one(data=[1, 1.5]), 400, "no INT8"),
        (one(data=["a", "b"]), 400, "no INT8"),
        (one(data=[1, None]), 400, "no INT8"),
        (one(data=[True, 2]), 400, "no INT8"),
        (one(data=[[True], [2]], shape=[2, 1]), 400, "no INT8"),
        (one(data=[1, 2**70]), 400, "outside of INT8"),
        (one(data=[1, 2**63], datatype="INT64"), 400, "outside of INT64"),
        (one(data=[1, 2**64], datatype="UINT64"), 400, "UINT64"),
        (one(data=[1, {}]), 400, "no INT8"),
        (one(data=[[1], [2, 3]]), 400, "no INT8"),
        (one(shape=[2, 1], data=[[1], [2, 3]]), 400, "lengths"),
        (one(data=None), 400, "list"),
        (one(more=1), 400, "'more'"),
        ({"inputs": []}, 400, "missing"),
        ({}, 400, "inputs: expected a list of objects, got nothing"),
        ({**one(), "model_name": "m"}, 400, "model_name"),
        ([], 400, "object"),
        ({**one(), "parameters": {"sequence_id": 4}}, 400, "sequences"),
        ({**one(), "outputs": [{"name": "y", "parameters": {"mystery": 4}}]}, 400, "mystery"),
        ({**one(), "parameters": {"timeout": -1}}, 400, "timeout"),
        ({**one(), "parameters": {"partial": True}}, 400, "items"),
        ({**one(), "outputs": [{"name": "q"}]}, 400, "no output 'q'"),
        (
            {**one(), "outputs": [{"name": "y", "parameters": {"classification": 0}}]},
            400,
            "classif",
        ),
        ({**one(), "id": 5}, 400, "id"),
        (one(parameters={"shared_memory_region": "a"}), 400, "input .* send the tensors"),
        (one(parameters={"binary_data_size": 4}), 400, "both"),
    ],
)
def test_a_wrong_body_is_answered_with_what_is_wrong(common, body, status, message):
    answer = httpx.post(f"{common.url}/v2/models/int8/infer", json=body)
    assert answer.status_code == status
    if status != 200:
        assert re.search(message, answer.json()["error"])


def test_parts_that_are_not_supported_are_refused_by_name(client):
    c = client({"m": FP32})
    calls = [
        c.get_trace_settings, c.get_log_settings,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InferenceServerException, match="not supported") as caught:
            call()
        assert caught.value.status() == "501"
    for call in (c.load_model, c.unload_model):
        with pytest.raises(InferenceServerException) as caught:
            call("m")
        assert caught.value.status() == "403"


BODY = json.dumps(
    {"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["abc"]}]}
).encode()


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(BODY[:20]) + gzip.compress(BODY[20:])),
        ("GZIP", b"".join(gzip.compress(BODY[i : i + 1]) for i in range(len(BODY)))),
        ("gzip", gzip.compress(b"") + gzip.compress(BODY) + gzip.compress(b"")),
        ("x-gzip", gzip.compress(BODY)),
        ("deflate, x-gzip", gzip.compress(zlib.compress(BODY))),
        ("identity , gzip", gzip.compress(BODY)),
        ("", BODY),
    ],
    ids=["two", "many", "empty", "x-gzip", "deflate", "identity", "none"],
)
@pytest.mark.parametrize("path", ["/v2/models/text/infer", "/run/text"])
def test_bodies_of_several_members_and_codings_are_read(common, coding, body, path):
    answer = httpx.post(common.url + path, content=body, headers={"content-encoding": coding})
    assert answer.status_code == 200
    found = answer.json()
    text = found["result"] if path == "/run/text" else found["outputs"][0]["data"][0]
    assert text == (BODY.decode() if path == "/run/text" else "abc")


@pytest.mark.parametrize("coding", ["zstd", "br", "compress", "gzip, br", "x-deflate"])
@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/generate", "/run/m"])
def test_an_unknown_coding_is_told_those_that_are_known(plain, coding, path):
    answer = httpx.post(plain.url + path, content=b"x", headers={"content-encoding": coding})
    assert (answer.status_code, answer.json()["code"]) == (415, "content_encoding")
    assert answer.headers["accept-encoding"] == "gzip, deflate"


def test_members_are_bounded_and_bytes_behind_a_stream_refused(serving):
    server = serving({"m": {"backend": "Identity"}}, limits=Limits(max_body_bytes=2 << 20))
    for coding, body in (
        ("gzip", gzip.compress(b"") * 70_000),
        ("gzip", gzip.compress(b"x") + gzip.compress(b"y")[:-1]),
        ("gzip", gzip.compress(b"x") + b"\0"),
        ("gzip", gzip.compress(bytes(range(256)))[:20]),
        ("gzip", b""),
        ("deflate", zlib.compress(b"x") * 2),
    ):
        headers = {"content-encoding": coding}
        assert httpx.post(f"{server.url}/run/m", content=body, headers=headers).status_code == 400
    bomb = gzip.compress(bytes(1 << 20)) * 3
    answer = httpx.post(f"{server.url}/run/m", content=bomb, headers={"content-encoding": "gzip"})
    assert answer.status_code == 413


@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("accepted", ["identity", "gzip", "x-gzip"])
@pytest.mark.parametrize("origins", [[], ["*"]])
def test_an_answer_that_may_have_a_coding_says_so_to_caches(serving, size, accepted, origins):
    headrace.register("ServeSize", lambda data: "x" * size, replace=True)
    server = serving({"m": {"backend": "ServeSize"}}, cors_origins=origins)
    headers = {"accept-encoding": accepted}
    if origins:
        headers["origin"] = "https://page.example"
    answer = httpx.post(f"{server.url}/run/m", content=b"x", headers=headers)
    assert answer.json() == {"result": "x" * size}
    assert "accept-encoding" in answer.headers["vary"].lower()
    coded = size > 1024 and accepted != "identity"
    assert answer.headers.get("content-encoding") == ("gzip" if coded else None)


def raw(server, *parts):
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    for part in parts:
        connection.sendall(part)
    return connection


def test_a_request_that_does_not_arrive_in_time_is_answered_with_408(serving):
    server = serving({"m": {"backend": "Identity"}}, limits=Limits(receive_timeout_s=0.05))

    async def connect_and_send(part):
        # In the loop's own thread: before the time begins, the kernel has all that is sent.
        return raw(server, part)

    for part in (
        b"",
        b"POST /run/m HT",
        b"POST /run/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nab",
    ):
        connecting = asyncio.run_coroutine_threadsafe(connect_and_send(part), server._loop)
        with connecting.result() as connection:
            got = b"".join(iter(lambda c=connection: c.recv(4096), b""))
        assert got.startswith(b"HTTP/1.1 408")
        assert b"receive_timeout" in got


@pytest.mark.parametrize("target", ["OPTIONS *", "GET /none", "PUT /v2"])
def test_what_has_no_route_is_told_so_in_json(plain, target):
    with socket.create_connection((plain.host, plain.port), timeout=30) as connection:
        connection.sendall(
            f"{target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
        )
        head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    assert int(head.split()[1]) in (404, 405)
    told = json.loads(body)
    assert told["code"] == "route"
    assert ("/docs lists the routes" in told["error"]) == (b"404" in head)


def test_the_application_may_lie_below_a_path():
    headrace.register("ServeLength", len, replace=True)
    outer = Starlette(routes=[Mount("/ml", asgi({"m": {"backend": "ServeLength"}}))])

    async def ask():
        transport = httpx.ASGITransport(outer)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as c:
            assert (await c.post("/ml/run/m", content=b"four")).json() == {"result": 4}
            assert (await c.get("/ml/v2/models/m")).json()["name"] == "m"
            (place,) = (await c.get("/ml/openapi.json")).json()["servers"]
            assert (await c.get(place["url"] + "/v2/health/live")).status_code == 200
            answer = await c.put("/ml/v2")
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")

    asyncio.run(ask())


def test_the_earliest_of_the_timeouts_is_the_deadline(client, gate):
    c = client({"m": {"backend": "ServeGate"}})
    given = [tensor("data", np.array([b"x"], object), "BYTES")]
    with pytest.raises(InferenceServerException) as caught:
        c.infer("m", given, timeout=20_000)
    assert caught.value.status() == "504"
    assert caught.value.message().endswith("while a backend ran on it [node 'main']")  # no advice
    limited = client({"m": {"backend": "ServeGate"}}, limits=Limits(max_timeout_ms=20))
    with pytest.raises(InferenceServerException) as caught:
        limited.infer("m", given, timeout=60_000_000)
    assert caught.value.status() == "504"


def test_priority_1_goes_before_the_default_and_that_before_3(serving, gate):
    server = serving({"m": {"backend": "ServeGate"}})
    pipe = server._service.models.find("m").pipe
    poll = threading.Event()
    threads = []

    def send(text, priority):
        given = {"name": "data", "shape": [1], "datatype": "BYTES", "data": [text]}
        body = {"inputs": [given], "parameters": {"priority": priority}}
        url = f"{server.url}/v2/models/m/infer"
        threads.append(
            threading.Thread(target=httpx.post, args=(url,), kwargs={"json": body, "timeout": 60})
        )
        threads[-1].start()

    send("first", 0)
    assert gate.entered.wait(30)
    for count, (text, priority) in enumerate([("late", 3), ("normal", 0), ("urgent", 1)], 1):
        send(text, priority)
        while pipe.stats()["nodes"]["main"]["waiting"] != count:
            poll.wait(0.002)
    gate.open.set()
    for thread in threads:
        thread.join()
    assert gate.seen == [b"first", b"urgent", b"normal", b"late"]


TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "ot=th:8;rv:9b8233f7e3a151,vendor=abc",
    "baggage": "user=alice,region=eu;ttl=5",
}
CONTEXT = {"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["context"]}]}


@pytest.mark.parametrize(
    ("sent", "own", "reaches"),  # W3C Trace Context, 3.3: without a traceparent of its own, tracestate means nothing
    [
        (TRACE, {}, TRACE),
        ({"tracestate": "a=b"}, {}, None),
        ({"baggage": "a=b"}, {}, {"baggage": "a=b"}),
        (TRACE, {"traceparent": "00-1-2-01"}, {"traceparent": "00-1-2-01", "baggage": TRACE["baggage"]}),
        ({}, TRACE, TRACE),
    ],
)  # fmt: skip
def test_the_trace_reaches_the_context(serving, sent, own, reaches):
    seen = []

    class Seen(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                seen.append(request.get("context"))
                request["result"] = 1

    headrace.register("ServeSeen", Seen, replace=True)
    server = serving({"m": {"backend": "ServeSeen"}}, grpc_port=0)
    url = f"{server.url}/v2/models/m"
    assert httpx.post(f"{url}/infer", json={**CONTEXT, "parameters": own}, headers=sent).is_success
    assert httpx.post(f"{url}/generate", json={"data": "a", **own}, headers=sent).is_success
    assert httpx.post(f"{server.url}/run/m", params=own, content=b"a", headers=sent).is_success
    data = triton_grpc.InferInput("data", [1], "BYTES")
    data.set_data_from_numpy(np.array([b"a"], object))
    with triton_grpc.InferenceServerClient(f"{server.host}:{server.grpc_port}") as client:
        client.infer("m", [data], headers=sent, parameters=own)
    assert seen == [reaches] * 4


def test_a_tracestate_of_several_lines_is_one_list(serving):
    server = serving({"m": {"backend": "ServePicky"}})
    lines = [("traceparent", TRACE["traceparent"]), ("tracestate", "a=1"), ("tracestate", "b=2")]
    answer = httpx.post(f"{server.url}/run/m", content=b"context", headers=lines)
    assert answer.json()["result"]["tracestate"] == "a=1, b=2"


def test_a_header_that_comes_once_is_refused_where_it_came_twice(plain):
    length = str(len(BODY))
    for lines, status in (
        ([("inference-header-content-length", length)], 200),
        ([("inference-header-content-length", length)] * 2, 400),
    ):
        answer = httpx.post(f"{plain.url}/v2/models/m/infer", content=BODY, headers=lines)
        assert answer.status_code == status


def test_codings_of_several_lines_are_one_list(plain):
    lines = [("content-encoding", "deflate"), ("content-encoding", "gzip")]
    body = gzip.compress(zlib.compress(b"abc"))
    answer = httpx.post(f"{plain.url}/run/m", content=body, headers=lines)
    assert answer.content == b"abc"


@pytest.mark.parametrize(
    ("accepted", "coding"),  # RFC 9110, 12.5.3
    [("gzip;q=0.1, deflate;q=0.5", "deflate"), ("deflate, gzip", "gzip"), ("*", "gzip"), ("*;q=0", None),
     ("gzip;q=0, *", "deflate"), ("gzip;q=0.5, identity", None), ("br", None), ("identity;q=0.5, x-gzip", "gzip"),
     ("", None)],
)  # fmt: skip
def test_the_coding_that_is_wanted_most_is_taken(common, accepted, coding):
    headers = {"accept-encoding": accepted}
    answer = httpx.post(f"{common.url}/run/long", content=b"x", headers=headers)
    assert answer.headers.get("content-encoding") == coding
    assert answer.json() == {"result": "x" * 5000}


def test_the_plain_route_answers_in_the_type_that_is_asked_for(serving):
    server = serving({"m": {"backend": "Identity"}, "t": FP32})
    url = f"{server.url}/run/m"
    assert httpx.post(url, content=b"abc").content == b"abc"
    sent = b"\x89PNG\r\n\x1a\n\xff"
    png = httpx.post(url, content=sent, headers={"accept": "image/png"})
    assert (png.content, png.headers["content-type"]) == (sent, "image/png")
    other = httpx.post(url, content=b"\xff", headers={"accept": "application/octet-stream"})
    assert (other.content, other.headers["content-type"]) == (b"\xff", "application/octet-stream")
    as_json = {"accept": "application/json"}
    assert httpx.post(url, content=b"\xff", headers=as_json).status_code == 400
    assert httpx.post(f"{url}?node_name=main", content=b"a").status_code == 400
    assert httpx.post(f"{server.url}/run/t", content=b"a").status_code == 400
    assert httpx.post(f"{server.url}/run/nope", content=b"a").status_code == 404
    assert httpx.get(f"{server.url}/v2/nothing").json()["code"] == "route"


def test_a_pipeline_that_was_given_stays_open():
    with headrace.pipe({"backend": "Identity"}) as pipe:
        with Server({"m": pipe}, port=0) as server:
            assert httpx.post(f"{server.url}/run/m", content=b"a").content == b"a"
        assert pipe({"data": 1})["result"] == 1


def test_the_openapi_document_says_what_the_server_takes(serving):
    import jsonschema

    server = serving(
        {"m": FP32, "any:2": {"backend": "Identity"}, "any:3": {"backend": "Identity"}}
    )
    found = httpx.get(f"{server.url}/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    assert {"/run/any", "/v2/models/any/infer", "/v2/models/any/versions/2/infer"} <= set(
        found["paths"]
    )
    assert "/run/m" not in found["paths"]
    for path, methods in found["paths"].items():
        if "get" in methods:
            assert httpx.get(f"{server.url}{path}").status_code == 200
    body = found["paths"]["/v2/models/m/infer"]["post"]["requestBody"]["content"]
    schema = body["application/json"]["schema"]
    x = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}
    cases = [
        ({"inputs": [x]}, 200), ({"inputs": []}, 400), ({"inputs": [x], "more": 1}, 400),
        ({"inputs": [{**x, "shape": [1, 15]}]}, 400), ({"inputs": [{**x, "datatype": "FP64"}]}, 400),
        ({"inputs": [x], "outputs": [{"name": "z"}]}, 400), ({"inputs": [x], "id": "r"}, 200),
        ({"inputs": [x, x]}, 400), ({"inputs": [{**x, "data": ["a"] * 16}]}, 400),
        ({"inputs": [x], "parameters": {"what": 1}}, 200), ({"inputs": [x], "parameters": {"priority": 3}}, 200),
        ({"inputs": [x], "parameters": {"timeout": -1}}, 400), ({"inputs": [x], "parameters": {"partial": True}}, 400),
        ({"inputs": [x], "outputs": [{"name": "y"}]}, 200), ({"inputs": [x], "outputs": [{"name": "y"}] * 2}, 400),
        ({"inputs": [x], "outputs": [{"name": "y", "parameters": {"classification": 0}}]}, 400),
        ({"inputs": [x], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}, 200),
        ({"inputs": [{**x, "parameters": {"content_type": "np"}}]}, 200),
        ({"inputs": [{**x, "shape": [0, 16], "data": []}]}, 200),
    ]  # fmt: skip
    error = jsonschema.Draft202012Validator(found["components"]["schemas"]["Error"])
    for sent, status in cases:
        answer = httpx.post(f"{server.url}/v2/models/m/infer", json=sent)
        assert answer.status_code == status
        assert jsonschema.Draft202012Validator(schema).is_valid(sent) is (status == 200)
        assert status == 200 or error.is_valid(answer.json())


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"])
def test_the_openapi_document_bounds_elements_as_numpy_does(serving, dtype):
    info = np.finfo(dtype) if dtype[0] == "f" else np.iinfo(dtype)
    datatype = {"i": "INT", "u": "UINT", "f": "FP"}[dtype[0]] + str(8 * int(dtype[1]))
    port = {"datatype": datatype, "shape": [1], "key": "data"}
    server = serving({"m": {"config": {"backend": "Identity"}, "inputs": {"x": port}}})
    post = httpx.get(f"{server.url}/openapi.json").json()["paths"]["/v2/models/m/infer"]["post"]
    body = post["requestBody"]["content"]["application/json"]["schema"]
    (tensor,) = body["properties"]["inputs"]["prefixItems"]
    elements = tensor["properties"]["data"]["items"]
    assert (elements["minimum"], elements["maximum"]) == (info.min, info.max)


def test_the_page_of_documentation_asks_no_other_server(serving):
    server = serving({"m": FP32, "any": {"backend": "Identity"}})
    answer = httpx.get(f"{server.url}/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "any, version 1" in answer.text
    assert "[-1, 16]" in answer.text
    assert "//" not in answer.text


def test_an_inference_is_counted_by_its_rows_or_items(serving):
    server = serving({"rows": FP32, "items": {"backend": "Identity", "max": 4}})

    def ask(model, one):
        url = f"{server.url}/v2/models/{model}"
        assert httpx.post(f"{url}/infer", json={"inputs": [one]}).status_code == 200
        (body,) = httpx.get(f"{url}/stats").json()["model_stats"]
        return body["inference_count"], body["inference_stats"]["success"]["count"]

    row = {"name": "x", "datatype": "FP32"}
    assert ask("rows", {**row, "shape": [3, 16], "data": [0] * 48}) == (3, 1)
    assert ask("rows", {**row, "shape": [1, 16], "data": [0] * 16}) == (4, 2)
    text = {"name": "data", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
    assert ask("items", text) == (2, 1)


def test_inputs_with_different_numbers_of_rows_are_refused(serving):
    port = {"datatype": "FP32", "shape": [-1, 1], "batched": True}
    model = {"config": {"backend": "Identity", "max": 8}, "inputs": {"data": port, "other": port}}
    server = serving({"m": model})
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [rows, 1], "data": [0] * rows}
        for name, rows in (("data", 2), ("other", 3))
    ]
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": inputs})
    assert answer.status_code == 400
    assert "3 rows" in answer.json()["error"]


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "x", "3.0", "1e3"])
def test_a_length_of_the_header_that_is_none_is_refused(plain, length):
    answer = httpx.post(
        f"{plain.url}/v2/models/m/infer",
        content=b"{}",
        headers={"Inference-Header-Content-Length": length},
    )
    assert answer.status_code == 400
    assert "Inference-Header-Content-Length" in answer.json()["error"]


def test_a_result_in_the_order_of_another_machine_is_json_as_well(serving):
    headrace.register("ServeForeign", lambda _: np.array([1.5, -2], ">f4"), replace=True)
    server = serving({"m": {"backend": "ServeForeign"}})
    text = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": [text]}).json()
    assert answer["outputs"][0]["data"] == [1.5, -2.0]


def test_the_time_to_come_back_is_what_waits_over_the_measured_rate(monkeypatch):
    from types import SimpleNamespace

    from headrace_serve.monitoring import counters
    from headrace_serve.service import Service

    clock = SimpleNamespace(now=0, waiting=30)
    monkeypatch.setattr(counters.time, "time_ns", lambda: clock.now)
    model = SimpleNamespace(counts=counters.Counts(), waiting=lambda: clock.waiting, receiving=0)
    assert Service.retry_after_s(model) == 1  # nothing was measured
    for tick in range(10):
        clock.now = tick * 200_000_000
        model.counts.note(1, 4, 1)
    clock.now = 2_000_000_000
    assert Service.retry_after_s(model) == 7  # 30 that wait, 9 in 2 s
    clock.waiting = 1
    assert Service.retry_after_s(model) == 1
    clock.waiting = 1000
    assert Service.retry_after_s(model) == 30
    model.counts.note(1, 500, 500)
    assert Service.retry_after_s(model) == 4  # 509 in 2 s
    clock.now = 40_000_000_000
    assert Service.retry_after_s(model) == 1  # what was measured is too old


def test_an_item_whose_result_cannot_be_written_is_named(serving):
    def odd(data):
        if data == b"bad":
            raise headrace.errors.InputError("bad")
        return object() if data == b"odd" else {"data": data.decode()}

    headrace.register("ServeOdd", odd, replace=True)
    server = serving({"m": {"backend": "ServeOdd"}})

    def infer(*data, **parameters):
        text = {"name": "data", "datatype": "BYTES", "shape": [len(data)], "data": data}
        body = {"inputs": [text], "parameters": parameters}
        return httpx.post(f"{server.url}/v2/models/m/infer", json=body)

    answer = infer("b", "a", "odd")
    assert (answer.status_code, answer.json()["code"]) == (500, "contract")
    assert answer.json()["error"].startswith("item 2: ")
    answer = infer("odd", "a", "bad", "odd", partial=True).json()
    assert answer["outputs"][0]["data"] == ['{"data": "a"}']
    found = json.loads(answer["parameters"]["errors"])
    assert [(one["index"], one["code"]) for one in found] == [
        (0, "contract"), (2, "input"), (3, "contract"),
    ]  # fmt: skip
    answer = httpx.post(f"{server.url}/run/m", content=b"odd")
    assert "item" not in answer.json()["error"]


@pytest.mark.parametrize("each", [True, False])
def test_arrays_of_a_subclass_are_tensors(serving, tmp_path, each):
    array = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(1, 3))
    array[:] = [1.5, 2, 3]
    data = {"datatype": "BYTES", "shape": [-1], "each": each}
    model = {"config": {"backend": "ServeGiven"}, "inputs": {"data": data}}
    headrace.register("ServeGiven", lambda _: array, replace=True)
    server = serving({"m": model})
    asked = {"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json=asked)
    (output,) = answer.json()["outputs"]
    shape = [1, 1, 3] if each else [1, 3]
    assert output == {"name": "result", "datatype": "FP32", "shape": shape, "data": [1.5, 2, 3]}


def test_masked_arrays_are_json_with_null_for_what_is_masked(serving):
    array = np.ma.array([1, 2], mask=[False, True])
    headrace.register("ServeMasked", lambda _: array, replace=True)
    server = serving({"m": {"backend": "ServeMasked"}})
    asked = {"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json=asked)
    (output,) = answer.json()["outputs"]
    assert (output["datatype"], output["data"]) == ("BYTES", ["[1, null]"])
    assert output["parameters"] == {"content_type": "application/json"}
    assert httpx.post(f"{server.url}/run/m", content=b"a").json() == {"result": [1, None]}
