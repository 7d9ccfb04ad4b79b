"""Whatever callers send as numbers, as numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["array_of", "describe", "numbers_of"]


def array_of(data: Any) -> NDArray[Any] | None:
    """Give ``data`` as a numpy array, through DLPack or the like; None when it is no array."""
    if type(data) is np.ndarray:
        return data
    try:
        if isinstance(data, (np.ndarray, memoryview)):
            return np.asarray(data)
        if hasattr(data, "__dlpack__"):
            return np.from_dlpack(data)
        if hasattr(data, "__array__"):
            return np.asarray(data)
    except (TypeError, ValueError, RuntimeError, BufferError, AttributeError):
        pass
    return None


def numbers_of(data: Any) -> NDArray[Any] | None:
    """Give an array or nested lists as an array of integers or floats; None for anything else."""
    array = array_of(data)
    if array is None and isinstance(data, (list, tuple)):
        try:
            array = np.asarray(data)
        except (TypeError, ValueError, OverflowError):
            return None
    return array if array is not None and array.dtype.kind in "iuf" else None


def describe(data: Any, array: NDArray[Any] | None = None) -> str:
    """Say in words what ``data`` is, by dtype and shape when it is an array."""
    if array is not None:
        return f"{array.dtype} {list(array.shape)}"
    return "None" if data is None else type(data).__name__
