"""Graphs in a lower precision: what TensorRT's parser takes in float32, it takes converted."""

import numpy as np
import onnx
import pytest
from gpu_helpers import expected_of
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from headrace_trt import BuildSettings, convert_precision, fold_image_input
from headrace_trt.building.network import make_network, prepare_model
from headrace_trt.libraries.logs import collecting, logger_for
from headrace_trt.onnx_models import files as onnx_model
from headrace_trt.onnx_models.files import load_model

W = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def constant(name, value):
    return helper.make_node(
        "Constant", [], [name], f"{name}_node", value=numpy_helper.from_array(value)
    )


BETWEEN = {
    "Range": [
        *(
            constant(*pair)
            for pair in (("s", np.float32(0)), ("l", np.float32(4)), ("d", np.float32(1)))
        ),
        helper.make_node("Range", ["s", "l", "d"], ["r"]),
        helper.make_node("Mul", ["x", "r"], ["h"]),
    ],
    "HannWindow": [
        constant("n", np.int64(4)),
        helper.make_node("HannWindow", ["n"], ["r"]),
        helper.make_node("Mul", ["x", "r"], ["h"]),
    ],
    "RandomNormalLike": [
        helper.make_node("RandomNormalLike", ["x"], ["r"], dtype=T.FLOAT),
        helper.make_node("Mul", ["x", "r"], ["h"]),
    ],
    "RandomUniformLike": [
        helper.make_node("RandomUniformLike", ["x"], ["r"]),
        helper.make_node("Mul", ["x", "r"], ["h"]),
    ],
    "MeanVarianceNormalization": [
        helper.make_node("MeanVarianceNormalization", ["x"], ["h"], axes=[1])
    ],
    **{
        name: [helper.make_node(name, ["x"], ["h"], **more)]
        for name, more in (
            ("Celu", {}),
            ("HardSwish", {}),
            ("Mish", {}),
            ("Shrink", {"lambd": 0.5}),
            ("LpNormalization", {"axis": 1}),
        )
    },
}


def network_from(library, path, **settings):
    with collecting() as collected:
        found = BuildSettings(model=path, **settings)
        return make_network(library, logger_for(library), found, collected)


def network_of(library, path, nodes, **settings):
    ports = [helper.make_tensor_value_info(name, T.FLOAT, ["b", 4]) for name in "xy"]
    last = helper.make_node("MatMul", ["h", "w"], ["y"], "last")
    weights = [numpy_helper.from_array(W, "w")]
    graph = helper.make_graph([*nodes, last], "graph", ports[:1], ports[1:], weights)
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return network_from(library, path, **settings)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("operator", BETWEEN)
def test_operators_without_a_lower_type_stay_in_float32(rtx, tmp_path, operator, precision):
    network = network_of(rtx, tmp_path / "m.onnx", BETWEEN[operator], precision=precision)
    types = network.tensor_types()
    assert {"fp16": "HALF", "bf16": "BF16"}[precision] in types
    outputs = [
        network.definition.get_output(0).dtype.name,
        network.definition.get_input(0).dtype.name,
    ]
    assert outputs == ["FLOAT", "FLOAT"]


