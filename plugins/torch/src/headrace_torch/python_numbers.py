"""Python numbers and lists of them, which carry no dtype, as tensors of the dtype that a model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace_torch.signature import Port

__all__ = ["PLAIN", "tensor_of_numbers"]

PLAIN = frozenset({bool, int, float, list, tuple})
"""The types of what is read as numbers of Python."""

_BECOMES = {"b": "b", "i": "if", "u": "if", "f": "f"}
"""Kinds of dtypes that a kind of Python number may become."""


def tensor_of_numbers(value: Any, port: Port, key: str, device: torch.device) -> Any:
    """Give numbers as a tensor of the port's dtype on a device, if each stays what it is.

    Args:
        value: A number, or numbers in lists.
        port: The input that they are for.
        key: The key of the request it stands under, for the error.
        device: Where the tensor is made.

    Returns:
        The tensor; of a list of arrays, which have a dtype, an array.

    Raises:
        InputError: The dtype does not hold them, none is told, or the lists have no shape.
    """
    kind = type(value).__name__
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        what = f"this is nothing numpy can read ({error})"
        raise InputError(what, key=key, expected=port.accepts(), got=kind) from None
    while type(value) in (list, tuple) and len(value):
        value = value[0]
    if type(value) not in PLAIN and array.dtype.kind not in "OUS":
        return array
    what, hint = "wrong dtype", None
    if port.dtype is None:
        what = f"a {kind} carries no dtype, and this model tells none"
        hint = "The option `shape` says it, as 'float32:3x224x224', or send an array."
    elif (tensor := _of_dtype(array, port.dtype)) is not None:
        return tensor.to(device)
    got = f"{array.dtype} {list(array.shape)} from {kind}"
    raise InputError(what, key=key, expected=port.accepts(), got=got, hint=hint)


def _of_dtype(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor | None:
    """Give an array of Python's numbers as a tensor of a dtype; None where a value would change."""
    wanted = "f" if dtype.is_floating_point else "b" if dtype == torch.bool else "i"
    if dtype.is_complex or (array.size and wanted not in _BECOMES.get(array.dtype.kind, "")):
        return None
    if array.size and wanted == "i":
        bounds = torch.iinfo(dtype)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            return None
    given = torch.from_numpy(array)
    tensor = given.to(dtype)
    overflows = wanted == "f" and not torch.equal(tensor.isfinite(), given.isfinite())
    return None if overflows else tensor
