"""The requests of a measurement: random arrays, described as ``float32:3x224x224``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_observe.extras import library

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["random_array", "random_rows"]

_FORM = re.compile(r"(?P<dtype>[a-z]+\d*)(:(?P<shape>\d+(x\d+)*))?\Z")
_DTYPES = (
    *("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)


def random_array(text: str, seed: int = 0) -> Any:
    """Make an array of random values: ``float32:3x224x224``, ``uint8:480x640x3``, ``float32``.

    Args:
        text: Dtype and shape, without a shape it is a scalar.
        seed: The same seed gives the same values.

    Returns:
        A numpy array: floats from 0 to 1, integers over the whole range of their dtype.

    Raises:
        InputError: The text is not of that form, or the array does not fit into the memory.
        MissingDependencyError: numpy is not installed.
    """
    match = _FORM.match(text)
    if match is None or match["dtype"] not in _DTYPES:
        raise InputError(
            f"expected dtype:shape, as float32:3x224x224, got {text!r}; "
            f"dtypes are {', '.join(_DTYPES)}"
        )
    numpy = library("numpy", None, "random data")
    shape = tuple(int(part) for part in (match["shape"] or "").split("x") if part)
    try:
        return _random(numpy, shape, match["dtype"], seed)
    except (MemoryError, ValueError) as error:  # numpy raises ValueError if the size overflows
        raise InputError(f"{text!r} does not fit into the memory: {error}") from error


def random_rows(ports: Mapping[str, Mapping[str, Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Make a request of one row of random values for the inputs that a pipeline describes.

    Args:
        ports: ``key``, ``dtype`` and ``shape`` of each input, as in ``describe()``. An axis of any length gets length 1.
        seed: The same seed gives the same values.

    Returns:
        One request: floats from 0 to 1, bytes over their whole range, other integers 0 or 1, which are in any vocabulary.

    Raises:
        InputError: No input is described, or one is no array of numbers.
        MissingDependencyError: numpy is not installed.
    """
    hint = "give INPUT files, or --data"
    if not ports:
        raise InputError(f"the pipeline describes no inputs, so no rows can be made: {hint}")
    numpy = library("numpy", None, "random data")
    request = {}
    for name, port in ports.items():
        dtype, shape = port["dtype"], tuple(length or 1 for length in port["shape"] or ())
        if dtype not in _DTYPES or port["shape"] is None:
            raise InputError(f"input {name!r} is {dtype}, of which no rows can be made: {hint}")
        small = dtype.endswith(("int16", "int32", "int64"))
        row = _random(numpy, shape, "bool" if small else dtype, seed)
        request[port.get("key", name)] = row.astype(dtype)
    return [{"data": next(iter(request.values())), **request}]


def _random(numpy: Any, shape: tuple[int, ...], name: str, seed: int) -> Any:
    source, dtype = numpy.random.default_rng(seed), numpy.dtype(name)
    if dtype.kind == "f":
        return source.random(shape).astype(dtype)
    if dtype.kind == "b":
        return source.random(shape) < 0.5
    bounds = numpy.iinfo(dtype)
    return source.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True)
