"""Reads what a model file says of itself without loading it: its operators, and the files with its weights."""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.errors import BackendError
from headrace_formats.protobuf import Span, fields, inner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

__all__ = [
    "DEPEND_ON_BATCH",
    "ModelFacts",
    "WeightFiles",
    "read_facts",
    "rows_are_free",
    "warning_of_batch_dependence",
]

DEPEND_ON_BATCH: Final = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
)
"""Operators that take their scale from all rows of a batch: the results of a row depend on the other rows."""


def warning_of_batch_dependence(path: Path, operators: set[str]) -> str | None:
    """Say that the results of a row depend on the other rows of its batch; None where no operator makes them."""
    named = sorted(operators & DEPEND_ON_BATCH)
    if not named:
        return None
    problem = f"{path.name} has {', '.join(named)}, which scales all rows of a batch together"
    return f"{problem}: the results of a request depend on the other requests in its batch. max = 1 runs each alone"


# Fields of the messages of onnx.proto: ModelProto, GraphProto, NodeProto, AttributeProto, TensorProto, FunctionProto.
_GRAPH, _FUNCTION = 7, 25
_NODE, _INITIALIZER, _SPARSE = 1, 5, 15
_OP_TYPE, _ATTRIBUTE = 4, 5
_FUNCTION_NODE = 7
_TENSOR_OF, _GRAPH_OF, _TENSORS_OF, _GRAPHS_OF = 5, 6, 10, 11
_EXTERNAL = 13
_INPUT, _OUTPUT, _PORT_NAME, _TENSOR_NAME = 11, 12, 1, 8
_AXES, _AXIS_NAME = (2, 1, 2, 1), 2  # type, tensor_type, shape, dim; dim_param
_CHILDREN: Final = {
    "model": {_GRAPH: "graph", _FUNCTION: "function"},
    "graph": {_NODE: "node", _INITIALIZER: "tensor", _SPARSE: "sparse"},
    "function": {_FUNCTION_NODE: "node"},
    "node": {_ATTRIBUTE: "attribute"},
    "attribute": {
        _TENSOR_OF: "tensor",
        _TENSORS_OF: "tensor",
        _GRAPH_OF: "graph",
        _GRAPHS_OF: "graph",
    },
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {_EXTERNAL: "entry"},
}


@dataclass
class ModelFacts:
    """What a model file says of itself.

    Attributes:
        operators: The types of all operators, in functions and inner graphs too.
        locations: Paths of files with weights, relative to the model's folder.
    """

    operators: set[str] = field(default_factory=set)
    locations: set[str] = field(default_factory=set)


def read_facts(path: Path) -> ModelFacts:
    """Read a model file; what is no protobuf message (an .ort file) tells nothing."""
    facts = ModelFacts()
    _read(path, lambda content: _walk(content, (0, len(content)), "model", facts))
    return facts


def rows_are_free(path: Path) -> bool:
    """Return whether the first axis of all inputs of a model has any length, and of no output a fixed one.

    Inputs that have an initializer, which older models list as well, do not count. What is no protobuf message (an
    .ort file) does not tell: False.
    """
    return _read(path, _rows_are_free) or False


def _read(path: Path, function: Callable[[mmap.mmap], T]) -> T | None:
    """Return what a function makes of a file's content, None where it is no protobuf message."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return function(content)
    return None


def _rows_are_free(content: mmap.mmap) -> bool:
    graph = inner(content, (0, len(content)), _GRAPH)[0]
    weights = {content[a:b] for a, b in inner(content, graph, _INITIALIZER, _TENSOR_NAME)}
    inputs, outputs = (inner(content, graph, number) for number in (_INPUT, _OUTPUT))
    inputs = [port for port in inputs if _text(content, port, _PORT_NAME) not in weights]
    free = bool(inputs) and all(_first_axis(content, port) is True for port in inputs)
    return free and all(_first_axis(content, port) is not False for port in outputs)


def _first_axis(content: mmap.mmap, port: Span) -> bool | None:
    """Tell whether the first axis of a port is free; None where it has none, or tells no shape."""
    for begin, end in inner(content, port, *_AXES):
        # A fixed length is a number; a name, or nothing, is any length.
        return begin == end or bool(inner(content, (begin, end), _AXIS_NAME))
    return None


def _text(content: mmap.mmap, place: Span, number: int) -> bytes:
    return b"".join(content[a:b] for a, b in inner(content, place, number))


def _walk(content: mmap.mmap, place: Span, kind: str, facts: ModelFacts) -> None:
    if kind == "entry":
        if _text(content, place, 1) == b"location":
            facts.locations.add(os.fsdecode(_text(content, place, 2)))
        return
    if kind == "node":
        facts.operators.add(_text(content, place, _OP_TYPE).decode(errors="replace"))
    for number, value in fields(content, place):
        child = _CHILDREN[kind].get(number)
        if child is not None and isinstance(value, tuple):
            _walk(content, value, child, facts)


class WeightFiles:
    """The files with weights that ONNX Runtime maps into memory: a write to them changes the model.

    Truncating a file would end the process with a bus error. Replacing a file by a rename leaves the mapped file as it
    is.

    Args:
        model: The model's path.
        locations: Paths of the files, relative to the model's folder.
    """

    def __init__(self, model: Path, locations: set[str]) -> None:
        self._files: list[tuple[int, Path, tuple[int, int]]] = []
        for location in sorted(locations):
            path = model.parent / location
            with contextlib.suppress(OSError):  # ONNX Runtime reports missing files
                descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                self._files.append((descriptor, path, _state(descriptor)))

    def check(self) -> None:
        """Refuse to run if a file has changed since it was opened.

        Raises:
            BackendError: A file has another size or time of change.
        """
        for descriptor, path, state in self._files:
            if _state(descriptor) != state:
                raise BackendError(
                    f"{path} was changed while the model that maps it was loaded: its weights are no longer those"
                    " of the model",
                    hint="Load the model again. Write new weights into a file beside it, then rename it.",
                )

    def close(self) -> None:
        """Close the files."""
        files, self._files = self._files, []
        for descriptor, _, _ in files:
            os.close(descriptor)


def _state(descriptor: int) -> tuple[int, int]:
    about = os.fstat(descriptor)
    return about.st_size, about.st_mtime_ns