def test_a_tensor_keeps_its_name_in_the_type_in_which_it_is_made(rtx, tmp_path):
    """`mark_outputs` names tensors of the model, whatever `keep_fp32` does to their types."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Exp", ["a"], ["b"], "second"),
        constant("c", np.float32([1, 2, 3, 1e6])),
        helper.make_node("Add", ["b", "c"], ["h"], "third"),
    ]
    keep = {"keep_fp32": ("first", "second", "c_node")}
    marks = {"mark_outputs": ("a", "b", "h")}
    network = network_of(rtx, tmp_path / "m.onnx", nodes, precision="fp16", **keep, **marks)
    given = [network.definition.get_output(i) for i in range(network.definition.num_outputs)]
    types = {tensor.name: tensor.dtype.name for tensor in given}
    assert types == {"y": "FLOAT", "a": "FLOAT", "b": "FLOAT", "h": "HALF"}


@pytest.mark.parametrize("precision", ["model", "fp16", "bf16"])
def test_functions_of_the_model_are_part_of_the_graph(rtx, tmp_path, precision):
    """Exporters write functions with constants inside, which have the graph's types only where they are in the graph."""
    body = [constant("k", np.float32(2)), helper.make_node("Mul", ["a", "k"], ["o"], "times")]
    opset = [helper.make_opsetid("", 18)]
    function = helper.make_function("own", "Twice", ["a"], ["o"], body, opset)
    ports = [helper.make_tensor_value_info(name, T.FLOAT, ["b", 4]) for name in "xy"]
    nodes = [
        helper.make_node("Twice", ["x"], ["h"], "call", domain="own"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "last"),
    ]
    graph = helper.make_graph(
        nodes, "graph", ports[:1], ports[1:], [numpy_helper.from_array(W, "w")]
    )
    imports = [*opset, helper.make_opsetid("own", 1)]
    path = tmp_path / "m.onnx"
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)
    onnx.save(model, path)
    inlined = onnx.inliner.inline_local_functions(model)
    (name,) = {node.name for node in inlined.graph.node if node.op_type == "Mul"}
    keep = {"keep_fp32": (name,)} if precision != "model" else {}
    network = network_from(rtx, path, precision=precision, mark_outputs=("h",), **keep)
    given = [network.definition.get_output(i) for i in range(2)]
    assert {tensor.name: tensor.dtype.name for tensor in given} == {"y": "FLOAT", "h": "FLOAT"}
    lower = {"model": set(), "fp16": {"HALF"}, "bf16": {"BF16"}}[precision]
    assert network.tensor_types() >= lower


def test_what_is_no_precision_and_no_list_of_patterns(listed):
    for precision in ("fp15", "int8", None):
        with pytest.raises(ValueError, match=f"precision is one of fp16, bf16, not {precision!r}"):
            convert_precision(listed, precision)
    for patterns in ("first", [1]):
        with pytest.raises(ValueError, match="keep_fp32 must be a list of texts"):
            convert_precision(listed, "fp16", patterns)


@pytest.mark.parametrize("precision", ["model", "fp16"])
@pytest.mark.parametrize("flat", [True, False])
def test_sparse_weights_are_filled_up(rtx, tmp_path, precision, flat):
    """TensorRT's parser passes over them, and then misses them."""
    values = numpy_helper.from_array(np.float32([3, -2]), "w")
    places = np.array([1, 14]) if flat else np.array([[0, 1], [3, 2]])
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places), [4, 4])
    ports = [helper.make_tensor_value_info(name, T.FLOAT, ["b", 4]) for name in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "last")]
    graph = helper.make_graph(nodes, "graph", ports[:1], ports[1:])
    graph.sparse_initializer.append(sparse)
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    network = network_from(rtx, path, precision=precision)
    assert {"model": "FLOAT", "fp16": "HALF"}[precision] in network.tensor_types()
    (y,) = expected_of(load_model(path), x=np.float32([[1, 2, 3, 4]]))
    np.testing.assert_array_equal(y, [[0, 3, -8, 0]])


@pytest.mark.parametrize("settings", [{"precision": "fp16"}, {"mean": (5.0,)}])
def test_a_model_of_plugins_alone_gets_onnx_s_operators(tmp_path, settings):
    ports = [helper.make_tensor_value_info(name, T.FLOAT, [1, 3, 4, 4]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Own", ["x"], ["y"], "own", domain="own")], "graph", ports[:1], ports[1:]
    )
    own = [helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=own, ir_version=8), tmp_path / "m.onnx")
    onnx.checker.check_model(prepare_model(BuildSettings(model=tmp_path / "m.onnx", **settings)))


def test_a_model_that_no_message_holds(rtx, small_net, monkeypatch):
    """Types are inferred without the values of large weights, and the model travels in files."""
    whole, infer = small_net.stat().st_size, onnx.shape_inference.infer_shapes

    def infer_less(model):
        assert model.ByteSize() < whole // 2
        return infer(model)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", infer_less)
    for name, least in (("MOST_BYTES", 100), ("_LARGE_BYTES", 300)):
        monkeypatch.setattr(onnx_model, name, least)
    profile = {"max": "x:1x3x8x8"}
    network = network_from(rtx, small_net, precision="fp16", profiles=(profile,))
    assert "HALF" in network.tensor_types()


