"""Conversions between arrays and the protocol's datatypes, as JSON values and as bytes."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import InputError
from headrace_serve.errors import NotJsonError
from headrace_tensors import DATATYPES, bf16_values, read_elements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "ONLY_BINARY",
    "as_json_values",
    "datatype_of",
    "from_bytes",
    "from_json",
    "from_numbers",
    "from_text",
    "of_dtype_name",
    "raw_bytes",
]

_ITEM_BYTES: Final = {name: dtype.itemsize for name, dtype in DATATYPES.items()}
_NAMES: Final = {dtype.name: name for name, dtype in DATATYPES.items() if name != "BF16"}
_BY_DTYPE: Final = {dtype: name for name, dtype in DATATYPES.items() if name != "BF16"}
ONLY_BINARY: Final = ("FP16", "BF16")
"""Datatypes for which the protocol defines no JSON form."""
_JSON_TYPES: Final = {
    "b": frozenset({bool}), "i": frozenset({int}), "u": frozenset({int}), "f": frozenset({int, float})
}  # fmt: skip
"""The types of JSON's values that tensors hold, by the kind of their dtype."""


_GREATEST: Final = {size: float(np.finfo(f"f{size}").max) for size in (2, 4, 8)}
"""The greatest float of so many bytes."""


def of_dtype_name(name: str) -> str | None:
    """Return the datatype for the name of a dtype (``float32``, ``bfloat16``, ``str``), or None."""
    if name in ("str", "bytes", "object"):
        return "BYTES"
    return "BF16" if name == "bfloat16" else _NAMES.get(name)


def datatype_of(array: NDArray[Any]) -> str | None:
    """Return the datatype of an array; None if the protocol has none for it."""
    datatype = _BY_DTYPE.get(array.dtype)  # numpy builds `dtype.name` again at each access
    if datatype is not None:
        return datatype
    if array.dtype.kind in "SU":
        return "BYTES"
    return of_dtype_name(array.dtype.name)


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> NDArray[Any]:
    """Return an array over the bytes of a tensor, without a copy except of BYTES and BF16.

    Args:
        name: The name of the input, for errors.
        datatype: One of `DATATYPES`.
        shape: Its shape. Every axis 0 or more.
        data: A buffer with the values in row-major order, little-endian. For BYTES each element follows
            its length, a little-endian uint32.

    Returns:
        An array of that shape, read-only where ``data`` is. BF16 becomes float32, which holds all
        of its values, BYTES an array of ``bytes`` objects.

    Raises:
        InputError: The number of bytes is not what shape and datatype ask for.
    """
    if datatype == "BYTES":
        flat = np.empty(math.prod(shape), object)
        try:
            flat[:] = read_elements(data, flat.size)
        except ValueError as error:
            raise InputError(f"input {name!r}: {error}") from None
        return flat.reshape(shape)
    size = math.prod(shape) * _ITEM_BYTES[datatype]
    if len(data) != size:
        wanted = f"{size} bytes for {datatype} {list(shape)}"
        raise InputError(f"input {name!r}", expected=wanted, got=f"{len(data)} bytes")
    array = np.frombuffer(data, DATATYPES[datatype])
    if datatype == "BF16":
        array = bf16_values(array)
    return array.reshape(shape)


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> NDArray[Any]:
    """Return the array for the ``data`` of a tensor in JSON: a flat list, or lists nested as the shape says.

    Raises:
        InputError: ``data`` is no list, has another number of elements, or elements of another kind.
    """
    if datatype in ONLY_BINARY:
        raise InputError(f"input {name!r}: JSON has no {datatype}; send the tensor as binary data")
    if not isinstance(data, list):
        raise InputError(f"input {name!r}: data", expected="a list", got=type(data).__name__)
    flat = _flat(name, shape, data)
    array = _texts(name, flat) if datatype == "BYTES" else _numbers(name, datatype, flat)
    return array.reshape(shape)


def from_numbers(datatype: str, value: Any) -> NDArray[Any]:
    """Return the array for a Python number, or for lists and tuples of them. NaN and infinity stay.

    Raises:
        InputError, ValueError, OverflowError: They are no such numbers, or the lists differ in length.
    """
    shape: tuple[int, ...] = np.shape(value)
    flat: list[Any] = np.array(value, object).reshape(-1).tolist()
    return _numbers("", datatype, flat).reshape(shape)


