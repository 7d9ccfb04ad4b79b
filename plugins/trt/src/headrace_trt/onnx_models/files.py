"""ONNX files: loads them with their external data, hashes them, and describes their graphs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import onnx
import onnx.inliner
from onnx import numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "add_default_operators",
    "all_graphs",
    "content_hash",
    "external_files",
    "forget_unknown_axes",
    "graphs_of",
    "infer_types",
    "load_model",
    "names_read",
    "unlist_weights",
]

_CHUNK_BYTES = 1 << 20
_FREE_WEIGHTS = 4
"""The version of ONNX's format from which weights need not be inputs of the graph."""

_DEFAULT_OPSET: Final = 13
"""The version of ONNX's operators in a model that names none."""

MOST_BYTES: Final = 1_900_000_000
"""A protobuf message holds less than 2 GB; larger models are files with their weights beside them."""

_LARGE_BYTES: Final = 1 << 16
"""No shape follows from the values of a weight that is larger."""


def load_model(path: Path | str, *, weights: bool = True, inline: bool = True) -> onnx.ModelProto:
    """Load an ONNX model. Weights that it lists among its inputs are weights only, and sparse ones are filled up.

    Args:
        path: The file.
        weights: Whether to read external data too.
        inline: Whether to put the nodes of the model's own functions, which some exporters write, in place of their calls.

    Raises:
        SetupError: The file is no ONNX model, or external data is missing.
    """
    path = Path(path)
    try:
        model = onnx.load(str(path), load_external_data=weights)
    except Exception as error:  # protobuf and onnx have error classes of their own
        if not path.exists():
            raise SetupError(f"there is no model {path}") from error
        if weights:
            external_files(path)  # if a file is missing, its error says which
        raise SetupError(
            f"{path} is no ONNX model that can be read: {error}",
            hint="The file is of another format, or only a part of one."
            if "external" not in str(error).lower()
            else "External data must lie beside the model.",
        ) from error
    if not model.graph.node and not model.graph.output:
        raise SetupError(f"{path} holds no ONNX graph", hint="Is it of another format, or empty?")
    if weights:
        _fill_sparse_weights(model)
    unlist_weights(model)
    if not (inline and model.functions):
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # of protobuf and onnx, as above
        raise SetupError(f"{path}: its functions cannot be put into the graph: {error}") from error


def _fill_sparse_weights(model: onnx.ModelProto) -> None:
    """Write sparse weights in full, because TensorRT's parser passes over them and ONNX infers no shapes from them."""
    for graph in all_graphs(model.graph):
        for sparse in graph.sparse_initializer:
            values, places = map(numpy_helper.to_array, (sparse.values, sparse.indices))
            full = np.zeros(tuple(sparse.dims), values.dtype)
            if places.ndim == 1:
                full.reshape(-1)[places] = values
            else:
                full[tuple(places.T)] = values
            graph.initializer.append(numpy_helper.from_array(full, sparse.values.name))
        del graph.sparse_initializer[:]


def infer_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give a copy of a model with the types and shapes of its inner tensors.

    ONNX infers nothing of a model of 2 GB or more, so it gets large weights without their values.

    Raises:
        Exception: One of onnx's own, where the graph contradicts itself.
    """
    bare = _without(model, "graph")
    bare.graph.CopyFrom(_without(model.graph, "initializer"))
    for tensor in model.graph.initializer:
        large = tensor.ByteSize() > _LARGE_BYTES and tensor.data_location != tensor.EXTERNAL
        bare.graph.initializer.append(_without_values(tensor) if large else tensor)
    typed: onnx.ModelProto = onnx.shape_inference.infer_shapes(bare)
    del bare
    for place, tensor in enumerate(model.graph.initializer):
        typed.graph.initializer[place].CopyFrom(tensor)
    return typed


_Message = TypeVar("_Message", onnx.ModelProto, onnx.GraphProto)


def _without(message: _Message, left_out: str) -> _Message:
    """Give a copy of a message without one of its fields."""
    copied = type(message)()
    for field, value in message.ListFields():
        if field.name == left_out:
            continue
        if isinstance(value, (int, str)):
            setattr(copied, field.name, value)
        else:
            getattr(copied, field.name).MergeFrom(value)
    return copied


def _without_values(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return name, type and shape of a weight, as that of a weight in another file."""
    named = onnx.StringStringEntryProto(key="location", value="weights")
    return onnx.TensorProto(
        name=tensor.name,
        data_type=tensor.data_type,
        dims=tensor.dims,
        data_location=onnx.TensorProto.EXTERNAL,
        external_data=[named],
    )


