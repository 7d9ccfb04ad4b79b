"""The networks of `detect`, and the decoder, on a GPU, beside the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace_vision import VideoRunner, detect, to_records

pytestmark = pytest.mark.gpu
PICTURE = np.full((128, 128, 3), 51, np.uint8)


@pytest.fixture
def network(tmp_path):
    """A YOLOv8 whose only box lies where the mean of the picture says."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    fixed, moved = np.zeros((2, 6, 84), np.float32)
    fixed[:, 5] = [10, 32, 8, 8, 0, 0.75]
    moved[0, 5] = 100
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["image"], ["mean"], axes=[1, 2, 3], keepdims=1),
            helper.make_node("Squeeze", ["mean"], ["flat"], axes=[3]),
            helper.make_node("Mul", ["flat", "moved"], ["way"]),
            helper.make_node("Add", ["way", "fixed"], ["out"]),
        ],
        "spot",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 64, 64])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 6, 84])],
        [
            helper.make_tensor(name, TensorProto.FLOAT, [1, 6, 84], array.ravel())
            for name, array in (("fixed", fixed), ("moved", moved))
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
    made.ir_version = 8
    onnx.save(made, tmp_path / "spot.onnx")
    return tmp_path / "spot.onnx"


def found_by(model, **arguments):
    (frame,) = detect(model, PICTURE, layout="v8", size=64, labels=["cat", "dog"], **arguments)
    assert frame.error is None
    (record,) = to_records(frame.result)
    return record


def test_an_engine_of_tensorrt_finds_what_its_onnx_file_finds(network):
    trt = pytest.importorskip("headrace_trt")
    pytest.importorskip("tensorrt")
    engine = Path(network).with_suffix(".engine")
    trt.build_engine(trt.BuildSettings(model=network, max=4), engine=engine)
    expected = found_by(network)
    assert expected["class_name"] == "dog"
    record = found_by(engine, device="cuda:0")
    assert record["box"] == pytest.approx(expected["box"], abs=0.1)
    assert record["score"] == pytest.approx(expected["score"], abs=1e-2)


def test_an_onnx_file_runs_where_device_says(network):
    ort = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("needs the build of ONNX Runtime for CUDA")
    expected, record = found_by(network), found_by(network, device="cuda:0")
    assert record["box"] == pytest.approx(expected["box"], abs=0.1)


def test_a_video_that_is_decoded_on_the_gpu_has_the_same_pictures(tmp_path, kit):
    path = kit.render(tmp_path / "street.mp4", count=40, size=(240, 320))
    with VideoRunner({"backend": "Identity"}) as runner:
        plain = list(runner.run(path))
        found = list(runner.run(path, ffmpeg={"hwaccel": "cuda:0"}))
    assert [frame.error for frame in found] == [None] * 40
    for one, other in zip(found, plain, strict=True):
        assert one.timestamp == other.timestamp
        assert np.abs(one.image.astype(int) - other.image).mean() < 1
