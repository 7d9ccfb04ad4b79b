"""Lists of 0, 1 and n finds, as ``each`` gives them: declared outputs keep their datatype and their axes."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

import headrace

POINTS = {
    "find": {"backend": "ServeListFind", "next": "point"},
    "point": {"backend": "ServeListPoint", "each": "data:data"},
}
WORDS = {
    "find": {"backend": "ServeListFind", "next": "word"},
    "word": {"backend": "ServeListUpper", "each": "data:data"},
}

headrace.register("ServeListFind", lambda text: text.decode().split())
headrace.register("ServeListPoint", lambda word: np.full(3, len(word), np.float32))
headrace.register("ServeListUpper", str.upper)
headrace.register("ServeListLengths", lambda text: [len(word) for word in text.decode().split()])


def model(config, datatype, shape, *, each=True):
    # Without items one request has one text: the input is a tensor of one element.
    text = {"datatype": "BYTES", "shape": [-1], "each": each, "key": "data"}
    result = {"datatype": datatype, "shape": shape}
    return {"config": config, "inputs": {"text": text}, "outputs": {"result": result}}


def asked(server, texts, name="m"):
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return httpx.post(f"{server.url}/v2/models/{name}/infer", json={"inputs": [tensor]})


@pytest.mark.parametrize(
    ("config", "datatype", "shape", "texts", "right", "data"),
    [
        (POINTS, "FP32", [-1, -1, 3], ["one two"], [1, 2, 3], [3.0] * 6),
        (POINTS, "FP32", [-1, -1, 3], ["seven"], [1, 1, 3], [5.0] * 3),
        (POINTS, "FP32", [-1, -1, 3], [""], [1, 0, 3], []),
        (POINTS, "FP32", [-1, -1, 3], ["", ""], [2, 0, 3], []),
        (POINTS, "FP32", [-1, -1, 3], ["a bc", "d ef"], [2, 2, 3], [1.0] * 3 + [2.0] * 3 + [1.0] * 3 + [2.0] * 3),
        (WORDS, "BYTES", [-1, -1], ["one two"], [1, 2], ["ONE", "TWO"]),
        (WORDS, "BYTES", [-1, -1], ["one"], [1, 1], ["ONE"]),
        (WORDS, "BYTES", [-1, -1], [""], [1, 0], []),
        (WORDS, "BYTES", [-1, -1], ["a", "b"], [2, 1], ["A", "B"]),
        ({"backend": "ServeListLengths"}, "INT64", [-1, -1], ["one three"], [1, 2], [3, 5]),
        ({"backend": "ServeListLengths"}, "INT64", [-1, -1], ["one"], [1, 1], [3]),
        ({"backend": "ServeListLengths"}, "INT64", [-1, -1], [""], [1, 0], []),
        ({"backend": "ServeListFind"}, "BYTES", [-1, -1], ["", ""], [2, 0], []),
    ],
)  # fmt: skip
def test_no_find_one_and_several_have_the_declared_datatype_and_axes(
    serving, config, datatype, shape, texts, right, data
):
    answer = asked(serving({"m": model(config, datatype, shape)}), texts)
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"] == [
        {"name": "result", "datatype": datatype, "shape": right, "data": data}
    ]


def test_items_with_unequal_numbers_of_finds_are_an_error_that_says_which_lengths(serving):
    server = serving({"m": model(POINTS, "FP32", [-1, -1, 3])})
    answer = asked(server, ["one two", "three four", "five"])
    assert answer.status_code == 400
    text = answer.json()["error"]
    assert "'result' is [2, 3] for item 0, and [1, 3] for item 2" in text
    assert "requests of their own" in text


@pytest.mark.parametrize(("count", "right"), [(0, [0, 2]), (1, [1, 2]), (3, [3, 2])])
def test_a_list_that_is_the_result_of_a_whole_request_has_the_declared_axes_over_grpc(
    serving, count, right
):
    headrace.register("ServePairs", lambda _: [np.arange(2, dtype="f4")] * count, replace=True)
    served = model({"backend": "ServePairs"}, "FP32", [-1, 2], each=False)
    server = serving({"m": served}, grpc_port=0)
    text = triton.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"x"], object))
    with triton.InferenceServerClient(server.grpc_url.removeprefix("grpc://")) as client:
        found = client.infer("m", [text]).as_numpy("result")
    assert found.shape == tuple(right)
    np.testing.assert_array_equal(found, np.tile(np.arange(2, dtype="f4"), (count, 1)))


@pytest.mark.parametrize("result", [[np.zeros(2, "f4"), np.zeros(3, "f4")], [[1.0], [2.0, 3.0]]])
def test_a_list_of_unequal_finds_is_no_tensor(serving, result):
    headrace.register("ServeUnequal", lambda _: result, replace=True)
    server = serving({"m": model({"backend": "ServeUnequal"}, "FP32", [-1, -1, -1])})
    answer = asked(server, ["x"])
    assert (answer.status_code, answer.json()["code"]) == (500, "contract")
