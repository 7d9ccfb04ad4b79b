"""Inputs that requests may lack, since the model has values for them; ONNX Runtime itself says what is right."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_files import write_scaled

from headrace.errors import InputError, RequestsFailed

X = np.array([[1, 2], [3, 4]], np.float32)
SEVEN = np.array(7, np.float32)


@pytest.fixture
def scaled(tmp_path):
    pytest.importorskip("headrace_ort")
    return write_scaled(tmp_path)


FEEDS = [
    {},
    {"scale": SEVEN},
    {"shift": X * 10},
    {"scale": np.array(-1, np.float32)},
    {"shift": X, "scale": SEVEN},
    {},
    {"scale": SEVEN},
]


def right(path, feeds):
    onnxruntime = pytest.importorskip("onnxruntime")
    (y,) = onnxruntime.InferenceSession(path).run(["y"], {"x": X, **feeds})
    return y.tolist()


def check_all(pipe, path):
    """Send all requests in one batch, as rows and as samples."""
    rows = [{"data": X, "request_size": 2, **feeds} for feeds in FEEDS]
    pipe(rows)
    assert [one["result"].tolist() for one in rows] == [right(path, feeds) for feeds in FEEDS]
    samples = [
        {"data": X[1], **{n: a[1] if a.ndim else a for n, a in feeds.items()}} for feeds in FEEDS
    ]
    pipe(samples)
    assert [one["result"].tolist() for one in samples] == [right(path, feeds)[1] for feeds in FEEDS]


def test_an_optional_input_reaches_the_model_of_requests_that_bring_it(serving, remote, scaled):
    url = serving({"m": {"backend": "OnnxTensor", "model": str(scaled), "max": 16}})
    pipe = remote([url], max=16)
    check_all(pipe, scaled)
    built = pipe.describe()["nodes"]["main"]["tree"]["built"]
    assert [*built["inputs"]] == ["x"]
    assert built["inputs"]["x"]["key"] == "data"
    about = [(name, o["key"], o["batched"]) for name, o in built["optional_inputs"].items()]
    assert about == [("scale", "scale", False), ("shift", "shift", True)]


def test_a_served_pipeline_of_a_remote_has_the_models_optional_inputs(serving, remote, scaled):
    inner = serving({"m": {"backend": "OnnxTensor", "model": str(scaled), "max": 16}})
    config = {"backend": "Remote", "model": "m", "urls": [inner], "max": 16}
    check_all(remote([serving({"m": config})], max=16), scaled)


def test_a_key_of_ones_own_for_an_optional_input(serving, remote, scaled):
    url = serving({"m": {"backend": "OnnxTensor", "model": str(scaled), "max": 4}})
    pipe = remote([url], inputs={"scale": "factor"})
    request = {"data": X, "request_size": 2, "factor": SEVEN, "scale": np.array(3, np.float32)}
    assert pipe(request)["result"].tolist() == (7 * X).tolist()


TRIPLE = {
    "name": "m",
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "scale", "datatype": "FP32", "shape": [-1]},
        {"name": "shift", "datatype": "FP32", "shape": [-1, 3]},
    ],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
}
CONFIG = {
    "name": "m",
    "max_batch_size": 8,
    "input": [
        {"name": "x", "dims": [3]},
        {"name": "scale", "dims": [-1], "optional": True},  # all of its shape: no batch axis
        {"name": "shift", "dims": [3], "optional": True},
    ],
}


def sent(server):
    """Return the inputs of each call: names, shapes and elements."""
    return sorted(
        [
            (one.name, [*one.shape], np.frombuffer(raw, np.float32).tolist())
            for one, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        ]
        for request, _, _ in server.calls
    )


def test_only_requests_with_equal_optional_inputs_share_a_call(stand_in, remote):
    server = stand_in(metadata=TRIPLE, config=CONFIG)
    two, three = np.float32([2, 2]), np.float32([3])
    more = [{}, {"scale": two}, {"shift": [5, 5, 5]}, {}, {"scale": three}, {"scale": two.copy()}]
    requests = [{"data": [k, k, k], **one} for k, one in enumerate(more)]
    remote([server.url])(requests)
    assert [one["result"].tolist() for one in requests] == [[2 * k] * 3 for k in range(6)]
    assert sent(server) == [
        [("x", [1, 3], [2, 2, 2]), ("shift", [1, 3], [5, 5, 5])],
        [("x", [1, 3], [4, 4, 4]), ("scale", [1], [3])],
        [("x", [2, 3], [0, 0, 0, 3, 3, 3])],
        [("x", [2, 3], [1, 1, 1, 5, 5, 5]), ("scale", [2], [2, 2])],
    ]


def test_an_optional_input_that_does_not_fit_and_a_required_one_that_lacks_are_refused(
    stand_in, remote
):
    server = stand_in(metadata=TRIPLE, config=CONFIG)
    requests = [
        {"data": [1, 1, 1], "scale": np.ones((2, 2), np.float32)},
        {"data": [1, 1, 1], "shift": np.ones((2, 3), np.float32)},
        {"scale": np.float32([2])},
        {"data": [1, 1, 1]},
    ]
    with pytest.raises(RequestsFailed) as caught:
        remote([server.url])(requests)
    errors = caught.value.errors
    assert [type(one) for one in errors] == [InputError] * 3 + [type(None)]
    assert [one.key for one in errors[:3]] == ["scale", "shift", "data"]
    assert requests[3]["result"].tolist() == [2, 2, 2]
    assert sent(server) == [[("x", [1, 3], [1, 1, 1])]]


def test_an_optional_input_named_like_another_key_is_read_by_a_key_of_ones_own_only(
    stand_in, remote
):
    metadata = {**TRIPLE, "inputs": [dict(one) for one in TRIPLE["inputs"]]}
    config = {**CONFIG, "input": [dict(one) for one in CONFIG["input"]]}
    for described in (metadata["inputs"], config["input"]):
        described[1]["name"], described[2]["name"] = "request_id", "data"
    server = stand_in(metadata=metadata, config=config)
    request = {"data": [1, 1, 1], "request_id": "r1", "factor": np.float32([2])}
    assert remote([server.url])(dict(request))["result"].tolist() == [2, 2, 2]
    remote([server.url], inputs={"request_id": "factor"})(dict(request))
    assert sent(server) == [
        [("x", [1, 3], [1, 1, 1])],
        [("x", [1, 3], [1, 1, 1]), ("request_id", [1], [2])],
    ]


def test_where_all_inputs_are_optional_each_request_is_a_call_of_whole_tensors(stand_in, remote):
    config = {**CONFIG, "input": [{**one, "optional": True} for one in CONFIG["input"]]}
    server = stand_in(metadata=TRIPLE, config=config)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    requests = [{"x": rows}, {"x": rows[:1]}]
    remote([server.url])(requests)
    assert [one["result"].tolist() for one in requests] == [(2 * rows).tolist(), [[0, 2, 4]]]
    assert [len(one) for one in sent(server)] == [1, 1]


def test_with_batched_an_optional_input_of_a_model_without_batches_has_rows(stand_in, remote):
    inputs = [{"name": "x", "dims": [-1, 3]}, {"name": "shift", "dims": [-1, 3], "optional": True}]
    metadata = {**TRIPLE, "inputs": [TRIPLE["inputs"][0], TRIPLE["inputs"][2]]}
    server = stand_in(metadata=metadata, config={"name": "m", "max_batch_size": 0, "input": inputs})
    requests = [{"data": [k, k, k], "shift": [9, 9, k]} for k in range(2)]
    remote([server.url], batched=True)(requests)
    assert sent(server) == [
        [("x", [2, 3], [0, 0, 0, 1, 1, 1]), ("shift", [2, 3], [9, 9, 0, 9, 9, 1])]
    ]
