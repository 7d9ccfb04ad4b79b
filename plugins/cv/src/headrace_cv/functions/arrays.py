"""Turn the arrays and lists of numbers that callers send into numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_cv.functions.limits import MAX_NUMBERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DEVICES = {2: "cuda", 7: "vulkan", 8: "metal", 10: "rocm"}
"""DLPack's numbers for the kinds of devices whose memory numpy cannot read."""

_UNREADABLE = (
    TypeError,
    ValueError,
    RuntimeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    BufferError,
    OSError,
)
"""What arrays of other libraries raise that numpy cannot read, alone or in a list: torch a RuntimeError for a gradient."""

__all__ = ["array_of", "check_numbers", "describe", "numbers_of"]


def array_of(data: Any) -> NDArray[Any] | None:
    """Return ``data`` as a numpy array, through DLPack, a similar protocol or its buffer; None if it is no array.

    Raises:
        InputError: ``data`` is a masked array, also in a list: the numbers behind a mask are no values.
    """
    if type(data) is np.ndarray:
        return data
    for part in data if isinstance(data, (list, tuple)) else (data,):
        if isinstance(part, np.ma.MaskedArray):
            problem, expected = "masked values are no numbers", "an array without mask"
            hint = "array.filled(VALUE) puts a number in their place."
            raise InputError(problem, expected=expected, got="numpy.ma.MaskedArray", hint=hint)
    try:
        if isinstance(data, (np.ndarray, memoryview)):
            return np.asarray(data)
        if hasattr(data, "__dlpack__"):
            return np.from_dlpack(data)
        if hasattr(data, "__array__") or hasattr(type(data), "__array_interface__"):
            return np.asarray(data)
        if not isinstance(data, (bytes, bytearray)):
            return np.asarray(memoryview(data))
    except _UNREADABLE:
        pass
    return None


def numbers_of(data: Any) -> NDArray[Any] | None:
    """Return an array, a list of numbers or a list of rows of numbers as an array.

    Returns:
        An array of integers or floats. None when ``data`` is anything else.

    Raises:
        InputError: ``data`` is a list of more than `MAX_NUMBERS` numbers.
    """
    array = array_of(data)
    if array is None and isinstance(data, (list, tuple)):
        array = _rows_of(data)
    return array if array is not None and array.dtype.kind in "iuf" else None


def check_numbers(count: int) -> None:
    """Refuse more numbers than `MAX_NUMBERS` before they are copied.

    Raises:
        InputError: ``count`` is more than `MAX_NUMBERS`.
    """
    if count > MAX_NUMBERS:
        raise InputError(
            "these are too many numbers", expected=f"at most {MAX_NUMBERS}", got=f"{count} or more"
        )


def _rows_of(data: Any) -> NDArray[Any] | None:
    """Return a list of numbers, or of lists of numbers, as an array. None when it is something else.

    A list may hold the same row a million times: the list takes little memory, the array would take
    a million rows. So the numbers are counted before numpy copies them.
    """
    rows = [item for item in data if isinstance(item, (list, tuple, np.ndarray))]
    for row in rows:
        if not isinstance(row, np.ndarray) and row and isinstance(row[0], (list, tuple)):
            return None  # three levels of lists are no rows of numbers
    check_numbers(
        len(data) + sum(row.size if isinstance(row, np.ndarray) else len(row) for row in rows)
    )
    try:
        return np.asarray(data)
    except _UNREADABLE:
        return None


def describe(data: Any, array: NDArray[Any] | None = None) -> str:
    """Describe ``data``; an array by its dtype and shape."""
    if array is not None:
        return f"{array.dtype} {list(array.shape)}"
    return "None" if data is None else f"{type(data).__name__}{_place_of(data)}"


def _place_of(data: Any) -> str:
    """Name the device of another library's array, if it is on one."""
    try:
        kind, index = map(int, data.__dlpack_device__())
    except Exception:  # noqa: BLE001 - no array, or an array of another library, may raise anything
        return ""
    return f" on {_DEVICES[kind]}:{index}" if kind in _DEVICES else ""
