"""Converts an ONNX graph from float32 to fp16 or bf16, with casts at the borders between types.

A strongly typed network has the types of its graph, so a precision is chosen by changing the graph.
Every node computes in the lower type, except nodes that have no such type, that lengths of axes follow from, or that
``keep_fp32`` names. Inputs and outputs of the graph keep their types.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from headrace.errors import SetupError
from headrace_trt.libraries.logs import warn
from headrace_trt.onnx_models.files import (
    all_graphs,
    graphs_of,
    infer_types,
    names_read,
    unlist_weights,
)
from headrace_trt.onnx_models.image_input import FOLDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["convert_precision"]


_TYPES: Final = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
_MOST_FP16: Final = 65504.0

_TYPE_IS_AN_ATTRIBUTE: Final = frozenset(
    {
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"),
        *("Bernoulli", "Multinomial", "EyeLike"),
        *("BlackmanWindow", "HammingWindow", "HannWindow"),
    }
)
_IN_FP32: Final = _TYPE_IS_AN_ATTRIBUTE | {
    *("Celu", "DynamicQuantizeLinear", "MeanVarianceNormalization", "NonMaxSuppression", "Range")
}
"""Operators that stay in float32: ONNX or TensorRT's parser has no other type for them, or an attribute is the type."""

_NOT_IN_BF16: Final = frozenset(
    {"ConvTranspose", "GRU", "HardSwish", "LpNormalization", "LpPool", "Mish", "Shrink"}
)
"""Operators that TensorRT takes in fp16, but not in bf16: its parser, or the builder of TensorRT for RTX."""

_SEQUENCE_LENGTHS: Final = 4
"""The input of LSTM with the lengths of its sequences; with it TensorRT's parser takes only float32."""

_FP32_INPUTS: Final = {"Resize": (1, 2), "Upsample": (1,)}
"""Inputs (scales and regions) that stay float32, by operator."""

_OF_LENGTHS: Final = frozenset({"Shape", "Size"})
"""Operators that give lengths of axes. What is computed from those to be a length again needs float32: fp16 skips every
second whole number above 2048, bf16 above 256."""


def convert_precision(
    model: onnx.ModelProto, precision: str, keep_fp32: Sequence[str] = ()
) -> onnx.ModelProto:
    """Convert the float32 nodes of a model to fp16 or bf16.

    Nodes with inner graphs (If, Loop, Scan) stay in float32, and so do operators that have no other type, and nodes
    that compute lengths of axes or scales from lengths of axes. Finite weights beyond the range of fp16 become its
    largest number, with a warning. Weights that are listed among the inputs are weights only in the new model.

    Args:
        model: The model with its weights. It is not changed.
        precision: ``"fp16"`` or ``"bf16"``.
        keep_fp32: Patterns (``*``, ``?``) of names of nodes that stay in float32.

    Returns:
        A new model.

    Raises:
        ValueError: ``precision`` is neither, or ``keep_fp32`` is no list of texts.
        SetupError: A pattern matches no node, or no node is left that could be converted.
    """
    if precision not in _TYPES:
        raise ValueError(f"precision is one of {', '.join(_TYPES)}, not {precision!r}")
    if isinstance(keep_fp32, str) or not all(isinstance(name, str) for name in keep_fp32):
        raise ValueError(f"keep_fp32 must be a list of texts, not {keep_fp32!r}")
    typed = _with_types(model)
    _Conversion(typed.graph, _TYPES[precision], kept_nodes(typed.graph, keep_fp32)).run()
    return typed