@pytest.fixture
def listed():
    """Return a model in the first version of the format, in which every weight is also an input."""
    shapes = {"x": ["b", 3, 2, 2], "k": [4, 3, 1, 1], "y": ["b", 4, 2, 2]}
    ports = {
        name: helper.make_tensor_value_info(name, T.FLOAT, axes) for name, axes in shapes.items()
    }
    kernel = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3, 1, 1), "k")
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["y"], "last"),
    ]
    graph = helper.make_graph(nodes, "graph", [ports["x"], ports["k"]], [ports["y"]], [kernel])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_weights_that_are_listed_among_the_inputs_are_converted(rtx, tmp_path, listed, precision):
    path = tmp_path / "m.onnx"
    onnx.save(listed, path)
    network = network_from(rtx, path, precision=precision)
    assert [port.name for port in network.inputs] == ["x"]
    assert {"fp16": "HALF", "bf16": "BF16"}[precision] in network.tensor_types()


def test_changed_models_in_the_first_format_are_valid_and_compute_the_same(listed):
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    (y,) = expected_of(listed, x=x)
    converted = convert_precision(listed, "fp16")
    folded = fold_image_input(listed, mean=2.0)
    for model, given in ((converted, x), (folded, x + 2)):
        onnx.checker.check_model(model)
        np.testing.assert_array_equal(expected_of(model, x=given)[0], y)


def doubled(scaling):
    """Make a model that doubles all axes, whose lengths are computed as floats, and multiplies by a weight."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=T.FLOAT),
        constant("one", np.float32([1, 1, 1, 1])),
        helper.make_node("Add", ["one", "one"], ["two"]),
        helper.make_node("Mul", ["f", "two"], ["m"]),
        *scaling,
        helper.make_node("Mul", ["r", "w"], ["y"], "last"),
    ]
    shapes = {"x": ["b", 1, "h", "w"], "y": ["b", 1, "h2", "w2"]}
    ports = [helper.make_tensor_value_info(name, T.FLOAT, axes) for name, axes in shapes.items()]
    weights = [numpy_helper.from_array(np.float32([3]), "w")]
    graph = helper.make_graph(nodes, "graph", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LENGTHS = {
    "sizes": [
        helper.make_node("Floor", ["m"], ["l"]),
        helper.make_node("Cast", ["l"], ["i"], to=T.INT64),
        helper.make_node("Resize", ["x", "", "", "i"], ["r"], mode="nearest"),
    ],
    "scales": [
        helper.make_node("Div", ["m", "f"], ["d"]),
        helper.make_node("Resize", ["x", "", "d"], ["r"], mode="nearest"),
    ],
}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("scaling", LENGTHS)
def test_lengths_are_computed_in_float32(rtx, tmp_path, scaling, precision):
    """3001 is no number of fp16 (next to it: 3000), nor of bf16."""
    model = doubled(LENGTHS[scaling])
    converted = convert_precision(model, precision)
    lower = {"fp16": T.FLOAT16, "bf16": T.BFLOAT16}[precision]
    assert [t.name for t in converted.graph.initializer if t.data_type == lower] == ["w"]
    onnx.checker.check_model(converted)
    x = np.ones((1, 1, 3, 3001), np.float32)
    if precision == "fp16":  # ONNX Runtime has no bf16 on the CPU
        (y,) = expected_of(converted, x=x)
        np.testing.assert_array_equal(y, expected_of(model, x=x)[0])
        assert y.shape == (2, 2, 6, 6002)
    onnx.save(model, tmp_path / "m.onnx")
    profile = {"min": "x:1x1x3x4", "max": "x:1x1x3x3001"}
    network = network_from(rtx, tmp_path / "m.onnx", precision=precision, profiles=(profile,))
    assert {"fp16": "HALF", "bf16": "BF16"}[precision] in network.tensor_types()