def unlist_weights(model: onnx.ModelProto) -> None:
    """Remove weights from the inputs of a graph, where the first versions of ONNX's format had to list them.

    TensorRT takes them as weights in either case. A graph that is changed may get new ones, which are in no list.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    for value in [value for value in graph.input if value.name in weights]:
        graph.input.remove(value)
    model.ir_version = max(model.ir_version, _FREE_WEIGHTS)


def add_default_operators(model: onnx.ModelProto) -> None:
    """Let a model that only has operators of other domains, such as plugins, use ONNX's own: casts, say."""
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid("", _DEFAULT_OPSET))


def forget_unknown_axes(model: onnx.ModelProto) -> bool:
    """Remove the name ``?`` from axes. Return whether there were any.

    Some exporters give this name to every axis of unknown length. TensorRT takes axes of one name to have one length,
    so height and width of such a model would have to be equal.
    """
    forgotten = False
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == "?":
                axis.ClearField("dim_param")
                forgotten = True
    return forgotten


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Give a graph and all graphs inside its nodes (of If, Loop and Scan)."""
    waiting = [graph]
    while waiting:
        each = waiting.pop()
        yield each
        for node in each.node:
            waiting.extend(graphs_of(node))


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Return the inner graphs of a node (an If, Loop or Scan)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def names_read(node: onnx.NodeProto) -> list[str]:
    """Return the names of the tensors that a node reads, those included that its inner graphs take from outside."""
    names = [name for name in node.input if name]
    for graph in graphs_of(node):
        known = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        known |= {name for inner in graph.node for name in inner.output}
        read = [name for inner in graph.node for name in names_read(inner)]
        read += [value.name for value in graph.output]
        names += [name for name in read if name not in known]
    return names


def external_files(path: Path) -> list[Path]:
    """Return the files with external data that a model names, sorted.

    Raises:
        SetupError: One of the files does not exist.
    """
    model = load_model(path, weights=False)
    files = set()
    for graph in all_graphs(model.graph):
        tensors = [*graph.initializer, *_attribute_tensors(graph)]
        for tensor in filter(uses_external_data, tensors):
            files.add(path.parent / ExternalDataInfo(tensor).location)
    missing = [file for file in sorted(files) if not file.is_file()]
    if missing:
        raise SetupError(
            f"{path}: its weights in {missing[0].name} are missing",
            hint=f"External data must lie beside the model, in {path.parent}.",
        )
    return sorted(files)


def _attribute_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a model and of its external data, as hexadecimal text.

    Raises:
        SetupError: The file cannot be read as ONNX, or external data is missing.
    """
    digest = hashlib.sha256()
    for file in [path, *external_files(path)]:
        digest.update(hash_file(file).encode())
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of one file, as hexadecimal text."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def port_of(value: onnx.ValueInfoProto) -> dict[str, Any]:
    """Return name, dtype and shape of an input or output of a graph."""
    kind = value.type.tensor_type
    shape: list[int | str | None] | None = None
    if kind.HasField("shape"):
        shape = [
            axis.dim_value if axis.HasField("dim_value") else (axis.dim_param or None)
            for axis in kind.shape.dim
        ]
    return {"name": value.name, "dtype": dtype_name(kind.elem_type), "shape": shape}


def dtype_name(kind: int) -> str:
    """Return the name of an ONNX element type as numpy writes it: ``float32``."""
    name = str(onnx.TensorProto.DataType.Name(kind)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)
