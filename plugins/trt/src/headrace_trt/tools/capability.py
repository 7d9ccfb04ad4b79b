"""Finds the nodes of a model that TensorRT refuses, with reasons, and the parts of the model that it takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from headrace.errors import SetupError
from headrace_trt.library import find_library
from headrace_trt.logs import collecting, logger_for
from headrace_trt.network import parse_model
from headrace_trt.onnx_model import (
    all_graphs,
    graphs_of,
    infer_types,
    load_model,
    names_read,
    save_model,
)
from headrace_trt.timing import keep_apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace_trt.library import Library

__all__ = ["Refused", "capability", "part_model", "save_parts"]


@dataclass(frozen=True)
class Refused:
    """A node that TensorRT refuses.

    Attributes:
        node: The name of the node.
        operator: The operator of the node.
        reason: The parser's error.
    """

    node: str
    operator: str
    reason: str


def capability(path: Path | str, *, library: str = "auto") -> dict[str, Any]:
    """Find the nodes of a model that TensorRT takes; no device is needed.

    The model is cut at the nodes that the parser refuses, and every part between them is parsed separately, until the
    parser takes all remaining parts.

    Returns:
        ``supported`` (whether it takes the whole model), ``nodes`` (their number), ``refused`` (a dict per refused
        node with its reason), ``parts`` (for each part that it takes, the indices of the nodes, in the order of
        the graph) and the ``library``.

    Raises:
        SetupError: The file is no ONNX model.
        MissingDependencyError: TensorRT is not installed.
    """
    found = find_library(library)
    found.require_builder()
    model = _named(load_model(path))
    try:
        typed = infer_types(model)
    except Exception:  # noqa: BLE001 - parts of which no type is known are refused
        typed = model
    refused: dict[int, Refused] = {}
    errors = _parse(found, model)
    supported = not errors
    refused.update(_placed(model, range(len(model.graph.node)), errors))
    parts = []
    waiting = [] if supported else _runs(range(len(model.graph.node)), refused)
    if supported:
        parts = [list(range(len(model.graph.node)))]
    while waiting:
        part = waiting.pop(0)
        errors = _parse_part(found, typed, part)
        more = _placed(model, part, errors)
        if errors and not more:
            more = {place: _refused_with(model, place, errors[0].reason) for place in part}
        refused.update(more)
        if more:
            waiting = [*_runs(part, refused), *waiting]
        else:
            parts.append(part)
    return {
        "library": found.text,
        "supported": supported,
        "nodes": len(model.graph.node),
        "refused": [asdict(refused[place]) for place in sorted(refused)],
        "parts": sorted(parts),
    }


def _named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return names to nodes without a name, since the parser's errors refer to nodes by name.

    Domains that the model uses but does not import are added, because otherwise no types are inferred.
    """
    known = {entry.domain for entry in model.opset_import}
    for number, graph in enumerate(all_graphs(model.graph)):
        prefix = f"graph_{number}/" if number else ""
        for place, node in enumerate(graph.node):
            node.name = node.name or f"{prefix}node_{place}"
            if node.domain not in known:
                known.add(node.domain)
                model.opset_import.append(onnx.helper.make_opsetid(node.domain, 1))
    return model


def _parse(library: Library, model: onnx.ModelProto) -> list[Refused]:
    """Parse a model and give every error of the parser."""
    trt, logger = library.trt, logger_for(library)
    with collecting() as collected:
        builder = trt.Builder(logger)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, logger)
        if parse_model(parser, model):
            return []
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        refused = [
            Refused(str(e.node_name()), str(e.node_operator()), str(e.desc()).strip())
            for e in errors
        ]
    return refused or [Refused("", "", collected.text())]


def _placed(
    model: onnx.ModelProto, places: Sequence[int], errors: Sequence[Refused]
) -> dict[int, Refused]:
    by_name = {name: place for place in places for name in _names_inside(model.graph.node[place])}
    return {by_name[error.node]: error for error in errors if error.node in by_name}


