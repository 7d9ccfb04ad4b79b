"""Concatenates numpy arrays of one shape as the rows of one array or tensor, without a tensor for each array.

Making and freeing a tensor each release the interpreter lock, and so does each larger copy by numpy. Under load a
thread then waits to get the lock back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import headrace_tensors as tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["are_alike", "gather", "is_dense", "stacked_arrays", "torch_dtype"]


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one block of numbers: not sparse, quantized or nested."""
    dense = tensor.layout is torch.strided and not tensor.is_quantized
    return dense and not tensor.is_nested


def are_alike(arrays: Sequence[Any]) -> bool:
    """Return whether these are numpy arrays of one shape and dtype."""
    first = arrays[0]
    if type(first) is not np.ndarray:
        return False
    shape, dtype = first.shape, first.dtype
    return all(
        type(array) is np.ndarray and array.shape == shape and array.dtype == dtype
        for array in arrays
    )


def gather(arrays: Sequence[NDArray[Any]], target: Any) -> None:
    """Copy arrays of one shape and dtype into ``target``, one below the other. See `headrace_tensors.gather`."""
    if not tensors.gather(arrays, target, arrays[0].nbytes):
        np.stack(arrays, out=target)


def stacked_arrays(arrays: Sequence[Any]) -> torch.Tensor | None:
    """Copy numpy arrays of one shape and dtype into one new tensor on the CPU.

    Returns:
        ``[N, ...]``. None if the arrays differ, one is no numpy array, or torch lacks the dtype.
    """
    if not are_alike(arrays) or torch_dtype(arrays[0].dtype) is None:
        return None
    whole = np.empty((len(arrays), *arrays[0].shape), arrays[0].dtype)
    gather(arrays, whole)
    return torch.from_numpy(whole)


_dtypes: dict[Any, torch.dtype | None] = {}


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Return torch's dtype for a dtype of numpy; None if torch has none, or the byte order is not native."""
    if dtype not in _dtypes:
        try:
            _dtypes[dtype] = torch.from_numpy(np.empty(0, dtype)).dtype
        except (TypeError, ValueError):
            return None
    return _dtypes[dtype]
