"""The files that a model of ONNX keeps its weights in, beside its own."""

from __future__ import annotations

import mmap
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["leads_out", "weights_of"]

_PARTS: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "node": {5: "attribute"},
    "attribute": dict.fromkeys((5, 10), "tensor")
    | dict.fromkeys((6, 11), "graph")
    | dict.fromkeys((22, 23), "sparse"),
    "tensor": {13: "entry"},
}
"""The fields of each message that lead to an entry of external data, by their numbers."""
_SIZES: Final = {1: 8, 5: 4}
"""The bytes of a value by its wire type, where that has a fixed size."""


def weights_of(path: Path) -> list[str]:
    """Return the names of the files with weights that a model of ONNX names, relative to its folder.

    A file that is no model names none. The weights themselves are not read.

    Source:
        onnx.proto (TensorProto.external_data), and the encoding of Protocol Buffers.
    """
    names: dict[str, None] = {}
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        left = [("model", 0, len(data))]
        try:
            while left:
                kind, start, end = left.pop()
                if kind == "entry":
                    texts = {number: data[a:b] for number, a, b in _fields(data, start, end)}
                    if texts.get(1) == b"location":
                        names[texts.get(2, b"").decode()] = None
                    continue
                parts = _PARTS[kind]
                left += [(parts[n], a, b) for n, a, b in _fields(data, start, end) if n in parts]
        except (ValueError, IndexError):
            return []
    return [*names]


def leads_out(name: str) -> bool:
    """Return whether the name of a file leads out of the folder in which it is to lie."""
    place = PurePosixPath(name)
    return place.is_absolute() or ".." in place.parts or "\\" in name or not name


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of a message that has a length.

    Raises:
        ValueError, IndexError: It is no message.
    """
    at = start
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind == 2:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("a field is longer than its message")
            yield number, at, at + size
            at += size
        else:
            at += _SIZES[kind] if kind in _SIZES else _no_type(kind)


def _no_type(kind: int) -> int:
    raise ValueError(f"there is no wire type {kind}")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
