"""Inputs that requests may lack, since the model has values for them; ONNX Runtime itself says what is right."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as http
from onnx_files import write_scaled

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("headrace_ort")


@pytest.fixture
def scaled(tmp_path):
    return write_scaled(tmp_path)


X = np.array([[1, 2], [3, 4]], np.float32)
SENT = [
    {"x": X},
    {"x": X, "scale": np.array(7, np.float32)},
    {"x": X, "shift": X * 10},
    {"shift": X, "scale": np.array(-1, np.float32), "x": X},
]


def expected(path, feeds):
    (y,) = onnxruntime.InferenceSession(path).run(["y"], feeds)
    return y.tolist()


@pytest.fixture
def server(serving, scaled):
    config = {"backend": "OnnxTensor", "model": str(scaled), "max": 4}
    return serving({"m": config}, grpc_port=0)


def over_rest(server, feeds):
    inputs = [
        {"name": n, "datatype": "FP32", "shape": [*a.shape], "data": a.ravel().tolist()}
        for n, a in feeds.items()
    ]
    return httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": inputs})


def over_grpc(server, feeds):
    return answered_over_grpc(server, feeds).tolist()


def answered_over_grpc(server, feeds):
    inputs = []
    for name, array in feeds.items():
        inputs.append(triton.InferInput(name, [*array.shape], "FP32"))
        inputs[-1].set_data_from_numpy(array)
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        return client.infer("m", inputs).as_numpy("y")


def test_an_optional_input_reaches_the_model_where_it_is_sent(server, scaled):
    for feeds in SENT:
        for _ in range(2):  # the second is read as the first was
            (found,) = over_rest(server, feeds).json()["outputs"]
            assert np.reshape(found["data"], found["shape"]).tolist() == expected(scaled, feeds)
            assert over_grpc(server, feeds) == expected(scaled, feeds)


def test_other_inputs_are_required_and_optional_ones_are_checked(server):
    missing = over_rest(server, {"scale": np.array(7, np.float32)})
    assert (missing.status_code, missing.json()["code"]) == (400, "input")
    assert "'x'" in missing.json()["error"]
    wrong = over_rest(server, {"x": X, "scale": np.ones(3, np.float32)})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "input")
    rows = over_rest(server, {"x": X, "shift": X[:1]})
    assert rows.status_code == 400
    assert "rows" in rows.json()["error"]


def test_the_descriptions_say_which_inputs_are_optional(server):
    url = f"{server.url}/v2/models/m"
    mark = {"parameters": {"optional": True}}
    assert httpx.get(url).json()["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "scale", "datatype": "FP32", "shape": [], **mark},
        {"name": "shift", "datatype": "FP32", "shape": [-1, 2], **mark},
    ]
    config = httpx.get(f"{url}/config").json()
    assert config["max_batch_size"] == 4
    listed = [("x", [2], False), ("scale", [], True), ("shift", [2], True)]
    found = [(one["name"], one["dims"], one.get("optional", False)) for one in config["input"]]
    assert found == listed
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        names = [one.name for one in client.get_model_metadata("m").inputs]
        found = client.get_model_config("m").config
    assert names == ["x", "scale", "shift"]
    assert [(one.name, [*one.dims], one.optional) for one in found.input] == listed
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    (infer,) = [one for path, one in paths.items() if path.endswith("versions/1/infer")]
    schema = infer["post"]["requestBody"]["content"]["application/json"]["schema"]
    listed = schema["properties"]["inputs"]
    assert (listed["minItems"], listed["maxItems"]) == (1, 3)
    assert "<td>optional input<td>scale" in httpx.get(f"{server.url}/docs").text


NONE = X[:0]


@pytest.mark.parametrize("ask", [over_rest, answered_over_grpc])
@pytest.mark.parametrize("feeds", [{"x": NONE}, {"x": NONE, "shift": NONE}])
def test_no_rows_are_answered_as_onnx_runtime_answers_them(server, scaled, ask, feeds):
    assert expected(scaled, feeds) == []
    with ThreadPoolExecutor(4) as threads:  # among requests with rows
        others = [threads.submit(ask, server, {"x": X}) for _ in range(8)]
        answers = [threads.submit(ask, server, feeds) for _ in range(8)]
        for one in answers:
            assert shape_and_values(one.result()) == ([0, 2], [])
        for one in others:
            assert shape_and_values(one.result()) == ([2, 2], (2 * X).ravel().tolist())


def shape_and_values(answer):
    if isinstance(answer, np.ndarray):
        return [*answer.shape], answer.ravel().tolist()
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    return output["shape"], output["data"]


def test_no_rows_travel_as_binary_data_and_have_no_classes(server):
    with http.InferenceServerClient(server.url.removeprefix("http://")) as client:
        x = http.InferInput("x", [0, 2], "FP32")
        x.set_data_from_numpy(NONE, binary_data=True)
        for _ in range(2):  # the second time by what was kept of the first
            answer = client.infer("m", [x])
            assert (answer.as_numpy("y").shape, answer.as_numpy("y").dtype) == ((0, 2), np.float32)
        wanted = http.InferRequestedOutput("y", class_count=1)
        assert client.infer("m", [x], outputs=[wanted]).as_numpy("y").size == 0


def test_rows_of_one_input_and_none_of_another_are_refused(server):
    for feeds in ({"x": X, "shift": NONE}, {"x": NONE, "shift": X}):
        assert over_rest(server, feeds).status_code == 400
