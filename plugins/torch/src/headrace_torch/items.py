"""Reads the tensors of one request, converts them if ``dtype`` asks for it, and checks them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import InputError
from headrace_torch.python_numbers import PLAIN, tensor_of_numbers
from headrace_torch.rows import Row
from headrace_torch.tensors import described, dtype_name, input_tensor, refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_torch.place import Place
    from headrace_torch.signature import Port, Signature

__all__ = [
    "Item",
    "as_rows",
    "fits",
    "group_items",
    "joined",
    "padding_fits",
    "read_item",
    "refuse_ragged",
]


@dataclass(frozen=True)
class Item:
    """The inputs of one request for a run.

    Attributes:
        tensors: A tensor for each input, in order, each with its batch axis.
        rows: The length of the batch axis.
        sample: Whether the request brought one sample, without batch axis.
    """

    tensors: tuple[torch.Tensor, ...]
    rows: int
    sample: bool

    def halves(self) -> tuple[Item, Item]:
        """Give the first and the second half of the rows."""
        half = self.rows // 2
        first, second = (
            [one[part] for one in self.tensors] for part in (slice(half), slice(half, None))
        )
        return Item(tuple(first), half, False), Item(tuple(second), self.rows - half, False)


def read_item(
    request: Mapping[str, Any],
    signature: Signature,
    keys: Mapping[str, str],
    place: Place,
    dtype: torch.dtype | None = None,
    pad_value: float | None = None,
) -> Item:
    """Read the inputs of a model from a request.

    Args:
        request: A request; ``request_size`` (default 1) is the number of rows it must have.
        signature: What the model takes.
        keys: The key of the request for each input name.
        place: Device and stream of the instance.
        dtype: The dtype to which floating inputs are cast; None: they are not cast.
        pad_value: The value with which axes may be padded, which each tensor must be able to hold; None:
            no axis is padded.

    Raises:
        InputError: A key is missing, or its value has another dtype, shape or device.
    """
    tensors: list[torch.Tensor] = []
    sample: bool | None = None
    rows = request.get("request_size", 1)
    for port in signature.inputs:
        key = keys[port.name]
        if key not in request:
            what = "the request lacks a key"
            raise InputError(what, key=key, expected=port.accepts(), got="nothing")
        value = request[key]
        if type(value) is Row:
            value = value.tensor()
        elif isinstance(value, PLAIN) and not hasattr(value, "dtype"):
            value = tensor_of_numbers(value, port, key, place.device)
        given = input_tensor(value, place, key, port.accepts())
        tensor = _with_dtype(given, port, key, dtype)
        if pad_value is not None and not padding_fits(tensor.dtype, pad_value):
            expected = f"a dtype that holds pad_value = {pad_value}"
            raise refused("this cannot be padded", expected, tensor, key)
        if port.shape is None:
            alone = place.is_sample(request, given)
        else:
            alone = _check_axes(given, port, key)
        if sample is not None and alone is not sample:
            what = "some inputs of this request have a batch axis, others have none"
            raise refused(what, port.text(sample=sample), given, key)
        sample = alone
        as_rows(given, rows, key, sample=alone)  # an error shows the request's own dtype
        tensors.append(tensor.unsqueeze(0) if alone else tensor)
    return Item(tuple(tensors), rows, bool(sample))


def as_rows(tensor: torch.Tensor, rows: int, key: str, *, sample: bool) -> torch.Tensor:
    """Return a tensor with its batch axis, which must be ``rows`` long.

    Raises:
        InputError: The tensor has another number of rows.
    """
    found = 1 if sample else (tensor.shape[0] if tensor.ndim else 0)
    if found != rows:
        raise InputError(
            "the number of rows is not `request_size`",
            key=key,
            expected=f"{rows} {'row' if rows == 1 else 'rows'}",
            got=f"{found} in {described(tensor)}",
        )
    return tensor.unsqueeze(0) if sample else tensor


def _with_dtype(
    tensor: torch.Tensor, port: Port, key: str, dtype: torch.dtype | None
) -> torch.Tensor:
    if dtype is not None and tensor.is_floating_point():
        if port.dtype is None or port.dtype.is_floating_point:
            return tensor.to(dtype)
    elif port.dtype is None and not tensor.is_complex():
        return tensor
    if tensor.dtype != port.dtype:
        raise refused("wrong dtype", port.accepts(), tensor, key)
    return tensor


def _check_axes(tensor: torch.Tensor, port: Port, key: str) -> bool:
    """Return whether a tensor is one sample; refuse a tensor of another rank or with an axis of another length."""
    shape = port.shape or ()
    missing = len(shape) - tensor.ndim
    if missing not in (0, 1):
        raise refused("wrong rank", port.accepts(), tensor, key)
    if not port.takes(tensor.shape[1 - missing :]):
        raise refused("wrong shape", port.accepts(), tensor, key)
    return bool(missing == 1)


def group_items(items: Sequence[Item]) -> list[list[int]]:
    """Group items whose samples have the same shapes and dtypes.

    Returns:
        For each group the positions of its items in ``items``, ascending; groups are in the order of their first.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for position, item in enumerate(items):
        key = tuple((tensor.shape[1:], tensor.dtype) for tensor in item.tensors)
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def fits(whole: torch.Tensor, port: Port, dtype: torch.dtype | None = None) -> bool:
    """Return whether the rows of a tensor are valid samples of an input, without a cast or cast to ``dtype``."""
    known = port.shape is not None
    if known and (len(port.shape or ()) != whole.ndim or not port.takes(whole.shape[1:])):
        return False
    if dtype is not None and whole.is_floating_point():
        return port.dtype is None or bool(port.dtype.is_floating_point)
    untold = port.dtype is None and dtype is None and not whole.is_complex()
    return untold or bool(whole.dtype == port.dtype)


