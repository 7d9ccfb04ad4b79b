"""The requests of a measurement: random arrays, described as ``float32:3x224x224``."""

from __future__ import annotations

import re
from typing import Any

from headrace.errors import InputError
from headrace_observe.extras import library

__all__ = ["random_array"]

_FORM = re.compile(r"(?P<dtype>[a-z]+\d*)(:(?P<shape>\d+(x\d+)*))?\Z")
_DTYPES = [
    "bool",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]


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
    found = _FORM.match(text)
    if found is None or found["dtype"] not in _DTYPES:
        raise InputError(
            f"expected dtype:shape, as float32:3x224x224, got {text!r}; "
            f"dtypes are {', '.join(_DTYPES)}"
        )
    numpy = library("numpy", None, "random data")
    shape = tuple(int(part) for part in (found["shape"] or "").split("x") if part)
    try:
        return _random(numpy, shape, found["dtype"], seed)
    except (MemoryError, ValueError) as error:  # numpy raises ValueError if the size overflows
        raise InputError(f"{text!r} does not fit into the memory: {error}") from error


def _random(numpy: Any, shape: tuple[int, ...], name: str, seed: int) -> Any:
    source, dtype = numpy.random.default_rng(seed), numpy.dtype(name)
    if dtype.kind == "f":
        return source.random(shape).astype(dtype)
    if dtype.kind == "b":
        return source.random(shape) < 0.5
    bounds = numpy.iinfo(dtype)
    return source.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True)
