"""What is done to an ONNX graph, against ONNX Runtime on the CPU."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

from headrace.errors import SetupError
from headrace_trt import (
    BuildSettings,
    build_engine,
    convert_precision,
    fold_image_input,
    quantize,
)
from headrace_trt.onnx_models.files import content_hash, load_model
from headrace_trt.onnx_models.quantization import read_samples

onnxruntime = pytest.importorskip("onnxruntime")


def run(model, **feeds):
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


@pytest.fixture
def x():
    return np.random.default_rng(5).standard_normal((2, 3, 12, 10)).astype(np.float32)


def test_fp16_keeps_inputs_outputs_and_answers(small_net, x):
    model = load_model(small_net)
    (expected,) = run(model, x=x)
    converted = convert_precision(model, "fp16")
    (got,) = run(converted, x=x)
    assert got.dtype == np.float32
    assert 0 < np.abs(got - expected).max() <= 1e-2 * np.abs(expected).max()
    assert {tensor.data_type for tensor in converted.graph.initializer} == {T.FLOAT16}
    ports = [*converted.graph.input, *converted.graph.output]
    assert [port.type.tensor_type.elem_type for port in ports] == [T.FLOAT] * 2
    weights = {tensor.data_type for tensor in model.graph.initializer}
    assert weights == {T.FLOAT}, "the model was changed"


def test_bf16_weights_are_the_nearest(small_net):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = load_model(small_net)
    converted = convert_precision(model, "bf16")
    by_name = {t.name.partition("/")[0]: t for t in converted.graph.initializer}
    for weight in model.graph.initializer:
        expected = onnx.numpy_helper.to_array(weight).astype(ml_dtypes.bfloat16)
        found = by_name[weight.name]
        assert found.data_type == T.BFLOAT16
        assert np.frombuffer(found.raw_data, np.uint16).tolist() == (
            expected.view(np.uint16).ravel().tolist()
        )


def test_what_stays_in_fp32(small_net, x):
    model = load_model(small_net)
    converted = convert_precision(model, "fp16", ["matmul_*"])
    kinds = {t.name: t.data_type for t in converted.graph.initializer}
    assert kinds == {"w": T.FLOAT16, "m/fp32": T.FLOAT} or sorted(kinds.values()) == [1, 10]
    run(converted, x=x)
    with pytest.raises(SetupError, match="matches the name of no node") as caught:
        convert_precision(model, "fp16", ["matmull"])
    assert "conv_0" in caught.value.hint
    with pytest.raises(SetupError, match="no float32 node"):
        convert_precision(convert_precision(model, "fp16", []), "fp16", ["*"])


def test_graphs_inside_nodes_and_scales_of_resizing_stay_as_they_are():
    branch = [
        helper.make_graph(
            [helper.make_node(op, ["h", "k"], [f"{op}_out"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_out", T.FLOAT, [1, 1, 4, 4])],
        )
        for op in ("Add", "Mul")
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Resize", ["x", "", "scales"], ["h"], mode="nearest"),
            helper.make_node("Constant", [], ["k"], value_float=3.0),
            helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
            helper.make_node("Constant", [], ["zero"], value_float=0.0),
            helper.make_node("Greater", ["sum", "zero"], ["positive"]),
            helper.make_node(
                "If", ["positive"], ["i"], then_branch=branch[0], else_branch=branch[1]
            ),
            helper.make_node("Mul", ["i", "big"], ["y"]),
            helper.make_node("Identity", ["i"], ["i_out"]),
        ],
        "graph",
        [helper.make_tensor_value_info("x", T.FLOAT, [1, 1, 2, 2])],
        [
            helper.make_tensor_value_info("y", T.FLOAT, [1, 1, 4, 4]),
            helper.make_tensor_value_info("i_out", T.FLOAT, [1, 1, 4, 4]),
        ],
        [
            onnx.numpy_helper.from_array(np.float32([1, 1, 2, 2]), "scales"),
            onnx.numpy_helper.from_array(np.float32([1e-3]), "big"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    converted = convert_precision(model, "fp16")
    for sign in (1, -1):
        x = sign * np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
        for expected, got in zip(run(model, x=x), run(converted, x=x), strict=True):
            assert got.dtype == expected.dtype == np.float32
            assert np.allclose(got, expected, rtol=2e-3)


@pytest.mark.parametrize("first", ["fp16", "bf16"])
def test_a_graph_that_was_converted_before(small_net, x, first):
    """Another conversion takes what is left in float32, and gives its tensors names that are free."""
    model = load_model(small_net)
    whole = convert_precision(model, first)
    with pytest.raises(SetupError, match="converted already"):
        convert_precision(whole, "fp16")
    part = convert_precision(model, "fp16", ["matmul_*"])
    again = convert_precision(part, "fp16")
    (got,), (expected,) = run(again, x=x), run(model, x=x)
    assert np.abs(got - expected).max() <= 1e-2 * np.abs(expected).max()


def test_keeping_every_node_in_fp32_is_told_as_such(small_net):
    with pytest.raises(SetupError, match="`keep_fp32` names all that could be"):
        convert_precision(load_model(small_net), "fp16", ("*",))


def test_weights_beyond_fp16_are_warned_of(save, caplog, rtx, tmp_path):
    path = save(
        [("Add", ["x", "w"], ["y"], {})],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2])],
        [("w", np.float32([1e9, -np.inf]))],
    )
    (got,) = run(convert_precision(load_model(path), "fp16"), x=np.zeros((1, 2), np.float32))
    assert got.tolist() == [[65504, -np.inf]]
    assert "1 weights are beyond the range" in caplog.text
    # The sidecar keeps it for whoever takes the plan from the cache.
    settings = BuildSettings(model=path, precision="fp16", max=2)
    for _ in range(2):
        built = build_engine(settings, library=rtx, engine=tmp_path / "clamped.plan")
        assert any("beyond the range" in warning for warning in built.sidecar["warnings"])
    assert built.hit


@pytest.mark.parametrize("image_input", [False, True])
@pytest.mark.parametrize(
    ("mean", "std"), [((10.0, 20.0, 30.0), (2.0,)), (None, (4.0, 5.0, 6.0)), ((7.0,), None)]
)
def test_mean_and_std_against_numpy(small_net, image_input, mean, std):
    pictures = np.random.default_rng(2).integers(0, 256, (2, 9, 8, 3), np.uint8)
    planar = pictures.transpose(0, 3, 1, 2).astype(np.float32)
    moved = planar - np.float32(mean or [0]).reshape(1, -1, 1, 1)
    scaled = moved / np.float32(std or [1]).reshape(1, -1, 1, 1)
    (expected,) = run(load_model(small_net), x=scaled)
    single = std[0] if std is not None and len(std) == 1 else std
    folded = fold_image_input(load_model(small_net), mean=mean, std=single, image_input=image_input)
    (got,) = run(folded, x=pictures if image_input else planar)
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    half = convert_precision(folded, "fp16")
    (got,) = run(half, x=pictures if image_input else planar)
    assert np.abs(got - expected).max() <= 1e-2 * np.abs(expected).max()
    if image_input:
        (port,) = half.graph.input
        kind = port.type.tensor_type
        axes = [axis.dim_param or axis.dim_value for axis in kind.shape.dim]
        assert (kind.elem_type, axes) == (T.UINT8, ["n", "h", "w", 3])


def test_what_cannot_be_folded(small_net, save):
    with pytest.raises(SetupError, match="2 numbers for 3 channels"):
        fold_image_input(load_model(small_net), mean=(1.0, 2.0))
    with pytest.raises(SetupError, match="a 0"):
        fold_image_input(load_model(small_net), std=(1.0, 0.0, 1.0))
    with pytest.raises(SetupError, match="`mean` has a number that float32 does not hold"):
        fold_image_input(load_model(small_net), mean=float("nan"))
    path = save(
        [("Relu", ["x"], ["y"], {})], [("x", T.FLOAT, ["n", 2])], [("y", T.FLOAT, ["n", 2])]
    )
    with pytest.raises(SetupError, match="one input of four axes"):
        fold_image_input(load_model(path), image_input=True)
    last = ["n", 16, 24, 3]
    path = save([("Relu", ["x"], ["y"], {})], [("x", T.FLOAT, last)], [("y", T.FLOAT, last)])
    with pytest.raises(SetupError, match="channels seem to be the last"):
        fold_image_input(load_model(path), image_input=True)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_calibrated_graphs_answer_as_before(small_net, tmp_path, x, precision):
    np.savez(tmp_path / "samples.npz", x=np.concatenate([x] * 3))
    model = load_model(small_net)
    quantized = quantize(model, precision, tmp_path / "samples.npz")
    assert "QuantizeLinear" in {node.op_type for node in quantized.graph.node}
    assert quantize(quantized, precision, None) is quantized
    (expected,), (got,) = run(model, x=x), run(quantized, x=x)
    limit = 0.05 if precision == "int8" else 0.15
    assert np.abs(got - expected).max() <= limit * np.abs(expected).max()


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_outputs_do_not_end_at_the_largest_value_of_the_samples(save, tmp_path, precision):
    weights = [("w", np.ones((2, 1), np.float32)), ("v", np.float32([[2]]))]
    layers = [("MatMul", ["x", "w"], ["h"], {}), ("MatMul", ["h", "v"], ["y"], {})]
    ports = [("h", T.FLOAT, ["n", 1]), ("y", T.FLOAT, ["n", 1])]
    np.savez(tmp_path / "samples.npz", x=np.eye(2, dtype=np.float32))  # both give h = 1
    found = []
    for count in (1, 2):
        path = save(layers[:count], [("x", T.FLOAT, ["n", 2])], ports[:count], weights[:count])
        quantized = quantize(load_model(path), precision, tmp_path / "samples.npz")
        found.append(run(quantized, x=np.float32([[1, 1]])))
    np.testing.assert_allclose(found[0], [[[2]]], rtol=1e-3)
    np.testing.assert_allclose(
        found[1], [[[1]], [[2]]], rtol=1e-3
    )  # h is the input of a layer, too


def test_samples_for_calibration(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((1, 2)))
    np.savez(tmp_path / "b.npz", x=np.zeros((1, 2)))
    assert [s["x"].tolist() for s in read_samples(tmp_path, ["x"])] == [[[1, 1]], [[0, 0]]]
    with pytest.raises(SetupError, match="inputs x, y"):
        read_samples(tmp_path, ["x", "y"])
    np.savez(tmp_path / "whole.npz", x=np.zeros((3, 2)), y=np.zeros((3, 1)))
    assert len(read_samples(tmp_path / "whole.npz", ["x", "y"])) == 3
    with pytest.raises(SetupError, match="lacks input 'z'"):
        read_samples(tmp_path / "whole.npz", ["x", "z"])
    for y in (np.zeros((2, 1)), np.float32(0)):
        np.savez(tmp_path / "uneven.npz", x=np.zeros((3, 2)), y=y)
        with pytest.raises(SetupError, match="as many as the others"):
            read_samples(tmp_path / "uneven.npz", ["x", "y"])
    np.savez(tmp_path / "nan.npz", x=np.float32([[0], [np.nan]]))
    with pytest.raises(SetupError, match="sample 1 of input 'x' has a number that is not finite"):
        read_samples(tmp_path / "nan.npz", ["x"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SetupError, match="no calibration samples"):
        read_samples(tmp_path / "empty", ["x"])


def test_samples_that_cannot_be_read_are_told_without_advice_to_unpickle_them(tmp_path):
    np.savez(tmp_path / "objects.npz", x=np.array([None], object))
    (tmp_path / "text.npz").write_bytes(b"text")
    np.savez(tmp_path / "whole.npz", x=np.zeros((3, 2)))
    (tmp_path / "torn.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-30])
    (tmp_path / "empty.npz").touch()
    for name in ("objects", "text", "torn", "empty"):
        with pytest.raises(SetupError, match=rf"{name}\.npz holds no arrays") as caught:
            read_samples(tmp_path / f"{name}.npz", ["x"])
        assert "pickle" not in str(caught.value)


def test_external_data_is_part_of_the_content(save):
    weights = np.float32([[1, 2], [3, 4]])
    nodes = [("MatMul", ["x", "w"], ["y"], {})]
    ports = [("x", T.FLOAT, ["n", 2])], [("y", T.FLOAT, ["n", 2])]
    saving = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    path = save(nodes, *ports, [("w", weights)], **saving)
    before = content_hash(path)
    assert before == content_hash(path)
    (path.parent / "w.bin").write_bytes((weights + 1).tobytes())
    assert content_hash(path) != before
    (path.parent / "w.bin").unlink()
    with pytest.raises(SetupError, match=r"w\.bin are missing"):
        content_hash(path)
    with pytest.raises(SetupError, match=r"w\.bin are missing"):
        load_model(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\x07"])
def test_what_is_no_model(tmp_path, content):
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(SetupError, match=r"broken\.onnx"):
        load_model(path)
