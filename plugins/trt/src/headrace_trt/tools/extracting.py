"""Extracts a part of an ONNX model as a model of its own, with its constants folded."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import onnx
import onnx.utils

from headrace.errors import MissingDependencyError, SetupError
from headrace_trt.onnx_model import load_model
from headrace_trt.timing import keep_apart

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["extract_model", "fold_constants"]


def extract_model(
    source: Path,
    target: Path,
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
        SetupError: A tensor is unknown, the part needs one that is not among the inputs, or
            ``target`` is the model itself.
        MissingDependencyError: onnx-graphsurgeon is not installed and ``fold`` is set.
    """
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
    weights = {tensor.name for tensor in model.graph.initializer}
    begins = list(inputs) or [v.name for v in model.graph.input if v.name not in weights]
    ends = list(outputs) or [v.name for v in model.graph.output]
    try:
        typed = onnx.shape_inference.infer_shapes(model)
        part = onnx.utils.Extractor(typed).extract_model(begins, ends)
    except Exception as error:  # onnx and protobuf have error classes of their own
        raise SetupError(f"the part of {source} cannot be extracted: {error}") from error
    _refuse_open(part, source)
    if fold:
        part = fold_constants(part)
    target.parent.mkdir(parents=True, exist_ok=True)
    large = part.ByteSize() >= 1_900_000_000
    onnx.save(part, str(target), save_as_external_data=large)
    return part


def _refuse_open(part: onnx.ModelProto, source: Path) -> None:
    """Refuse a part that reads a tensor which no node of it makes; drop inputs that the part does not read."""
    made = {v.name for v in part.graph.input} | {t.name for t in part.graph.initializer}
    made |= {name for node in part.graph.node for name in node.output}
    read = {name for node in part.graph.node for name in node.input if name}
    missing = sorted(read - made)
    if missing:
        raise SetupError(
            f"the part of {source} needs {', '.join(missing)}, which is not among its inputs",
            hint="Name more `inputs`.",
        )
    ends = {v.name for v in part.graph.output}
    kept = [v for v in part.graph.input if v.name in read | ends]
    del part.graph.input[:]
    part.graph.input.extend(kept)


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
