"""Making a wrong value of a right one, whatever the value is."""

from __future__ import annotations

import sys
from typing import Any

from headrace_testing.conformance.values import is_array

_AXES = 3


class Alien:
    """An object of a type that no backend knows."""

    def __repr__(self) -> str:
        return "an object of an unknown type"


def wrong_shape(value: Any) -> Any:
    """Give an array with three more axes; any other value in three nested lists."""
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
    """Give an array as complex numbers in the same shape; a value without numbers as a complex number."""
    if is_array(value):
        return _complex_array(value)
    if isinstance(value, (list, tuple)) and value:
        return type(value)(wrong_dtype(part) for part in value)
    return 1j


def _complex_array(array: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return array.to(torch.complex64)
    try:
        return array.astype("complex64")
    except Exception:  # noqa: BLE001 - arrays of strings, or of libraries without complex numbers
        numpy = sys.modules.get("numpy")
        return (
            numpy.zeros(tuple(getattr(array, "shape", (1,))), "complex64")
            if numpy is not None
            else 1j
        )
