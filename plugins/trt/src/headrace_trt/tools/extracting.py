"""Extracts a part of an ONNX model as a model of its own, with its constants folded."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from headrace.errors import MissingDependencyError, SetupError
from headrace_trt.onnx_model import infer_types, load_model, names_read, save_model
from headrace_trt.timing import keep_apart

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["extract_model", "fold_constants"]


def extract_model(
    source: Path | str,
    target: Path | str,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    fold: bool = True,
) -> onnx.ModelProto:
    """Save the part of a model between tensors.

    Args:
        source: The model.
        target: The file for the part.
        inputs: Names of the tensors at which the part begins; none: the model's inputs that are needed.
        outputs: Names of the tensors at which the part ends; none: the model's outputs.
        fold: Whether constants are folded (with onnx-graphsurgeon).

    Returns:
        The part.

    Raises:
        TypeError: ``inputs`` or ``outputs`` is a text, not a list.
        SetupError: A tensor is unknown, the part needs one that is not among the inputs, or
            ``target`` is the model itself.
        MissingDependencyError: onnx-graphsurgeon is not installed and ``fold`` is set.
    """
    source, target = Path(source), Path(target)
    if isinstance(inputs, str) or isinstance(outputs, str):
        raise TypeError("inputs and outputs are lists of names")
    keep_apart(target, {"the model": source})
    model = load_model(source)
    known = {v.name for v in (*model.graph.input, *model.graph.output)}
    known |= {name for node in model.graph.node for name in node.output if name}
    for name in (*inputs, *outputs):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SetupError(
                f"{source} has no tensor {name!r}",
                hint=f"Did you mean {near[0]!r}?"
                if near
                else "`headrace trt inspect` lists the tensors.",
            )
    begins = list(inputs) or [v.name for v in model.graph.input]
    ends = list(outputs) or [v.name for v in model.graph.output]
    try:
        typed = infer_types(model)
    except Exception as error:  # onnx and protobuf have error classes of their own
        raise SetupError(f"the part of {source} cannot be extracted: {error}") from error
    part = _between(typed, list(dict.fromkeys(begins)), list(dict.fromkeys(ends)), source)
    if fold:
        part = fold_constants(part)
    target.parent.mkdir(parents=True, exist_ok=True)
    save_model(part, target)
    return part


def _between(
    typed: onnx.ModelProto, begins: Sequence[str], ends: Sequence[str], source: Path
) -> onnx.ModelProto:
    """Return the nodes between tensors as a model, with the inputs that they read.

    Raises:
        SetupError: The nodes need a tensor that is not among the inputs, or the type of an input is not known.
    """
    graph = typed.graph
    maker = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    places: set[int] = set()
    read: set[str] = set()
    waiting = list(ends)
    while waiting:
        name = waiting.pop()
        if name in read:
            continue
        read.add(name)
        place = None if name in begins else maker.get(name)
        if place is not None and place not in places:
            places.add(place)
            waiting += names_read(graph.node[place])
    nodes = [graph.node[place] for place in sorted(places)]
    made = {name for node in nodes for name in node.output}
    missing = sorted(read - made - set(begins) - set(weights))
    if missing:
        raise SetupError(
            f"the part of {source} needs {', '.join(missing)}, which is not among its inputs",
            hint="Name more `inputs`.",
        )
    values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
    inputs = [name for name in begins if name in read]
    untyped = [name for name in inputs if name not in values]
    if untyped:
        raise SetupError(f"the type of {', '.join(untyped)} in {source} is not known")
    part = onnx.helper.make_graph(
        nodes,
        graph.name or "part",
        [values[name] for name in inputs],
        [values.get(name) or onnx.ValueInfoProto(name=name) for name in ends],
        [tensor for name, tensor in weights.items() if name in read],
        value_info=[v for v in graph.value_info if v.name in made and v.name not in ends],
    )
    return onnx.helper.make_model(
        part, opset_imports=list(typed.opset_import), ir_version=typed.ir_version
    )


def fold_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Compute the nodes that depend on constants only, and remove nodes whose results are not used.

    Raises:
        MissingDependencyError: onnx-graphsurgeon is not installed.
    """
    try:
        import onnx_graphsurgeon
    except ImportError as error:
        raise MissingDependencyError(
            f"folding constants needs onnx-graphsurgeon ({error})",
            distribution="headrace-trt",
            hint='`pip install "headrace-trt[tools]"` brings it.',
        ) from error
    graph = onnx_graphsurgeon.import_onnx(model)
    graph.fold_constants().cleanup().toposort()
    folded: onnx.ModelProto = onnx_graphsurgeon.export_onnx(graph)
    folded.ir_version = min(folded.ir_version, model.ir_version) or model.ir_version
    return folded
