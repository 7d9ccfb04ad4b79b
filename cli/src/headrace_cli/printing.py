"""How requests and their results are written, for people and for programs."""

from __future__ import annotations

import base64
import functools
import importlib
import json
import math
import re
import sys
from collections import deque
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace_cli.console import is_utf8, print_data
from headrace_formats import FormatError, write_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

_DEEPEST = 250
"""How many levels of nesting are written."""

_MOST_NUMBERS = 10
"""How many numbers of an array are printed; larger ones are described."""

_NUMBERS = re.compile(r"bool|u?int\d+|b?float(16|32|64)")
"""The names of the types of numbers, of numpy and of all who name theirs alike."""

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_ESCAPES |= {9: "\\t", 10: "\\n", 13: "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def escaped(text: str) -> str:
    """Write tabs, ends of lines and other control characters as escapes."""
    return text.translate(_ESCAPES)


def quoted(text: str) -> str:
    """Write control characters of an error's text as escapes; an indented line, as a hint, stays one of its own."""
    return "\n  ".join(map(escaped, text.split("\n  ")))


def as_line(path: str, result: Any) -> str:
    """Return ``path<TAB>result`` as one line; a dict gives its values, separated by tabs, and so do named scores."""
    result = opened(result)
    values = list(result.values()) if isinstance(result, dict) else named_scores(result)
    texts = (str(value) if isinstance(value, (bool, float)) else shown(value) for value in values)
    return escaped(path) + "\t" + "\t".join(map(escaped, texts))


def named_scores(result: Any) -> list[Any]:
    """Return names and scores of ``{"label", "score"}`` in turn, to five digits. Every other result stays alone."""
    cells: list[Any] = []
    for row in result if isinstance(result, list) else ():
        if not isinstance(row, dict) or list(row) != ["label", "score"]:
            return [result]
        score = row["score"]
        cells += [row["label"], f"{score:.5g}" if isinstance(score, float) else score]
    return cells or [result]


def shown(value: Any) -> str:
    """Return a short text: bytes and arrays of more than ten numbers by type and size, all else in full."""
    value = opened(value)
    if isinstance(value, str):
        return value
    numbers = _few_numbers(value)
    if numbers is not None:
        return str(numbers)
    described = _described(value)
    if described is not None:
        return described if isinstance(described, str) else shown(described[0])
    return json.dumps(_readable(value), ensure_ascii=False)


def _described(value: Any) -> str | tuple[Any] | None:
    """Describe an array or bytes; give the scalar of an array without axes in a tuple, else None."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"bytes [{len(value)}]"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return None
    if len(shape) == 0 and hasattr(value, "tolist"):
        return (value.tolist(),)
    return f"{str(dtype).rpartition('.')[2]} {list(shape)}"


def _few_numbers(value: Any) -> Any:
    """Return the content of an array of one to ten numbers, as Python has them. None for every other value.

    Numbers of 16 and 32 bits are the shortest that read back as these: 0.1, not 0.10000000149011612.
    """
    with suppress(Exception):  # an array of any library; one that cannot be read is described
        array = value
        if not hasattr(array, "dtype") and hasattr(array, "__array_interface__"):
            array = importlib.import_module("numpy").asarray(array)
        elif not hasattr(array, "tolist") and hasattr(array, "__dlpack__"):
            array = importlib.import_module("numpy").from_dlpack(array)
        kind = getattr(array.dtype, "name", None) or str(array.dtype).rpartition(".")[2]
        if _NUMBERS.fullmatch(kind) and 0 < math.prod(array.shape) <= _MOST_NUMBERS:
            numbers = array.tolist()
            return _shortest(numbers, kind) if kind in ("float16", "float32") else numbers
    return None


def _shortest(numbers: Any, kind: str) -> Any:
    """Return floats, or lists of them, as what numpy prints for them in a narrower type."""
    if isinstance(numbers, list):
        return [_shortest(number, kind) for number in numbers]
    if not isinstance(numbers, float):
        return numbers  # what a masked array has in place of a number
    return float(str(getattr(importlib.import_module("numpy"), kind)(numbers)))


def _readable(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Make a value that JSON can write, with a short text for each large array."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    numbers = _few_numbers(value)
    if numbers is not None:
        return numbers
    described = _described(value)
    if described is not None:
        return described if isinstance(described, str) else _readable(described[0], above)
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return _inner(value, above, _readable)
    inside = opened(value)
    return str(value) if inside is value else _alone(inside, above, _readable)


def opened(value: Any, mode: str = "python") -> Any:
    """Return the content of a dataclass, a model, a mapping or a member of an enumeration, else the value.

    What a plugin writes for a type comes first. Where that raises, the value is written as any other of its kind.

    Args:
        value: The value.
        mode: How a model of pydantic gives its content: ``python`` or ``json``.
    """
    if isinstance(value, (type, dict)):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    writer = _writers().get(f"{type(value).__module__}.{type(value).__qualname__}")
    if writer is not None:
        with suppress(Exception):
            return writer.load()(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        with suppress(Exception):  # a field may be an array, or bytes that are no text
            return dump(mode=mode)
        value = dump()
    return value


@functools.cache
def _writers() -> dict[str, EntryPoint]:
    """Return the functions by which plugins write values for JSON (entry points ``headrace.json``), by module and type."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="headrace.json")}


def _inner(value: Any, above: tuple[int, ...], convert: Callable[..., Any]) -> Any:
    """Convert the parts of a dict or list. A part that holds itself, or is nested too deep, becomes ``...``.

    Args:
        value: The dict or list.
        above: The identities of the dicts and lists that hold it.
        convert: Converts a part, given the identities of all that hold the part.
    """
    if id(value) in above or len(above) >= _DEEPEST:
        return "..."
    above = (*above, id(value))
    if isinstance(value, dict):
        return {_key(key): convert(part, above) for key, part in value.items()}
    return [convert(part, above) for part in value]


def _key(key: Any) -> str:
    """Return the text of a key, as JSON and pydantic have it."""
    if isinstance(key, str):
        return key
    if hasattr(key, "dtype") and hasattr(key, "tolist"):
        key = _listed(key)
    return str(next(iter(_plain({key: None}, {str(key): None}))))


def _listed(array: Any) -> Any:
    """Return an array as lists; times of units that Python's have not are rounded to theirs, else they would be numbers."""
    dtype = str(getattr(array, "dtype", ""))
    if dtype.endswith(("[ns]", "[ps]", "[fs]", "[as]")) and hasattr(array, "astype"):
        array = array.astype(dtype[:-3] + "us]")
    return array.tolist()


def _plain(value: Any, otherwise: Any) -> Any:
    """Return what pydantic writes for a value, as for a date, else ``otherwise``."""
    with suppress(Exception):
        return importlib.import_module("pydantic_core").to_jsonable_python(value)
    return otherwise


def _alone(value: Any, above: tuple[int, ...], convert: Callable[..., Any]) -> Any:
    """Convert the content of a value, one level below the value."""
    inner = _inner([value], above, convert)
    return inner[0] if isinstance(inner, list) else inner


def as_json(value: Any, *, ascii_only: bool = False, indent: int | None = None) -> str:
    """Write a value as JSON, in full: as one line, unless ``indent`` gives the spaces of a level.

    Values with ``tolist`` (arrays) become nested lists, bytes become base64, mappings, dataclasses and models
    of pydantic become objects, sets, deques and views of dicts become lists. All else is what pydantic writes for it, as
    a date in ISO 8601, or its text. NaN and infinities, which JSON lacks, become null. A lone surrogate becomes an
    escape. A value that holds itself, or is nested more than 250 levels
    deep, is cut off with ``"..."``.
    """
    settings: Any = {"ascii_only": ascii_only, "indent": indent}
    try:
        return write_json(value, default=_of_other_types, **settings)
    except (TypeError, FormatError):  # a key is no text, or a value holds itself
        return write_json(_complete(value), **settings)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Write a value to stdout as JSON: whole JSON in any encoding of stdout, as `as_json` writes it."""
    print_data(as_json(value, ascii_only=not is_utf8(sys.stdout), indent=indent))


def _of_other_types(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (set, frozenset, deque, KeysView, ValuesView, ItemsView)):
        return list(value)
    if callable(getattr(value, "tolist", None)):
        return _listed(value)
    inside = opened(value, "json")
    return _plain(value, str(value)) if inside is value else inside


def _complete(value: Any, above: tuple[int, ...] = ()) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (dict, list, tuple)):
        return _inner(value, above, _complete)
    return _alone(_of_other_types(value), above, _complete)
