"""Reads the inputs and outputs that an ONNX file names, without loading it: its weights may be gigabytes."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace_formats.protobuf import Span, fields, inner

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Port", "ports_of"]

_GRAPH, _INITIALIZER, _INPUT, _OUTPUT = 7, 5, 11, 12
_NAME, _TENSOR_NAME = 1, 8
_TENSOR, _ELEMENT, _SHAPE, _DIM, _LENGTH = (2, 1), 1, 2, 1, 1
"""Fields of onnx.proto: ModelProto, GraphProto, ValueInfoProto, TensorProto, TypeProto."""
_TYPES: Final = {1: "FLOAT", 6: "INT32", 7: "INT64", 10: "FLOAT16", 11: "DOUBLE", 16: "BFLOAT16"}


class Port(NamedTuple):
    """An input or output.

    Attributes:
        type: The name of its type in onnx.proto, as ``INT64``, or its number.
        shape: The length of each axis, None where it is free. None: the file does not tell.
    """

    type: str
    shape: list[int | None] | None

    def __str__(self) -> str:
        """Return type and shape, as ``INT64 [?, 128]``."""
        lengths = ("?" if length is None else str(length) for length in self.shape or ())
        return f"{self.type} [{', '.join(lengths)}]"


def ports_of(path: Path) -> tuple[dict[str, Port], dict[str, Port]]:
    """Return the inputs and the outputs of a model, by name. An input that has a value in the file is none.

    Raises:
        ValueError: It is no ONNX file.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            (graph,) = inner(content, (0, len(content)), _GRAPH)
            tensors = inner(content, graph, _INITIALIZER)
            values = {_text(content, tensor, _TENSOR_NAME) for tensor in tensors}
            inputs, outputs = (
                {
                    _text(content, port, _NAME): _port(content, port)
                    for port in inner(content, graph, kind)
                }
                for kind in (_INPUT, _OUTPUT)
            )
        except (ValueError, IndexError) as error:
            raise ValueError("it is no ONNX file") from error
    return {name: port for name, port in inputs.items() if name not in values}, outputs


def _port(content: mmap.mmap, place: Span) -> Port:
    kind, shape = "no tensor", None
    for tensor in inner(content, place, *_TENSOR):
        for number, value in fields(content, tensor):
            if number == _ELEMENT and isinstance(value, int):
                kind = _TYPES.get(value, str(value))
        for span in inner(content, tensor, _SHAPE):
            shape = [_length(content, dim) for dim in inner(content, span, _DIM)]
    return Port(kind, shape)


def _length(content: mmap.mmap, dim: Span) -> int | None:
    numbers = [value for number, value in fields(content, dim) if number == _LENGTH]
    return numbers[0] if numbers and isinstance(numbers[0], int) else None


def _text(content: mmap.mmap, place: Span, number: int) -> str:
    return b"".join(content[a:b] for a, b in inner(content, place, number)).decode()