def _names_inside(node: onnx.NodeProto) -> Iterator[str]:
    """Give the names of a node and of the nodes of its inner graphs, which the parser's errors name."""
    yield node.name
    for graph in graphs_of(node):
        for inside in graph.node:
            yield from _names_inside(inside)


def _refused_with(model: onnx.ModelProto, place: int, reason: str) -> Refused:
    node = model.graph.node[place]
    return Refused(node.name, node.op_type, reason)


def _runs(places: Sequence[int], refused: Mapping[int, Refused]) -> list[list[int]]:
    """Return the runs of consecutive nodes, in the order of the graph, that contain no refused node.

    A path between two nodes of a run passes only nodes between them in that order, which belong to the run too. So a
    run can be cut out as a whole.
    """
    runs: list[list[int]] = []
    last = None
    for place in places:
        if place in refused:
            last = None
            continue
        if last is None:
            runs.append([])
        runs[-1].append(place)
        last = place
    return runs


def _parse_part(library: Library, typed: onnx.ModelProto, part: Sequence[int]) -> list[Refused]:
    try:
        return _parse(library, part_model(typed, part))
    except SetupError as error:
        return [Refused("", "", error.what)]


def part_model(typed: onnx.ModelProto, part: Sequence[int]) -> onnx.ModelProto:
    """Return some nodes of a model, whose types are inferred, as a model of their own.

    Raises:
        SetupError: The type of a tensor that the nodes take is not known.
    """
    nodes = [typed.graph.node[place] for place in part]
    inputs, outputs = borders(typed.graph, nodes)
    values = {v.name: v for v in (*typed.graph.input, *typed.graph.output, *typed.graph.value_info)}
    unknown = [name for name in inputs if name not in values]
    if unknown:
        raise SetupError(f"the type of {', '.join(unknown)}, which it takes, is not known")
    read = {name for node in nodes for name in names_read(node)}
    graph = onnx.helper.make_graph(
        nodes,
        "part",
        [values[name] for name in inputs],
        [values.get(name) or onnx.ValueInfoProto(name=name) for name in outputs],
        [tensor for tensor in typed.graph.initializer if tensor.name in read],
    )
    return onnx.helper.make_model(
        graph, opset_imports=list(typed.opset_import), ir_version=typed.ir_version
    )


def save_parts(path: Path | str, folder: Path | str, parts: Sequence[Sequence[int]]) -> list[Path]:
    """Save the parts that TensorRT takes as models of their own.

    Args:
        path: The model.
        folder: The folder for the files ``part0.onnx``, ``part1.onnx``, ...
        parts: The ``parts`` of `capability`.

    Returns:
        The files.

    Raises:
        SetupError: There is no part, or the file of one would overwrite the model.
    """
    if not parts:
        raise SetupError(f"TensorRT takes no part of {path}")
    path, folder = Path(path), Path(folder)
    targets = [folder / f"part{number}.onnx" for number in range(len(parts))]
    for target in targets:
        keep_apart(target, {"the model": path})
    typed = infer_types(_named(load_model(path)))
    folder.mkdir(parents=True, exist_ok=True)
    for target, part in zip(targets, parts, strict=True):
        save_model(part_model(typed, part), target)
    return targets


def borders(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> tuple[list[str], list[str]]:
    """Return the tensors that a set of nodes reads from other nodes or inputs, and those that others read from it."""
    weights = {tensor.name for tensor in graph.initializer}
    made = {name for node in nodes for name in node.output}
    inside = {id(node) for node in nodes}
    names = {node.output[0] for node in nodes}
    taken = [name for node in nodes for name in names_read(node)]
    inputs = [name for name in dict.fromkeys(taken) if name not in made and name not in weights]
    used = {v.name for v in graph.output}
    for node in graph.node:
        if id(node) not in inside and not (node.output and node.output[0] in names):
            used.update(names_read(node))
    return inputs, [
        name for name in dict.fromkeys(n for node in nodes for n in node.output) if name in used
    ]
