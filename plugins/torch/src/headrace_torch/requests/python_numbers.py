"""Makes tensors of a model's dtype from Python numbers and lists of numbers, which carry no dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace_torch.requests.signature import Port

__all__ = ["PLAIN", "tensor_of_numbers"]

PLAIN = (bool, int, float, list, tuple)
"""The types of values that are read as Python numbers, unless they have a dtype as numpy's scalars do."""

_BECOMES = {"b": "b", "i": "if", "u": "if", "f": "f"}
"""For each kind of numpy dtype of Python numbers, the kinds to which they may be converted."""


def tensor_of_numbers(value: Any, port: Port, key: str, device: torch.device) -> Any:
    """Convert numbers to a tensor of the port's dtype on a device, unless the dtype would change a value.

    Args:
        value: A number, or numbers in nested lists.
        port: The model's input.
        key: The key of the request with the value, for the error.
        device: The device of the tensor.

    Returns:
        The tensor. For a list of arrays, which have a dtype, an array, which the caller has to check.

    Raises:
        InputError: The dtype does not hold a value, the model declares no dtype, or the lists have different lengths.
    """
    kind = type(value).__name__
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and all(type(number) in (int, float) for number in array.flat):
            array = array.astype(np.float64)  # there is an integer of more than 64 bits
    except (ValueError, TypeError, OverflowError) as error:
        problem = f"this is nothing numpy can read ({error})"
        raise InputError(problem, key=key, expected=port.accepts(), got=kind) from None
    while isinstance(value, (list, tuple)) and len(value):
        value = value[0]
    if (hasattr(value, "dtype") or not isinstance(value, PLAIN)) and array.dtype.kind not in "OUS":
        return array
    problem, hint = "wrong dtype", None
    if port.dtype is None:
        problem = f"a value of type {kind} carries no dtype, and this model declares none"
        hint = "Set it in the option `shape`, as 'float32:3x224x224', or send an array."
    elif (tensor := _of_dtype(array, port.dtype)) is not None:
        return tensor.to(device)
    got = f"{array.dtype} {list(array.shape)} from {kind}"
    raise InputError(problem, key=key, expected=port.accepts(), got=got, hint=hint)


def _of_dtype(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor | None:
    """Convert an array of Python numbers to a tensor of a dtype; None if a value would change."""
    kind = "f" if dtype.is_floating_point else "b" if dtype == torch.bool else "i"
    if dtype.is_complex or (array.size and kind not in _BECOMES.get(array.dtype.kind, "")):
        return None
    if array.size and kind == "i":
        bounds = torch.iinfo(dtype)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            return None
    source = torch.from_numpy(array)
    tensor = source.to(dtype)
    overflows = kind == "f" and not torch.equal(tensor.isfinite(), source.isfinite())
    return None if overflows else tensor