def _flat(name: str, shape: tuple[int, ...], data: list[Any]) -> list[Any]:
    """Return the elements in ``data``, once their number is that of the shape.

    Lists are compared with the shape before numpy reads them, because numpy takes many seconds for millions of lists.
    """
    if len(data) == math.prod(shape) and not (data and type(data[0]) is list):
        return data
    level: list[Any] = [data]
    for axis in shape:
        if any(type(inner) is not list or len(inner) != axis for inner in level):
            got = f"a list of {len(data)}" if level[0] is data else "lists of other lengths"
            wanted = f"data of shape {list(shape)}, flat or in nested lists"
            raise InputError(f"input {name!r}", expected=wanted, got=got)
        level = list(chain.from_iterable(level))
    return level


def _texts(name: str, flat: list[Any]) -> NDArray[Any]:
    for value in flat:
        if not isinstance(value, str):
            raise InputError(
                f"input {name!r}", expected="strings for BYTES", got=type(value).__name__
            )
    array = np.empty(len(flat), object)
    array[:] = [value.encode() for value in flat]
    return array


def _numbers(name: str, datatype: str, flat: list[Any]) -> NDArray[Any]:
    target = DATATYPES[datatype]
    # The types in JSON are checked, because numpy turns a mix of numbers and booleans into numbers.
    if not _JSON_TYPES[target.kind].issuperset(map(type, flat)):
        raise InputError(f"input {name!r}: data holds values that are no {datatype}")
    raw: NDArray[Any] = np.array(flat)
    may_fit = target.kind == "f" and raw.dtype.kind in "iuf" and raw.size
    if may_fit and np.abs(raw).max() <= _GREATEST[target.itemsize]:
        return raw.astype(target)
    if raw.dtype.kind == "f" and target.kind in "iu" and raw.size:
        # numpy has turned a mix of int64 and uint64 values into float64, which loses their low digits.
        raw = np.array(flat, object)
    if target.kind in "iu" and raw.size:
        info: Any = np.iinfo(target.type)
        if raw.min() < info.min or raw.max() > info.max:
            raise InputError(f"input {name!r}: data holds values outside of {datatype}")
    with np.errstate(over="ignore"):
        array: NDArray[Any] = raw.astype(target)
    odd = target.kind == "f" and not (finite := np.isfinite(array)).all()
    if odd and np.isfinite(raw[~finite].astype(np.float64)).any():
        raise InputError(f"input {name!r}: data holds values outside of {datatype}")
    return array


def raw_bytes(value: str | bytes) -> bytes:
    """Return an element of BYTES: text in UTF-8.

    Raises:
        NotJsonError: The text has no form in UTF-8.
    """
    try:
        return value.encode() if isinstance(value, str) else bytes(value)
    except UnicodeEncodeError:
        raise NotJsonError(
            "the result holds half of a surrogate pair, which UTF-8 does not have"
        ) from None


def as_json_values(name: str, datatype: str, array: NDArray[Any]) -> Sequence[Any] | NDArray[Any]:
    """Return the elements of a tensor as a flat sequence that JSON can hold.

    Raises:
        InputError: JSON has no form for the datatype, or for these bytes. The client has to ask for binary data.
        NotJsonError: The elements are NaN or infinite, or text that is not Unicode.
    """
    hint = "Ask for this output with binary_data."
    if datatype in ONLY_BINARY:
        raise InputError(f"output {name!r} is {datatype}, which JSON does not have", hint=hint)
    if datatype == "BYTES":
        try:
            return [raw_bytes(value).decode("utf-8") for value in array.flat]
        except UnicodeDecodeError:
            raise InputError(f"output {name!r} is no UTF-8 text", hint=hint) from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        problem = f"output {name!r} holds NaN or infinity, which JSON does not have. {hint}"
        raise NotJsonError(problem)
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    return native.reshape(-1)


def from_text(datatype: str, text: str) -> NDArray[Any]:
    """Give an array of one element, without axes.

    Raises:
        ValueError, OverflowError: The text is no value of the datatype.
    """
    dtype = DATATYPES[datatype]
    if datatype == "BOOL":
        words = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() not in words:
            raise ValueError(text)
        return np.array(words[text.lower()])
    value = float(text) if dtype.kind == "f" else int(text)
    if dtype.kind == "f" and not math.isfinite(value):
        raise ValueError(text)
    if dtype.kind in "iu":
        info: Any = np.iinfo(dtype.type)
        if not info.min <= value <= info.max:
            raise OverflowError(text)  # numpy 1 would take the low bits
    return np.array(value, dtype)
