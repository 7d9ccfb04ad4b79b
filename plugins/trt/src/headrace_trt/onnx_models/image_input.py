"""Folds mean, standard deviation and the conversion of decoded pictures into an ONNX graph, as nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from headrace.errors import SetupError
from headrace_trt.onnx_models.files import all_graphs, dtype_name, unlist_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FOLDED", "fold_image_input"]

FOLDED = "headrace/"
"""The prefix of the names of nodes that this module adds; these nodes are never converted to fp16."""

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def fold_image_input(
    model: onnx.ModelProto,
    *,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    image_input: bool = False,
) -> onnx.ModelProto:
    """Put ``(x - mean) / std`` behind the image input of a model, and let the input take pictures.

    The image input is the only one of four axes, ``float [N, C, H, W]``. With ``image_input`` the
    model takes ``uint8 [N, H, W, C]`` under the same name, whose samples are those of ``DecodeMat`` and
    ``ResizeMat``. The cast to float32, the transposition, mean and std are nodes of the graph, computed in
    float32, so only a quarter of the bytes is copied to the GPU.

    Args:
        model: The model. It is changed and given back.
        mean: One number, or one per channel, in the units of the resulting input (0..255 for
            pictures). None: 0.
        std: Likewise. None: 1.
        image_input: Whether the input becomes ``uint8 [N, H, W, C]``.

    Raises:
        SetupError: The model has no such input or several, its type is not floating, its channels are the last axis,
            the number of values is not the number of channels, one is not finite, or ``std`` has a 0.
    """
    if mean is None and std is None and not image_input:
        return model
    unlist_weights(model)
    graph = model.graph
    value = _image_of(graph)
    name, kind = value.name, value.type.tensor_type.elem_type
    axes = [_copy(axis) for axis in value.type.tensor_type.shape.dim]
    lengths = [axis.dim_value for axis in axes]
    if image_input and lengths[1] not in (0, 1, 3, 4) and lengths[3] in (1, 3, 4):
        raise SetupError(
            f"`image_input` needs an input [N, C, H, W]; the axes of {name} are {lengths[1:]},"
            " so that its channels seem to be the last",
            hint="Export the model with its channels before height and width.",
        )
    inner = f"{FOLDED}{name}"
    _rename_uses(graph, name, inner)
    nodes: list[onnx.NodeProto] = []
    last = name

    def add(operator: str, *more: str, **attributes: Any) -> None:
        nonlocal last
        output = f"{FOLDED}{name}/{operator.lower()}"
        nodes.append(helper.make_node(operator, [last, *more], [output], output, **attributes))
        last = output

    if image_input:
        value.type.tensor_type.elem_type = TensorProto.UINT8
        del value.type.tensor_type.shape.dim[:]
        value.type.tensor_type.shape.dim.extend([axes[0], axes[2], axes[3], axes[1]])
        # TensorRT computes nothing on uint8: the cast comes first, and is fused with what follows.
        add("Cast", to=TensorProto.FLOAT)
        add("Transpose", perm=[0, 3, 1, 2])
    elif kind != TensorProto.FLOAT:
        add("Cast", to=TensorProto.FLOAT)
    channels = axes[1].dim_value if axes[1].HasField("dim_value") else None
    for operator, option, numbers in (("Sub", "mean", mean), ("Div", "std", std)):
        if numbers is not None:
            constant = f"{FOLDED}{name}/{option}"
            graph.initializer.append(_per_channel(numbers, channels, option, constant))
            add(operator, constant)
    if kind != TensorProto.FLOAT:
        last_cast = helper.make_node("Cast", [last], [inner], f"{inner}/as_before", to=kind)
        nodes.append(last_cast)
    else:
        nodes[-1].output[0] = inner
    for place, node in enumerate(nodes):
        graph.node.insert(place, node)
    return model


def _image_of(graph: onnx.GraphProto) -> onnx.ValueInfoProto:
    images = [value for value in graph.input if len(value.type.tensor_type.shape.dim) == 4]
    if len(images) != 1:
        listed = ", ".join(
            f"{v.name} of {len(v.type.tensor_type.shape.dim)} axes" for v in graph.input
        )
        raise SetupError(
            f"`mean`, `std` and `image_input` need one input of four axes, [N, C, H, W]; there are"
            f" {len(images)} (inputs: {listed})",
            hint="Compute them before the model, or export it with one image input.",
        )
    kind = images[0].type.tensor_type.elem_type
    if kind not in _FLOATS:
        raise SetupError(
            f"`mean`, `std` and `image_input` need a floating type; input {images[0].name!r} is"
            f" {dtype_name(kind)}"
        )
    image: onnx.ValueInfoProto = images[0]
    return image


def _per_channel(
    numbers: Sequence[float] | float, channels: int | None, option: str, name: str
) -> onnx.TensorProto:
    values = np.asarray(numbers, np.float32).reshape(1, -1, 1, 1)
    if values.size != 1 and channels is not None and values.size != channels:
        raise SetupError(
            f"`{option}` has {values.size} numbers for {channels} channels",
            hint="Give one number, or one per channel.",
        )
    if option == "std" and not values.all():
        raise SetupError("`std` has a 0 in it")
    if not np.isfinite(values).all():
        raise SetupError(f"`{option}` has a number that float32 does not hold")
    return numpy_helper.from_array(values, name)


def _rename_uses(graph: onnx.GraphProto, old: str, new: str) -> None:
    for inside in all_graphs(graph):
        for node in inside.node:
            for place, name in enumerate(node.input):
                if name == old:
                    node.input[place] = new
    for value in graph.output:
        if value.name == old:
            raise SetupError(f"the model returns its input {old!r} as an output")


def _copy(axis: onnx.TensorShapeProto.Dimension) -> onnx.TensorShapeProto.Dimension:
    copied = onnx.TensorShapeProto.Dimension()
    copied.CopyFrom(axis)
    return copied
