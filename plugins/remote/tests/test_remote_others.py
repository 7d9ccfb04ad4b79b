"""Servers that answer otherwise than ours: as Triton, KServe's Python server and MLServer do."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from headrace.errors import SetupError


def tensor(name, datatype, *shape):
    return {"name": name, "datatype": datatype, "shape": shape}


def elements(data):
    """Read BYTES elements, each after its length."""
    found = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


def as_triton(request):
    """Answer with raw contents, and in another order than the metadata: half of x as BF16, and the text reversed."""
    raw = dict(zip((one.name for one in request.inputs), request.raw_input_contents, strict=True))
    rows = request.inputs[0].shape[0]
    x = (np.frombuffer(raw["x"], "<u2").astype("<u4") << 16).view("<f4")
    half = ((x / 2).view("<u4") >> 16).astype("<u2")
    labels = [one[::-1] for one in elements(raw["text"])]
    made = service_pb2.ModelInferResponse(model_name="m", model_version="1")
    made.parameters["triton_final_response"].bool_param = True
    made.outputs.add(name="label", datatype="BYTES", shape=[rows, 1])
    made.raw_output_contents.append(b"".join(struct.pack("<I", len(one)) + one for one in labels))
    made.outputs.add(name="extra", datatype="INT32", shape=[rows])
    made.raw_output_contents.append(bytes(4 * rows))
    made.outputs.add(name="half", datatype="BF16", shape=[rows, 2])
    made.raw_output_contents.append(half.tobytes())
    return made


def test_as_triton_with_a_batch_axis_bf16_bytes_and_outputs_in_another_order(stand_in, remote):
    server = stand_in(
        metadata={
            "name": "m",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [tensor("x", "BF16", -1, 2), tensor("text", "BYTES", -1, 1)],
            "outputs": [tensor("half", "BF16", -1, 2), tensor("label", "BYTES", -1, 1)],
        },
        config={"name": "m", "max_batch_size": 4, "backend": "onnxruntime"},
        usual=as_triton,
    )
    pipe = remote([server.url], **{"Remote::text": True})
    requests = [{"data": 0, "x": [k, -4.0], "text": [f"t{k}"]} for k in range(6)]
    pipe(requests)
    for k, one in enumerate(requests):
        assert one["result"]["half"].tolist() == [k / 2, -2.0]
        assert one["result"]["label"].tolist() == [f"{k}t"]
        assert sorted(one["result"]) == ["half", "label"]
    assert max(one.inputs[0].shape[0] for one, _, _ in server.calls) <= 4
    assert not any(one.HasField("contents") for call, _, _ in server.calls for one in call.inputs)


def as_kserve(request):
    """Answer with typed contents: the sum of each row, and the text as it was."""
    raw = dict(zip((one.name for one in request.inputs), request.raw_input_contents, strict=True))
    x = np.frombuffer(raw["x"], "<f8").reshape(-1, 2)
    made = service_pb2.ModelInferResponse(model_name="m", id=request.id)
    sums = made.outputs.add(name="sum", datatype="FP64", shape=[len(x)])
    sums.contents.fp64_contents.extend(x.sum(axis=1).tolist())
    same = made.outputs.add(name="same", datatype="BYTES", shape=[len(x)])
    same.parameters["content_type"].string_param = "str"
    same.contents.bytes_contents.extend(elements(raw["text"]))
    return made


def test_as_kserve_without_a_configuration_and_with_typed_contents(stand_in, remote):
    server = stand_in(
        metadata={
            "name": "m",
            "platform": "",
            "inputs": [tensor("x", "FP64", -1, 2), tensor("text", "BYTES", -1)],
            "outputs": [tensor("sum", "FP64", -1), tensor("same", "BYTES", -1)],
        },
        usual=as_kserve,
    )
    pipe = remote([server.url])
    requests = [{"data": 0, "x": [k, 0.5], "text": b"t%d" % k} for k in range(5)]
    pipe(requests)
    assert [float(one["result"]["sum"]) for one in requests] == [k + 0.5 for k in range(5)]
    assert [one["result"]["same"] for one in requests] == [b"t%d" % k for k in range(5)]


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_server_that_names_no_tensors_is_refused_with_what_to_do(stand_in, remote, side):
    metadata = {
        "name": "m",
        "inputs": [tensor("x", "FP32", -1, 3)],
        "outputs": [tensor("y", "FP32", -1, 3)],
    }
    server = stand_in(metadata={**metadata, side: []})
    with pytest.raises(SetupError, match=r"names no inputs, or no outputs") as caught:
        remote([server.url])
    assert "get_input_types" in str(caught.value)
    assert "model-settings.json" in str(caught.value)
