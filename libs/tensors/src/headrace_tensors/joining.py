"""Joins arrays in host memory to the rows of one, and takes rows apart again."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final

from headrace_tensors.padding import padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace_tensors.ports import Port

__all__ = ["concatenate", "copied", "gather", "joined", "rows_apart"]

_HELD_BYTES: Final = 1 << 16
_FEW: Final = 500  # numpy keeps the interpreter lock for so many elements


def gather(arrays: Sequence[NDArray[Any]], out: NDArray[Any], row_bytes: int) -> bool:
    """Copy the memory of arrays into ``out``, one behind the other.

    numpy releases the interpreter lock around each copy of more than 500 elements. If many threads want the
    lock, getting it back takes longer than such a copy. So rows of up to 64 KiB are copied as one element of raw
    bytes each, with the lock held. Larger rows are copied by one call of OpenCV, which releases the lock once for all
    of them, if OpenCV is loaded already.

    Args:
        arrays: Arrays of one dtype, each of one row or several.
        out: Contiguous memory for all rows, of any dtype.
        row_bytes: The size of one row, in bytes.

    Returns:
        Whether it has copied them. False where numpy's own `concatenate` or `stack` has to: an array is not in C
        order, or holds objects, or a row is empty.
    """
    import numpy as np

    first = arrays[0]
    if not row_bytes or first.dtype.hasobject:
        return False
    if not all(array.flags.c_contiguous for array in arrays):
        return False
    if row_bytes <= _HELD_BYTES:
        row = np.dtype((np.void, row_bytes))
        raw = [array.reshape(-1).view(row) for array in arrays]
        np.concatenate(raw, out=out.reshape(-1).view(row))
        return True
    vconcat = getattr(sys.modules.get("cv2"), "vconcat", None)
    if vconcat is None or row_bytes >= 1 << 31:
        return False
    rows = [array.reshape(-1).view(np.uint8).reshape(-1, row_bytes) for array in arrays]
    vconcat(rows, out.reshape(-1).view(np.uint8).reshape(-1, row_bytes))
    return True


def joined(arrays: Sequence[NDArray[Any]], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Join the rows of arrays. The rows have one dtype and shape. See `gather`.

    Args:
        arrays: The arrays, at least one.
        out: The array to fill. None: a new one.
    """
    import numpy as np

    first = arrays[0]
    if out is None:
        native = first.dtype.newbyteorder("=")
        out = np.empty((sum(map(len, arrays)), *first.shape[1:]), native)
    row_bytes = first.itemsize * math.prod(first.shape[1:]) if first.dtype == out.dtype else 0
    if not gather(arrays, out, row_bytes):
        np.concatenate(arrays, out=out)
    return out


def copied(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array into memory of its own, up to 64 KiB with the interpreter lock held. See `gather`."""
    import numpy as np

    as_void = array.size > _FEW and array.nbytes <= _HELD_BYTES and not array.dtype.hasobject
    as_void = as_void and array.flags.c_contiguous
    raw = array.reshape(-1).view(np.dtype((np.void, array.nbytes))) if as_void else array
    copy: NDArray[Any] = raw.copy()
    return copy.view(array.dtype).reshape(array.shape) if as_void else copy


def rows_apart(output: NDArray[Any]) -> list[NDArray[Any]]:
    """Copy each row of an array into its own memory, because a slice would keep the whole array alive.

    Rows of up to 64 KiB are copied with the interpreter lock held. See `gather`.
    """
    import numpy as np

    dtype, shape = output.dtype, output.shape[1:]
    row_bytes = dtype.itemsize * math.prod(shape)
    if 0 < row_bytes <= _HELD_BYTES and not dtype.hasobject and output.flags.c_contiguous:
        output = output.reshape(-1).view(np.dtype((np.void, row_bytes)))
    rows = [output[i : i + 1].copy() for i in range(len(output))]
    return [row.view(dtype).reshape(shape) for row in rows]


def concatenate(
    arrays: Sequence[NDArray[Any]],
    port: Port,
    *,
    rows: int | None = None,
    pad_value: float | None = None,
    pad_multiple: int = 1,
) -> NDArray[Any]:
    """Join the rows of several arrays.

    Args:
        arrays: Arrays of the port's rank and dtype, each with its batch axis first.
        port: The model's input.
        rows: The number of rows of the result. The last row is repeated as often as needed. None: no row is added.
        pad_value: The value with which each dynamic axis is padded at its end, up to the longest. None:
            the arrays have one shape.
        pad_multiple: With ``pad_value``: axes are padded further, to a multiple of this length.

    Returns:
        A new array, or the only one of ``arrays`` if nothing is added to it. Its batch axis is the one that the
        model has.
    """
    import numpy as np

    missing = 0 if rows is None else rows - sum(map(len, arrays))
    if pad_value is not None:
        arrays = padded(arrays, port, pad_value, pad_multiple)
    if missing > 0:
        arrays = [*arrays, np.repeat(arrays[-1][-1:], missing, axis=0)]
    whole = arrays[0] if len(arrays) == 1 else joined(arrays)
    return np.moveaxis(whole, 0, port.axis) if port.axis else whole
