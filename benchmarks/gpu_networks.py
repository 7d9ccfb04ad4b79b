"""The networks of scripts for a GPU: random weights, written as ONNX and, where torch is there, as its modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path


def resnet(folder: Path) -> Path:
    """Write ResNet-50, batch normalisation folded in."""
    random = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []

    def conv(source: str, taken: int, given: int, size: int, stride: int, *, relu: bool) -> str:
        number = len(weights) // 2
        scale = np.sqrt(2 / (taken * size * size)) * (1.0 if relu else 0.5)
        kernel = random.standard_normal((given, taken, size, size), np.float32) * np.float32(scale)
        weights.append(numpy_helper.from_array(kernel, f"w{number}"))
        weights.append(numpy_helper.from_array(np.zeros(given, np.float32), f"b{number}"))
        made = f"c{number}"
        pads = [size // 2] * 4
        inputs = [source, f"w{number}", f"b{number}"]
        nodes.append(
            helper.make_node(
                "Conv", inputs, [made], f"conv{number}", pads=pads, strides=[stride] * 2
            )
        )
        if relu:
            nodes.append(helper.make_node("Relu", [made], [f"{made}r"], f"relu{number}"))
            made = f"{made}r"
        return made

    last, taken = conv("x", 3, 64, 7, 2, relu=True), 64
    nodes.append(
        helper.make_node(
            "MaxPool", [last], ["pool"], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
        )
    )
    last = "pool"
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            short = last
            if not block:
                short = conv(last, taken, 4 * inner, 1, stride, relu=False)
            deep = conv(last, taken, inner, 1, 1, relu=True)
            deep = conv(deep, inner, inner, 3, stride, relu=True)
            deep = conv(deep, inner, 4 * inner, 1, 1, relu=False)
            added = f"add{stage}_{block}"
            nodes.append(helper.make_node("Add", [deep, short], [added], added))
            last, taken = f"{added}r", 4 * inner
            nodes.append(helper.make_node("Relu", [added], [last], last))
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["mean"], "mean"))
    nodes.append(helper.make_node("Flatten", ["mean"], ["flat"], "flat"))
    dense = random.standard_normal((taken, 1000), np.float32) * np.float32(taken**-0.5)
    weights.append(numpy_helper.from_array(dense, "dense"))
    nodes.append(helper.make_node("MatMul", ["flat", "dense"], ["y"], "fc"))
    return _saved(folder / "resnet50.onnx", nodes, weights, ["n", 3, "h", "w"], ["n", 1000])


def tiny(folder: Path) -> Path:
    """Write a network of one small matrix: the time of a request is then nearly all the host's work."""
    matrix = np.random.default_rng(0).standard_normal((256, 16), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "m"], ["y"], "fc")]
    weights = [numpy_helper.from_array(matrix, "m")]
    return _saved(folder / "tiny.onnx", nodes, weights, ["n", 256], ["n", 16])


def _saved(path: Path, nodes: Any, weights: Any, takes: Any, gives: Any) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, takes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, gives)],
        weights,
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def in_half(path: Path) -> Path:
    """Write a network of `resnet` that computes in float16, and takes and gives float32."""
    model = onnx.load(path)
    graph = model.graph
    for tensor in graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    for node in graph.node:
        node.input[:] = ["x16" if one == "x" else one for one in node.input]
        node.output[:] = ["y16" if one == "y" else one for one in node.output]
    graph.node.insert(0, helper.make_node("Cast", ["x"], ["x16"], "half", to=TensorProto.FLOAT16))
    graph.node.append(helper.make_node("Cast", ["y16"], ["y"], "full", to=TensorProto.FLOAT))
    half = path.with_name(f"{path.stem}_fp16.onnx")
    onnx.save(model, half)
    return half


def torch_of(path: str, *, tf32: bool) -> Any:
    """Return a network of `resnet` as a module of torch, with the weights of its file.

    Args:
        path: The file.
        tf32: Whether convolutions and products of float32 may be computed in TF32, in all of the process.
    """
    import torch
    from torch.nn import functional

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    graph = onnx.load(path).graph
    run = {
        "Conv": lambda about, *args: functional.conv2d(
            *args, stride=about["strides"], padding=about["pads"][:2]
        ),
        "Relu": lambda _, x: x.relu(),
        "MaxPool": lambda _, x: functional.max_pool2d(x, 3, 2, 1),
        "GlobalAveragePool": lambda _, x: x.mean((2, 3), keepdim=True),
        "Flatten": lambda _, x: x.flatten(1),
        "MatMul": lambda _, x, matrix: x @ matrix,
        "Add": lambda _, x, other: x + other,
    }
    steps = [
        (
            run[node.op_type],
            {one.name: helper.get_attribute_value(one) for one in node.attribute},
            [*node.input],
            node.output[0],
        )
        for node in graph.node
    ]

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for tensor in graph.initializer:
                value = torch.from_numpy(numpy_helper.to_array(tensor).copy())
                self.register_parameter(tensor.name, torch.nn.Parameter(value))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values = {**dict(self.named_parameters()), "x": x}
            for function, about, names, made in steps:
                values[made] = function(about, *(values[name] for name in names))
            return values["y"]

    return Network()


def torch_resnet() -> Any:
    """Return ResNet-50 of torchvision, whose arithmetic is that of `resnet`."""
    import torchvision

    return torchvision.models.resnet50(weights=None)