def refuse_ragged(
    first: Item, item: Item, keys: Sequence[str], *, padded: bool = False
) -> InputError | None:
    """Return the error of an item whose samples differ from the first one's, else None.

    Args:
        first: The first item of the batch.
        item: The item to judge.
        keys: The key of the request for each input.
        padded: Whether samples are padded, so that only ranks and dtypes must be equal.
    """
    for key, a, b in zip(keys, first.tensors, item.tensors, strict=True):
        unlike = a.ndim != b.ndim if padded else a.shape[1:] != b.shape[1:]
        if unlike or a.dtype != b.dtype:
            return InputError(
                "the samples of this batch differ in shape or dtype",
                key=key,
                expected=f"{dtype_name(a.dtype)} {list(a.shape[1:])}, as its first",
                got=f"{dtype_name(b.dtype)} {list(b.shape[1:])}",
                hint=("" if padded else "ragged = 'pad' pads them to one shape, ")
                + "ragged = 'group' runs them apart.",
            )
    return None


def joined(
    tensors: Sequence[torch.Tensor],
    *,
    rows: int | None = None,
    pad_value: float | None = None,
    pad_multiple: int = 1,
    port: Port | None = None,
) -> torch.Tensor:
    """Put the rows of several tensors one below the other.

    Args:
        tensors: Tensors of one rank and dtype, each with its batch axis.
        rows: The number of rows of the result; the last row is repeated as often as needed. None: no row is added.
        pad_value: The value with which each axis is padded at its end, up to the longest; None: the tensors
            have one shape.
        pad_multiple: With ``pad_value``: dynamic axes are padded further, to a multiple of this length.
        port: What the model declares: fixed axes are not padded further, others to their greatest length at most.

    Returns:
        A new tensor; or the only one of ``tensors``, if nothing is added to it.
    """
    if pad_value is not None:
        tensors = _padded(tensors, pad_value, pad_multiple, port)
    missing = 0 if rows is None else rows - sum(len(tensor) for tensor in tensors)
    if missing > 0:
        last = tensors[-1][-1:]
        tensors = [*tensors, last.expand(missing, *last.shape[1:])]
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def padding_fits(dtype: torch.dtype, value: float) -> bool:
    """Return whether a dtype can hold a value without changing it."""
    if dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    if dtype == torch.bool:
        return value in (0, 1)
    about = torch.iinfo(dtype)
    return value.is_integer() and about.min <= value <= about.max


def _padded(
    tensors: Sequence[torch.Tensor],
    value: float,
    multiple: int,
    port: Port | None,
) -> Sequence[torch.Tensor]:
    axes = zip(*(tensor.shape[1:] for tensor in tensors), strict=True)
    longest = [max(lengths) for lengths in axes]
    wanted = [-(-length // multiple) * multiple for length in longest]
    for axis, exact in enumerate(port.shape[1:] if port is not None and port.shape else ()):
        wanted[axis] = longest[axis] if exact is not None else wanted[axis]
    for axis, _, most in port.limits if port is not None else ():
        wanted[axis - 1] = wanted[axis - 1] if most is None else min(wanted[axis - 1], most)
    if all(list(tensor.shape[1:]) == wanted for tensor in tensors):
        return tensors
    whole = tensors[0].new_full((sum(map(len, tensors)), *wanted), value)
    start = 0
    for tensor in tensors:
        stop = start + len(tensor)
        corner = (slice(start, stop), *map(slice, tensor.shape[1:]))
        whole[corner] = tensor
        start = stop
    return [whole]
