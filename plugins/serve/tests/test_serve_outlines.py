"""Requests that say what one before has said, in JSON or over gRPC: each has its own bytes, and its own faults."""

from __future__ import annotations

import json

import grpc
import httpx
import numpy as np
import pytest

import headrace
from headrace_serve.grpc.messages import message
from headrace_serve.inference.parsed_requests import ParsedRequest
from headrace_serve.models.parsed_cache import ParsedCache

SERVED = {
    "rows": {
        "config": {"backend": "Identity", "max": 8},
        "inputs": {"x": {"datatype": "FP32", "shape": [-1, 2], "batched": True}},
        "outputs": {"y": {"datatype": "FP32", "shape": [-1, 2]}},
    },
    "other": {
        "config": {"backend": "Identity"},
        "inputs": {"x": {"datatype": "FP32", "shape": [2], "each": False}},
        "outputs": {"y": {"datatype": "FP32", "shape": [2]}},
    },
    "long": {
        "config": {"backend": "Identity"},
        "inputs": {"x": {"datatype": "FP32", "shape": [-1, 2], "each": False}},
        "outputs": {"y": {"datatype": "FP32", "shape": [-1, 2]}},
    },
    "texts": {"backend": "ServePicky", "max": 4},
}


def send(server, model, tensors, **more):
    """Send a request; give its status, and its JSON with the tensors behind it."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape,
         "parameters": {"binary_data_size": size}}
        for name, datatype, shape, size, _ in tensors
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}, **more})
    answer = httpx.post(
        f"{server.url}/v2/models/{model}/infer",
        content=head.encode() + b"".join(data for *_, data in tensors),
        headers={"inference-header-content-length": str(len(head))},
    )
    length = answer.headers.get("inference-header-content-length")
    split = len(answer.content) if length is None else int(length)
    return answer.status_code, json.loads(answer.content[:split]), answer.content[split:]


def row(*values):
    data = np.array(values, "<f4").tobytes()
    return [("x", "FP32", [len(values) // 2, 2], len(data), data)]


def test_each_has_its_own_tensors_and_checks(serving):
    server = serving(SERVED)
    for values in ((1, 2), (3, 4), (5, 6, 7, 8), (9, 8)):
        status, _, raw = send(server, "rows", row(*values))
        assert (status, np.frombuffer(raw, "<f4").tolist()) == (200, list(values))
    ((name, datatype, shape, size, data),) = row(1, 2)
    for wrong in (data[:-1], data + b"x", b""):
        status, body, _ = send(server, "rows", [(name, datatype, shape, size, wrong)])
        assert (status, body["code"]) == (400, "input")
    status, body, _ = send(server, "other", row(1, 2))  # the same JSON does not fit another model
    assert (status, body["code"]) == (400, "input")
    for _ in range(2):  # nor does it ever become right
        status, body, _ = send(server, "rows", [("z", datatype, shape, size, data)])
        assert status == 400
        assert "'z'" in body["error"]
    assert send(server, "rows", row(1, 2))[0] == 200


def test_each_answer_has_the_id_of_its_request(serving):
    server = serving(SERVED)
    for identifier in ("a", "a", "b", None, "a", None):
        more = {} if identifier is None else {"id": identifier}
        status, body, _ = send(server, "rows", row(1, 2), **more)
        assert (status, body.get("id")) == (200, identifier)


def test_elements_of_bytes_are_read_anew(serving):
    server = serving(SERVED)

    def element(text):
        return len(text).to_bytes(4, "little") + text

    for two in ((b"ab", b"cd"), (b"a", b"bcd"), (b"bad", b"x")):
        raw = b"".join(map(element, two))
        status, body, _ = send(server, "texts", [("data", "BYTES", [2], len(raw), raw)])
        assert status == (400 if b"bad" in two else 200), body
    raw = (9).to_bytes(4, "little") + bytes(8)
    status, body, _ = send(server, "texts", [("data", "BYTES", [2], len(raw), raw)])
    assert (status, body["code"]) == (400, "input")


def test_an_answer_says_what_its_own_outputs_are(serving):
    given = [
        np.arange(4, dtype="<f4"),
        np.arange(4, dtype="<f4").reshape(2, 2),
        np.arange(4, dtype="<i8").reshape(2, 2),
        [b"a", b"bcd"],
        [b"longer than before", b""],
        {"score": 0.5},
    ]
    headrace.register(
        "ServeKinds",
        type("K", (), {"forward": lambda self, batch: [
            one.update(result=given[int(one["data"][0])]) for one in batch
        ]}),
        replace=True,
    )  # fmt: skip
    inputs = {"x": {"datatype": "FP32", "shape": [2], "each": False}}
    server = serving({"m": {"config": {"backend": "ServeKinds"}, "inputs": inputs}})

    def ask(kind, **more):
        raw = np.array([kind, 0], "<f4").tobytes()
        return send(server, "m", [("x", "FP32", [2], 8, raw)], **more)

    for kind in (0, 0, 1, 1, 2, 1, 3, 4, 3, 5, 5, 0):
        status, head, raw = ask(kind)
        _, afresh, expected = ask(
            kind, id="not remembered"
        )  # a request with an id is read and written anew
        assert (status, afresh.pop("id"), raw) == (200, "not remembered", expected)
        assert head == afresh
        assert head["outputs"][0]["parameters"]["binary_data_size"] == len(raw)


OPTIONAL = [("a",), ("a", "b"), ("b", "a"), ("a", "c"), ("a", "b", "c")]


@pytest.mark.parametrize("wanted", [None, ["a", "b"], ["b", "a"]])
def test_outputs_that_a_model_may_leave_out_come_and_go(serving, wanted):
    class Optional(headrace.Backend):
        def forward(self, batch):
            for one in batch:
                kind, value = one["data"]
                made = {name: np.full(3, value + ord(name), "<f4") for name in OPTIONAL[int(kind)]}
                one["result"] = made

    headrace.register("ServeOptional", Optional, replace=True)
    port = {"datatype": "FP32", "shape": [3]}
    entry = {
        "config": {"backend": "ServeOptional"},
        "inputs": {"x": {"datatype": "FP32", "shape": [2], "each": False}},
        "outputs": {"a": port, **{name: {**port, "optional": True} for name in "bc"}},
    }
    server = serving({"m": entry})
    more = {} if wanted is None else {"outputs": [{"name": name} for name in wanted]}
    kinds = [*range(5)] * 2 + [0, 0, 0, 1, 1, 1, 0, 3, 3, 4, 2, 2, 0]
    for value, kind in enumerate(kinds):
        raw = np.array([kind, value], "<f4").tobytes()
        status, head, found = send(server, "m", [("x", "FP32", [2], 8, raw)], **more)
        names = [name for name in wanted or "abc" if name in OPTIONAL[kind]]
        assert (status, [output["name"] for output in head["outputs"]]) == (200, names)
        expected = np.repeat([value + ord(name) for name in names], 3)
        assert np.frombuffer(found, "<f4").tolist() == expected.tolist()


def test_what_comes_beside_the_json_is_not_kept(serving):
    seen = []
    headrace.register(
        "ServeContexts",
        type("C", (), {"forward": lambda self, batch: [
            (seen.append(one.get("context")), one.update(result=one["data"]))[1] for one in batch
        ]}),
        replace=True,
    )  # fmt: skip
    server = serving({"m": {**SERVED["other"], "config": {"backend": "ServeContexts"}}})
    raw = bytes(8)
    head = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2],
                     "parameters": {"binary_data_size": 8}}]}
    )  # fmt: skip
    for trace in ("00-a-b-01", None, "00-c-d-01"):
        headers = {"inference-header-content-length": str(len(head))}
        if trace is not None:
            headers["traceparent"] = trace
        url = f"{server.url}/v2/models/m/infer"
        assert httpx.post(url, content=head.encode() + raw, headers=headers).status_code == 200
    assert seen == [{"traceparent": "00-a-b-01"}, None, {"traceparent": "00-c-d-01"}]


@pytest.fixture
def infer(serving):
    """Return a function that sends a call of gRPC, and gives its response or its status with the text."""
    server = serving(SERVED, grpc_port=0)
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        response = message("inference.ModelInferResponse")
        method = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=lambda made: made.SerializeToString(),
            response_deserializer=response.FromString,
        )

        def call(model, shape, *raw, name="x", datatype="FP32", parameters=(), **more):
            made = message("inference.ModelInferRequest")(model_name=model, **more)
            one = made.inputs.add(name=name, datatype=datatype, shape=shape)
            for key, size in parameters:
                one.parameters[key].int64_param = size
            made.raw_input_contents.extend(raw)
            try:
                return method(made, timeout=60)
            except grpc.RpcError as error:
                return error.code().name, error.details()

        yield call


@pytest.mark.parametrize("rows", [1, 10_000])  # a large message is parsed without its tensors
def test_each_call_has_its_own_tensors_id_and_checks(infer, rows):
    for number in range(4):
        data = np.full((rows, 2), number, "<f4").tobytes()
        identifier = f"call {number}" if number % 2 else ""
        got = infer("long", [rows, 2], data, id=identifier)
        assert (got.id, list(got.raw_output_contents)) == (identifier, [data])
    for wrong in ((data[:-4],), (data + b"four",), (b"",), (data, data)):
        assert infer("long", [rows, 2], *wrong)[0] == "INVALID_ARGUMENT"
    assert infer("other", [rows, 2], data)[0] == "INVALID_ARGUMENT"
    for _ in range(3):
        status, text = infer("long", [rows, 2], data, name="z")
        assert (status, "'z'" in text) == ("INVALID_ARGUMENT", True)
    assert list(infer("long", [rows, 2], data).raw_output_contents) == [data]


def test_elements_of_calls_are_read_anew(infer):
    def elements(*texts):
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)

    def ask(raw):
        return infer("texts", [2], raw, name="data", datatype="BYTES")

    for two in ((b"ab", b"cd"), (b"a", b"bcd"), (b"longer than before", b"")):
        assert len(ask(elements(*two)).outputs) == 1
    assert ask(elements(b"bad", b"x"))[0] == "INVALID_ARGUMENT"
    assert ask(elements(b"one"))[0] == "INVALID_ARGUMENT"


def test_what_a_call_says_of_its_own_tensor_is_held_against_it(infer):
    for _ in range(2):
        assert infer("rows", [1, 2], bytes(8), parameters=[("binary_data_size", 8)]).outputs
        status, text = infer("rows", [1, 2], bytes(8), parameters=[("binary_data_size", 9)])
        assert (status, "binary_data_size" in text) == ("INVALID_ARGUMENT", True)


@pytest.mark.parametrize(("count", "kept"), [(256, 256), (257, 1)])
def test_they_are_not_kept_for_ever(count, kept):
    cache = ParsedCache()
    for number in range(count):
        cache.keep(b"%d" % number, ParsedRequest([], None, {}, None))
    assert sum(b"%d" % number in cache.known for number in range(count)) == kept
    cache.keep(bytes(5000), ParsedRequest([], None, {}, None))
    assert bytes(5000) not in cache.known
