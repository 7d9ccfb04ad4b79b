"""Which nodes TensorRT cannot take, with reasons; and the parts of a model that it can."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_trt.library import find_library
from headrace_trt.logs import collecting, logger_for
from headrace_trt.onnx_model import load_model
from headrace_trt.tools.extracting import extract_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import onnx

__all__ = ["Part", "Refused", "capability", "save_parts"]


@dataclass(frozen=True)
class Refused:
    """A node that cannot be taken.

    Attributes:
        node: Its name.
        operator: Its operator.
        reason: What the parser says.
    """

    node: str
    operator: str
    reason: str


@dataclass(frozen=True)
class Part:
    """Neighbouring nodes that are taken, or not, together.

    Attributes:
        supported: Whether TensorRT takes them.
        nodes: Their places in the graph.
    """

    supported: bool
    nodes: tuple[int, ...]


def capability(path: Path, *, library: str = "auto") -> dict[str, Any]:
    """Tell which nodes of a model TensorRT takes; needs no device.

    Returns:
        ``supported`` (all of it), ``refused`` (a dict per node with its reason), ``parts`` (in
        order, the places of their nodes) and the name of the ``library``.

    Raises:
        SetupError: It is no ONNX model.
        MissingDependencyError: TensorRT is not installed.
    """
    found = find_library(library)
    found.require_builder()
    model = load_model(path)
    trt, logger = found.trt, logger_for(found)
    with collecting() as collected:
        builder = trt.Builder(logger)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, logger)
        whole = bool(parser.supports_model_v2(model.SerializeToString(), str(path)))
        parts = []
        for i in range(parser.num_subgraphs):
            nodes = tuple(int(n) for n in parser.get_subgraph_nodes(i))
            parts.append(Part(bool(parser.is_subgraph_supported(i)), nodes))
        refused = _refused(parser, model)
    if not whole and not refused:
        refused = [Refused("", "", collected.text())]
    covered = {place for part in parts for place in part.nodes if part.supported}
    named = {entry.node for entry in refused}
    for place, node in enumerate(model.graph.node):
        if not whole and place not in covered and node.name not in named:
            reason = "it stands in a part that cannot be taken"
            refused.append(Refused(node.name, node.op_type, reason))
    return {
        "library": found.text,
        "supported": whole,
        "nodes": len(model.graph.node),
        "refused": [asdict(entry) for entry in refused],
        "parts": [{"supported": p.supported, "nodes": list(p.nodes)} for p in parts],
    }


def _refused(parser: Any, model: onnx.ModelProto) -> list[Refused]:
    found = {}
    for i in range(parser.num_errors):
        error = parser.get_error(i)
        place = int(error.node())
        node = model.graph.node[place] if 0 <= place < len(model.graph.node) else None
        name = error.node_name() or (node.name if node is not None else "")
        kind = error.node_operator() or (node.op_type if node is not None else "")
        found[name, kind] = Refused(name, kind, str(error.desc()).strip())
    return list(found.values())


def save_parts(path: Path, folder: Path, parts: Sequence[dict[str, Any]]) -> list[Path]:
    """Save the parts that TensorRT takes as models of their own.

    Args:
        path: The model.
        folder: Where they go: ``part0.onnx``, ``part1.onnx``, ...
        parts: The ``parts`` of `capability`.

    Returns:
        The files.

    Raises:
        SetupError: No part is supported.
    """
    model = load_model(path)
    chosen = [part["nodes"] for part in parts if part["supported"]]
    if not chosen:
        raise SetupError(f"TensorRT takes no part of {path}")
    folder.mkdir(parents=True, exist_ok=True)
    saved = []
    for number, places in enumerate(chosen):
        nodes = [model.graph.node[place] for place in places]
        target = folder / f"part{number}.onnx"
        inputs, outputs = borders(model.graph, nodes)
        extract_model(path, target, inputs=inputs, outputs=outputs, fold=False)
        saved.append(target)
    return saved


def borders(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> tuple[list[str], list[str]]:
    """Give the tensors that a set of nodes takes from outside and gives to the outside."""
    weights = {tensor.name for tensor in graph.initializer}
    made = {name for node in nodes for name in node.output}
    inside = {id(node) for node in nodes}
    names = {node.output[0] for node in nodes}
    taken = [name for node in nodes for name in node.input if name]
    inputs = [name for name in dict.fromkeys(taken) if name not in made and name not in weights]
    used = {v.name for v in graph.output}
    for node in graph.node:
        if id(node) not in inside and not (node.output and node.output[0] in names):
            used.update(node.input)
    return inputs, [
        name for name in dict.fromkeys(n for node in nodes for n in node.output) if name in used
    ]
