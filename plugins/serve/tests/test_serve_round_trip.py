"""Every value goes there and back, and what is malformed is an error of the client, never one of ours."""

from __future__ import annotations

import http.client
import json
import math
import random
import re
import runpy
import socket
from pathlib import Path

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.utils import triton_to_np_dtype

from headrace.errors import InputError
from headrace_serve import Server
from headrace_serve.datatypes import from_json
from headrace_serve.grpc.messages import message
from headrace_tensors import bf16_bits

MUTATIONS = runpy.run_path(str(Path(__file__).with_name("mutations.py")))

DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "BF16", "BYTES",
)  # fmt: skip
RANKS = (1, 2, 3)
SHAPES = {
    rank: hnp.array_shapes(min_dims=rank, max_dims=rank, min_side=0, max_side=4) for rank in RANKS
}


def served():
    """A model per datatype and rank, and one with an input of each kind."""
    models = {}
    for datatype in DATATYPES:
        for rank in RANKS:
            port = {"datatype": datatype, "shape": [-1] * rank}
            models[f"{datatype}{rank}"] = {
                "config": {"backend": "Identity"},
                "inputs": {"x": {**port, "each": False}},
                "outputs": {"y": port},
            }
    return models


def test_floats_are_rounded_to_bf16_as_ml_dtypes_does():
    below = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], "<u4")
    every = (np.arange(1 << 16, dtype="<u4")[:, None] << 16 | below).reshape(-1).view("<f4")
    numbers = every[~np.isnan(every)]
    expected = numbers.astype(ml_dtypes.bfloat16).view("<u2")
    assert (bf16_bits(numbers) == expected).all()
    assert np.isnan(bf16_bits(every[np.isnan(every)]).view(ml_dtypes.bfloat16)).all()


@pytest.fixture(scope="module")
def server():
    with Server(served(), port=0, grpc_port=0) as made:
        yield made


@pytest.fixture(scope="module")
def clients(server):
    with (
        over_http.InferenceServerClient(f"127.0.0.1:{server.port}") as http_client,
        over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc_client,
    ):
        yield http_client, grpc_client


def arrays(datatype, shape, *, text=False):
    """Arrays of a datatype, as numpy holds them."""
    if datatype == "BYTES":
        elements = st.text(st.characters(codec="utf-8")) if text else st.binary(max_size=9)
        return hnp.arrays(object, shape, elements=elements, fill=st.nothing())
    if datatype == "BF16":
        bits = hnp.arrays(np.uint16, shape)
        return bits.map(lambda array: array.view(ml_dtypes.bfloat16)).filter(no_signal)
    return hnp.arrays(triton_to_np_dtype(datatype), shape)


def no_signal(array):
    """Whether it holds no signalling NaN, which becomes a quiet one when it is made a float32."""
    return not np.isnan(array.astype(np.float32)).any()


@st.composite
def tensors(draw, *, as_json=False):
    known = [one for one in DATATYPES if one not in ("FP16", "BF16")] if as_json else DATATYPES
    datatype, rank = draw(st.sampled_from(known)), draw(st.sampled_from(RANKS))
    array = draw(SHAPES[rank].flatmap(lambda shape: arrays(datatype, shape, text=as_json)))
    if as_json and array.dtype.kind == "f":
        array = np.nan_to_num(array)
    return datatype, rank, array


def sent(kind, datatype, array, **how):
    made = kind.InferInput("x", list(array.shape), datatype)
    made.set_data_from_numpy(array, **how)
    return made


def check_same(got, array):
    """Compare bit by bit: a NaN is the same NaN, and -0.0 is not 0.0."""
    assert got.shape == array.shape
    if array.dtype == object:
        whole = [one.encode() if isinstance(one, str) else one for one in array.flat]
        assert [one.encode() if isinstance(one, str) else one for one in got.flat] == whole
        return
    if array.size:
        assert got.dtype == array.dtype
    assert got.astype(array.dtype).tobytes() == array.tobytes()


@settings(max_examples=60)
@given(tensors())
def test_binary_tensors_over_rest_and_grpc(clients, tensor):
    datatype, rank, array = tensor
    over_rest, over_channel = clients
    name = f"{datatype}{rank}"
    check_same(over_rest.infer(name, [sent(over_http, datatype, array)]).as_numpy("y"), array)
    check_same(over_channel.infer(name, [sent(over_grpc, datatype, array)]).as_numpy("y"), array)


def extremes(test):
    """Add what each kind of number can just hold to the examples of a test."""
    for name in DATATYPES[1:9]:
        dtype = triton_to_np_dtype(name)
        limits = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        test = example((name, 1, limits), False, False)(test)
    return test