def kept_nodes(graph: onnx.GraphProto, patterns: Iterable[str]) -> set[int]:
    """Return the indices of the nodes whose names match ``patterns``.

    Raises:
        SetupError: A pattern matches no node.
    """
    high = set()
    names = [node.name for node in graph.node]
    for pattern in patterns:
        matching = {i for i, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)}
        if not matching:
            named = [name for name in names if name and not name.startswith(FOLDED)]
            raise SetupError(
                f"`keep_fp32` has {pattern!r}, which matches the name of no node",
                hint=f"Names are such as {', '.join(named[:5]) or '(all nodes are nameless)'};"
                " `polygraphy inspect model` lists them.",
            )
        high |= matching
    return high


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give a copy of the model with inferred types of its tensors."""
    copied = onnx.ModelProto()
    try:
        copied = infer_types(model)
    except Exception as error:  # onnx has error classes of its own
        raise SetupError(f"the types in the graph cannot be inferred: {error}") from error
    unlist_weights(copied)
    return copied


class _Conversion:
    """One conversion. Each float32 tensor can get a name in both types; only names that are used are made."""

    def __init__(self, graph: onnx.GraphProto, low: int, kept: set[int]) -> None:
        self.graph = graph
        self.low = low
        self.kept = kept
        self.exact: set[int] = set()  # nodes that stay in float32 because lengths follow from them
        self.floats = _float_tensors(graph)
        self.weights = {t.name: t for t in graph.initializer}
        self.taken = {name for node in graph.node for name in node.output} | set(self.weights)
        self.border = {v.name for v in (*graph.input, *graph.output)}
        self.produced: dict[str, bool] = {
            v.name: True for v in graph.input if v.name in self.floats
        }  # by name: whether a node makes it in float32
        self.needed: dict[tuple[str, bool], str] = {}
        self.clamped = 0

    def run(self) -> None:
        """Rewrite the graph."""
        graph = self.graph
        self._lift_constants()
        nodes = list(graph.node)
        self.exact = self._computing_lengths(nodes)
        converted = 0
        for place, node in enumerate(nodes):
            high = self._stays(place, node)
            converted += not high and node.op_type != "Cast" and self._changes(node)
            self._set_attributes(node, high=high)
            for i, name in enumerate(node.input):
                if name in self.floats:
                    fixed = i in _FP32_INPUTS.get(node.op_type, ())
                    node.input[i] = self._name(name, high=high or fixed)
            for inside in graphs_of(node):
                self._rename_captured(inside)
            for i, name in enumerate(node.output):
                if name in self.floats:
                    self.produced[name] = high
                    node.output[i] = self._name(name, high=high)
        if not converted:
            raise SetupError(
                "the graph has no float32 node that could be converted",
                hint="`keep_fp32` names all that could be: let it name fewer."
                if any(self._changes(nodes[place]) for place in self.kept)
                else "Is it converted already? precision = 'model' takes the graph's own types.",
            )
        for value in graph.output:
            if value.name in self.floats:
                self._name(value.name, high=True)
        self._write(nodes)

    def _stays(self, place: int, node: onnx.NodeProto) -> bool:
        return (
            place in self.kept
            or place in self.exact
            or node.name.startswith(FOLDED)
            or node.op_type in _IN_FP32
            or (node.op_type in _NOT_IN_BF16 and self.low == TensorProto.BFLOAT16)
            or (
                node.op_type == "LSTM"
                and any(node.input[_SEQUENCE_LENGTHS : _SEQUENCE_LENGTHS + 1])
            )
            or next(graphs_of(node), None) is not None
        )

    def _computing_lengths(self, nodes: Sequence[onnx.NodeProto]) -> set[int]:
        """Return the indices of the nodes that compute lengths or scales from lengths of axes and weights alone."""
        fixed = {"", *self.weights}  # tensors that are the same in every run
        lengths: set[str] = set()  # tensors that follow from lengths of axes
        for node in nodes:
            if node.op_type in _OF_LENGTHS:
                lengths.update(node.output)
            elif (node.input or node.op_type == "Constant") and not any(graphs_of(node)):
                of_lengths = not lengths.isdisjoint(node.input)
                if all(name in fixed or name in lengths for name in node.input):
                    (lengths if of_lengths else fixed).update(filter(None, node.output))
        computing: set[int] = set()
        exact: set[str] = set()  # tensors that lengths follow from
        for place in reversed(range(len(nodes))):
            node = nodes[place]
            read = [name for name in names_read(node) if name in self.floats]
            outputs = [name for name in node.output if name]
            scales = [
                node.input[i] for i in _FP32_INPUTS.get(node.op_type, ()) if i < len(node.input)
            ]
            exact.update(name for name in scales if name in lengths)
            ends = not (lengths.isdisjoint(read) or self.floats.issuperset(outputs))
            if (ends and lengths.issuperset(outputs)) or not exact.isdisjoint(outputs):
                computing.add(place)
                exact.update(read)
            elif self._stays(place, node):
                exact.update(name for name in read if name in lengths)
        return computing

    def _changes(self, node: onnx.NodeProto) -> bool:
        return any(name in self.floats for name in (*node.input, *node.output))

    def _name(self, name: str, *, high: bool) -> str:
        """Give the name of a float32 tensor in one of the two types, and note that it is used.

        A tensor keeps its name in the type in which a node makes it, so that `mark_outputs` finds it. Inputs and outputs
        of the graph keep theirs in float32.
        """
        key = (name, high)
        if key not in self.needed:
            own = high if name in self.border else high is self.produced.get(name, False)
            other = name if own else f"{name}/{'fp32' if high else 'low'}"
            while not own and other in self.taken:
                other += "'"
            self.needed[key] = other
        return self.needed[key]

    def _rename_captured(self, inside: onnx.GraphProto) -> None:
        """Let the nodes of an inner graph read outer tensors in float32."""
        for graph in all_graphs(inside):
            own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
            own |= {name for node in graph.node for name in node.output}
            for node in graph.node:
                for i, name in enumerate(node.input):
                    if name in self.floats and name not in own:
                        node.input[i] = self._name(name, high=True)
            for value in graph.output:
                if value.name in self.floats and value.name not in own:
                    value.name = self._name(value.name, high=True)

    def _lift_constants(self) -> None:
        """Turn Constant nodes of type float32 into weights, except those that stay in float32."""
        left = []
        for place, node in enumerate(self.graph.node):
            constant = node.op_type == "Constant" and node.output[0] in self.floats
            if constant and place not in self.kept:
                tensor = _constant_of(node)
                if tensor is not None:
                    tensor.name = node.output[0]
                    self.weights[tensor.name] = tensor
                    continue
            left.append((place, node))
        self.kept = {new for new, (old, _) in enumerate(left) if old in self.kept}
        nodes = [node for _, node in left]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def _set_attributes(self, node: onnx.NodeProto, *, high: bool) -> None:
        if high:
            return
        if node.op_type == "Cast":
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                    attribute.i = self.low
        if node.op_type == "ConstantOfShape" and node.output[0] in self.floats:
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            number = numpy_helper.to_array(value) if value is not None else np.zeros(1, np.float32)
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", self._lower("", number)))

    def _lower(
        self, name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    ) -> onnx.TensorProto:
        """Return a weight in the lower type."""
        if self.low == TensorProto.FLOAT16:
            beyond = np.isfinite(array) & (np.abs(array) > _MOST_FP16)
            self.clamped += int(beyond.sum())
            clipped = np.where(beyond, np.clip(array, -_MOST_FP16, _MOST_FP16), array)
            return numpy_helper.from_array(clipped.astype(np.float16), name)
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        special = ~np.isfinite(array)
        rounded = np.where(special, (bits >> 16).astype(np.uint16), rounded)
        return helper.make_tensor(
            name, TensorProto.BFLOAT16, array.shape, rounded.tobytes(), raw=True
        )

    def _write(self, nodes: list[onnx.NodeProto]) -> None:
        graph, produced = self.graph, self.produced
        others = [t for t in graph.initializer if t.name not in self.floats]
        weights = []
        for name, tensor in self.weights.items():
            if name not in self.floats:
                continue
            if (name, True) in self.needed:
                copied = onnx.TensorProto()
                copied.CopyFrom(tensor)
                copied.name = self.needed[name, True]
                weights.append(copied)
            if (name, False) in self.needed:
                weights.append(self._lower(self.needed[name, False], numpy_helper.to_array(tensor)))
        casts: dict[str, onnx.NodeProto] = {}
        for (name, high), target in self.needed.items():
            if name in produced and produced[name] is not high:
                source = self.needed.get((name, not high), name)
                to = TensorProto.FLOAT if high else self.low
                casts[source] = helper.make_node(
                    "Cast", [source], [target], f"{target}/converted", to=to
                )
        ordered = [casts[v.name] for v in graph.input if v.name in casts]
        for node in nodes:
            ordered.append(node)
            ordered += [casts[name] for name in node.output if name in casts]
        for repeated, items in ((graph.node, ordered), (graph.initializer, [*others, *weights])):
            del repeated[:]
            repeated.extend(items)
        del graph.value_info[:]
        if self.clamped:
            warn(f"{self.clamped} weights are beyond the range of fp16 and became ±65504")


def _float_tensors(graph: onnx.GraphProto) -> set[str]:
    tensors = {
        value.name
        for value in (*graph.input, *graph.output, *graph.value_info)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    return tensors | {t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT}


def _constant_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    for attribute in node.attribute:
        if attribute.name == "value":
            tensor: onnx.TensorProto = attribute.t
            return tensor
        if attribute.name == "value_float":
            return numpy_helper.from_array(np.float32(attribute.f))
        if attribute.name == "value_floats":
            return numpy_helper.from_array(np.asarray(attribute.floats, np.float32))
    return None
