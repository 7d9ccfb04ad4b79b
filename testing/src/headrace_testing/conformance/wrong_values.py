"""Makes wrong values from any right value."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

from headrace_testing.conformance.claims import claims_dtype, covers_dtype, describes, shapes_of
from headrace_testing.conformance.values import is_array

_AXES = 3
_DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "uint8", "bool")
_FOREIGN: tuple[Any, ...] = (None, "a text", {}, {"a key": 1}, b"some bytes", [], 3, -0.5)
_NAMED = {
    "nothing": r"\b(none|nothing|optional|null)\b",
    "text": r"\b(texts?|str|strings?|words?|names?|paths?|urls?)\b",
    "mapping": r"\b(dicts?|mappings?|tables?|objects?|json)\b",
}
"""How the section Reads says that a value of another kind is accepted; other kinds may be converted freely."""


class Alien:
    """An object of a type that no backend knows."""

    def __repr__(self) -> str:
        return "an object of an unknown type"


def _kind(value: Any) -> str:
    if is_array(value):
        return "array"
    for kind, types in (
        ("nothing", type(None)),
        ("text", str),
        ("bytes", (bytes, bytearray, memoryview)),
        ("mapping", Mapping),
        ("list", (list, tuple, set, frozenset)),
        ("number", Number),
    ):
        if isinstance(value, types):
            return kind
    return "object"


def foreign_types(value: Any, documented: str) -> Iterator[tuple[Any, bool]]:
    """Return values of other types, each with whether it must be refused, or may also be accepted."""
    yield Alien(), True
    for other in _FOREIGN:
        kind = _kind(other)
        if kind != _kind(value):
            word = _NAMED.get(kind)
            yield other, word is not None and not re.search(word, documented)


def foreign_shapes(value: Any, documented: str) -> Iterator[tuple[Any, bool]]:
    """Return values of other shapes, each with whether it must be refused."""
    yield wrong_shape(value), True
    if isinstance(value, list):
        yield from ((other, False) for other in ([value], value[:1], []) if other != value)
    if not is_array(value):
        return
    claimed = bool(shapes_of(documented))
    for place in (None, 0, (0,) * len(value.shape), slice(0)):
        try:
            other = value[place]
            shape = tuple(other.shape)
        except Exception:  # noqa: BLE001, S112 - arrays of some libraries, and of some shapes, cannot be cut
            continue
        more_or_less = len(shape) != len(value.shape)
        yield other, more_or_less and claimed and not describes(documented, shape, value.dtype)


def foreign_dtypes(value: Any, documented: str) -> Iterator[tuple[Any, bool]]:
    """Return values of other dtypes, each with whether it must be refused."""
    yield wrong_dtype(value), True
    if isinstance(value, (list, tuple)) and value:
        yield type(value)("a text" for _ in value), False
    if not is_array(value):
        return
    # If no dtypes are named, only the computation decides which ones it can read.
    numbers = _DTYPES if claims_dtype(documented) else ()
    texts = () if "any" in documented or re.search(_NAMED["text"], documented) else ("U4", "object")
    for dtype in (*numbers, *texts):
        try:
            other = _as_dtype(value, dtype)
        except Exception:  # noqa: BLE001, S112 - a library may lack a dtype
            continue
        if other.dtype != value.dtype:
            named = covers_dtype(documented, dtype) or describes(documented, other.shape, dtype)
            yield other, dtype in texts or not named


def wrong_shape(value: Any) -> Any:
    """Return an array with three more axes; any other value in three nested lists."""
    if is_array(value):
        try:
            for _ in range(_AXES):
                value = value[None]
        except Exception:  # noqa: BLE001 - arrays of some libraries cannot be given more axes
            return [[[value]]]
        return value
    for _ in range(_AXES):
        value = [value]
    return value


def wrong_dtype(value: Any) -> Any:
    """Return an array as complex numbers in the same shape; a value without numbers as a complex number."""
    if is_array(value):
        return _complex_array(value)
    if isinstance(value, (list, tuple)) and value:
        return type(value)(wrong_dtype(part) for part in value)
    return 1j


def _as_dtype(array: Any, dtype: str) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return array.to(getattr(torch, dtype))
    return array.astype(dtype)


def _complex_array(array: Any) -> Any:
    try:
        return _as_dtype(array, "complex64")
    except Exception:  # noqa: BLE001 - arrays of strings, or of libraries without complex numbers
        numpy = sys.modules.get("numpy")
        return (
            numpy.zeros(tuple(getattr(array, "shape", (1,))), "complex64")
            if numpy is not None
            else 1j
        )
