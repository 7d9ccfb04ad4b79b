"""How requests and their results are written, for people and for programs."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

__all__ = ["as_json", "as_line", "escaped", "shown"]

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_ESCAPES |= {9: "\\t", 10: "\\n", 13: "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def escaped(text: str) -> str:
    """Write tabs, ends of lines and other control characters as escapes."""
    return text.translate(_ESCAPES)


def as_line(path: str, result: Any) -> str:
    """Give ``path<TAB>result`` as one line; a dict gives its values, separated by tabs."""
    values = list(result.values()) if isinstance(result, dict) else [result]
    return "\t".join(escaped(text) for text in (path, *map(shown, values)))


def shown(value: Any) -> str:
    """Give a short text: arrays and bytes by type and size, everything else in full."""
    if isinstance(value, str):
        return value
    described = _described(value)
    if described is not None:
        return described if isinstance(described, str) else shown(described[0])
    return json.dumps(_readable(value), ensure_ascii=False)


def _described(value: Any) -> str | tuple[Any] | None:
    """Describe an array or bytes; a scalar in an array comes as a tuple of it, others as None."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"bytes [{len(value)}]"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return None
    if len(shape) == 0 and hasattr(value, "tolist"):
        return (value.tolist(),)
    return f"{str(dtype).rpartition('.')[2]} {list(shape)}"


def _readable(value: Any) -> Any:
    """Make what JSON can write, with arrays described."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    described = _described(value)
    if described is not None:
        return described if isinstance(described, str) else _readable(described[0])
    if isinstance(value, dict):
        return {str(key): _readable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_readable(part) for part in value]
    return str(value)


def as_json(value: Any, *, ascii_only: bool = False) -> str:
    """Write a value as one line of JSON, in full.

    Whatever has ``tolist`` (arrays) becomes nested lists, bytes become base64, what is neither a
    number, text, list or dict becomes its text. NaN and infinities, which JSON lacks, become null.
    """
    try:
        return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, default=_of_other_types)
    except (TypeError, ValueError):  # a key that is no text, or a number that JSON lacks
        return json.dumps(_complete(value), ensure_ascii=ascii_only, allow_nan=False)


def _of_other_types(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (set, frozenset)):
        return list(value)
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    return str(value)


def _complete(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _complete(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_complete(part) for part in value]
    return _complete(_of_other_types(value))