@settings(max_examples=40)
@extremes
@given(tensors(as_json=True), st.booleans(), st.booleans())
def test_tensors_as_json(clients, tensor, binary_in, binary_out):
    datatype, rank, array = tensor
    asked = over_http.InferRequestedOutput("y", binary_data=binary_out)
    given_ = sent(over_http, datatype, array, binary_data=binary_in)
    got = clients[0].infer(f"{datatype}{rank}", [given_], outputs=[asked]).as_numpy("y")
    if not binary_in and not binary_out and array.dtype.kind == "f":
        array = array + np.zeros((), array.dtype)  # JSON has no -0 in every writer
        got = got + np.zeros((), array.dtype)
    check_same(got, array)


@given(hnp.arrays(np.float32, 5))
def test_floats_become_the_nearest_bf16(array):

    with np.errstate(over="ignore"):
        wanted = array.astype(ml_dtypes.bfloat16)
    got = bf16_bits(array).view(ml_dtypes.bfloat16)
    numbers = ~np.isnan(array)
    assert (np.isnan(got) == ~numbers).all()
    assert (got.view("u2") == wanted.view("u2"))[numbers].all()


@settings(max_examples=50)
@given(tensors(as_json=True))
def test_nested_lists_are_the_same_as_flat_ones(server, tensor):
    datatype, rank, array = tensor
    if not array.size:
        return  # lists do not tell the shape of what is empty
    body = {
        "inputs": [
            {"name": "x", "shape": array.shape, "datatype": datatype, "data": array.tolist()}
        ]
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", f"/v2/models/{datatype}{rank}/infer", json.dumps(body))
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, found
    assert found["outputs"][0]["shape"] == list(array.shape)
    got = found["outputs"][0]["data"]
    assert (np.array(got, array.dtype) == array.reshape(-1)).all()


MIXED = ("FP32", "INT64", "BYTES")


@settings(max_examples=40)
@given(
    st.data(),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.permutations(range(3)),
)
def test_binary_and_json_mixed_in_one_request(mixed, data, binary_in, binary_out, order):
    drawn = [
        data.draw(SHAPES[2].flatmap(lambda shape, d=datatype: arrays(d, shape, text=True)))
        for datatype in MIXED
    ]
    drawn[0] = np.nan_to_num(drawn[0])
    inputs, outputs = [], []
    for index in order:
        one = over_http.InferInput(f"in{index}", list(drawn[index].shape), MIXED[index])
        one.set_data_from_numpy(drawn[index], binary_data=binary_in[index])
        inputs.append(one)
        outputs.append(over_http.InferRequestedOutput(f"out{index}", binary_data=binary_out[index]))
    result = mixed.infer("mixed", inputs, outputs=outputs)
    found = [one["name"] for one in result.get_response()["outputs"]]
    assert found == [f"out{index}" for index in order]
    for index in range(3):
        got, wanted = result.as_numpy(f"out{index}"), drawn[index]
        if wanted.dtype.kind == "f":
            got, wanted = got + np.float32(0), wanted + np.float32(0)
        check_same(got, wanted)


@pytest.fixture(scope="module")
def mixed():
    import headrace

    class Several(headrace.Backend):
        reads = tuple(f"in{i}" for i in range(3))
        max = 8

        def forward(self, batch):
            for request in batch:
                request["result"] = {f"out{i}": request[f"in{i}"] for i in range(3)}

    headrace.register("ServeSeveral", Several, replace=True)

    def ports(side, **more):
        return {
            f"{side}{i}": {"datatype": one, "shape": [-1, -1], **more}
            for i, one in enumerate(MIXED)
        }

    model = {
        "config": {"backend": "ServeSeveral"},
        "inputs": ports("in", each=False),
        "outputs": ports("out"),
    }
    with (
        Server({"mixed": model}, port=0) as server,
        over_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
    ):
        yield client


@pytest.fixture(scope="module")
def strict():
    with Server(MUTATIONS["models"](), port=0, grpc_port=0) as made:
        yield made


def test_the_bodies_that_are_changed_are_right_before(strict):
    for model, document, raw in MUTATIONS["json_requests"]():
        head = json.dumps(document).encode()
        assert post(strict, model, head + raw, str(len(head)))[0] == 200
    with grpc.insecure_channel(f"127.0.0.1:{strict.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for data in MUTATIONS["grpc_requests"](message("inference.ModelInferRequest")):
            assert infer(data)


def post(server, model, body, length=None, connection=None):
    own = connection or http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {} if length is None else {"Inference-Header-Content-Length": length}
    own.request("POST", f"/v2/models/{model}/infer", body, headers)
    answer = own.getresponse()
    found = answer.status, answer.read()
    if connection is None:
        own.close()
    return found


OUTCOMES = ((200, ""), (400, "input"), (504, "deadline"))


def test_mutated_bodies_are_errors_of_the_client(strict, held_bytes):
    made = random.Random(20)
    connection = http.client.HTTPConnection("127.0.0.1", strict.port)
    counts = dict.fromkeys((200, 400, 504), 0)
    for number in range(3000):
        model, body, length = MUTATIONS["rest_body"](made)
        status, answer = post(strict, model, body, length, connection)
        code = "" if status == 200 else json.loads(answer)["code"]
        # A timeout may become one of 1 us, which is over at once.
        assert (status, code) in OUTCOMES, (number, body, length, answer)
        counts[status] += 1
    connection.close()
    assert min(counts[200], counts[400]) > 100  # both kinds were among them
    assert held_bytes(strict) == 0


def status_of(call, data):
    try:
        call(data)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def test_mutated_messages_are_errors_of_the_client(strict, held_bytes):
    made = random.Random(21)
    right = MUTATIONS["grpc_requests"](message("inference.ModelInferRequest"))
    counts = dict.fromkeys(("OK", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED"), 0)
    with grpc.insecure_channel(f"127.0.0.1:{strict.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for number in range(1000):
            data = MUTATIONS["changed_bytes"](made, made.choice(right))
            status = status_of(infer, data)
            assert status in counts, (number, data)
            counts[status] += 1
    assert min(counts["OK"], counts["INVALID_ARGUMENT"]) > 10
    assert held_bytes(strict) == 0


@pytest.mark.parametrize(
    "shape",
    [
        [2**31, 2**31],
        [2**31, 2**31, 0],
        [2**39, 0],
        [2**39],
        [1] * 32,
        [1] * 33,
        [2**63 - 1],
        [-1],
        [True],
    ],
)
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16"])
def test_a_shape_is_compared_with_the_elements_before_anything_is_allocated(
    strict, shape, datatype
):
    for more in ({"data": []}, {"data": [1]}, {"parameters": {"binary_data_size": 0}}):
        one = {"name": "x", "shape": shape, "datatype": datatype, **more}
        head = json.dumps({"inputs": [one]}).encode()
        assert post(strict, "rows", head, str(len(head)))[0] == 400


@pytest.mark.parametrize(
    ("shape", "data", "flat"),
    [
        ((2, 2), [[1, 2], [3, 4]], [1, 2, 3, 4]), ((2, 2), [1, 2, 3, 4], [1, 2, 3, 4]), ((), [5], [5]),
        ((1, 1), [[1]], [1]), ((1, 1), [1], [1]), ((0, 3), [], []), ((2, 0), [[], []], []), ((2, 0), [], []),
        ((1,), [[1]], None), ((), [[5]], None), ((), [], None), ((2,), [[], []], None), ((0,), [[]], None),
        ((2, 2), [[1, 2], [3]], None), ((2, 2), [[1, 2], 3, 4], None), ((2, 2), [1, [2], 3, 4], None),
        ((2, 2), [[[1], [2]], [[3], [4]]], None), ((3,), [[]] * 7, None), ((4, 1), [[1, 2], [3, 4]], None),
    ],
)  # fmt: skip
def test_lists_in_json_are_as_the_shape_says(shape, data, flat):
    for datatype, cast in (("INT16", int), ("FP64", float), ("BYTES", None)):
        sent = data if cast else json.loads(re.sub(r"(\d)", r'"\1"', json.dumps(data)))
        if flat is None:
            with pytest.raises(InputError):
                from_json("x", datatype, shape, sent)
            continue
        found = from_json("x", datatype, shape, sent)
        assert found.shape == shape
        assert found.reshape(-1).tolist() == [cast(n) if cast else str(n).encode() for n in flat]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"inputs":' + "[" * 900 + "]" * 900 + "}",
                                  '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":' + "[" * 500
                                  + "1" + "]" * 500 + "}]}"], ids=["lists", "objects", "inputs", "data"])  # fmt: skip
def test_depth_is_an_error_not_the_end_of_the_stack(strict, text):
    status, answer = post(strict, "rows", text.encode())
    assert status == 400
    assert json.loads(answer)["error"]
    assert post(strict, "rows", b"{}")[0] == 400  # it lives


def test_what_is_no_http_ends_its_connection_alone(strict):
    made = random.Random(22)
    good = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in range(100):
        data = MUTATIONS["changed_bytes"](made, good)
        with socket.create_connection(("127.0.0.1", strict.port), timeout=60) as one:
            one.sendall(data + b"\r\n\r\n")
            one.shutdown(socket.SHUT_WR)
            answer = b""
            while part := one.recv(1 << 16):
                answer += part
        assert not answer or answer.startswith(b"HTTP/1.1 "), (data, answer)
        assert b" 500 " not in answer[:20], (data, answer)
    assert not math.isnan(post(strict, "rows", b"{}")[0])
