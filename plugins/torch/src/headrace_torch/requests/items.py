"""The rows of requests: with their batch axis, whether they fit an input and each other, halved, joined, padded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headrace.errors import InputError
from headrace_tensors import Item, padded_shape
from headrace_torch.requests.signature import Port
from headrace_torch.requests.tensors import described, dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = ["as_rows", "fits", "halves", "joined", "refuse_ragged"]


def halves(item: Item) -> tuple[Item, Item]:
    """Return the first and the second half of the rows of an item."""
    half = item.rows // 2
    first, second = (
        {name: tensor[part] for name, tensor in item.tensors.items()}
        for part in (slice(half), slice(half, None))
    )
    return Item(first, half, False), Item(second, item.rows - half, False)


def as_rows(tensor: torch.Tensor, rows: int, key: str, *, sample: bool) -> torch.Tensor:
    """Return a tensor with its batch axis, which must be ``rows`` long.

    Raises:
        InputError: The tensor has another number of rows.
    """
    count = 1 if sample else (tensor.shape[0] if tensor.ndim else 0)
    if count != rows:
        raise InputError(
            "the number of rows is not `request_size`",
            key=key,
            expected=f"{rows} {'row' if rows == 1 else 'rows'}",
            got=f"{count} in {described(tensor)}",
        )
    return tensor.unsqueeze(0) if sample else tensor


def fits(whole: torch.Tensor, port: Port, dtype: torch.dtype | None = None) -> bool:
    """Return whether the rows of a tensor are valid samples of an input, without a cast or cast to ``dtype``."""
    known = port.shape is not None
    if known and (len(port.shape or ()) != whole.ndim or not port.fits(whole.shape[1:])):
        return False
    if dtype is not None and whole.is_floating_point():
        return port.dtype is None or bool(port.dtype.is_floating_point)
    untold = port.dtype is None and dtype is None and not whole.is_complex()
    return untold or bool(whole.dtype == port.dtype)


def refuse_ragged(
    first: Item, item: Item, keys: Mapping[str, str], *, padded: bool = False
) -> InputError | None:
    """Return the error of an item whose samples differ from the first one's, else None.

    Args:
        first: The first item of the batch.
        item: The item to judge.
        keys: The key of the request for each batched input.
        padded: Whether samples are padded, so that only ranks and dtypes must be equal.
    """
    for name, key in keys.items():
        a, b = first.tensors[name], item.tensors[name]
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
        rows: The number of rows of the result. The last row is repeated as often as needed. None: no row is added.
        pad_value: The value with which each axis is padded at its end, up to the longest. None: the tensors
            have one shape.
        pad_multiple: With ``pad_value``: dynamic axes are padded further, to a multiple of this length.
        port: What the model declares: fixed axes are not padded further, others to their greatest length at most.

    Returns:
        A new tensor, or the only one of ``tensors``, if nothing is added to it.
    """
    if pad_value is not None:
        tensors = _padded(tensors, pad_value, pad_multiple, port)
    missing = 0 if rows is None else rows - sum(len(tensor) for tensor in tensors)
    if missing > 0:
        last = tensors[-1][-1:]
        tensors = [*tensors, last.expand(missing, *last.shape[1:])]
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _padded(
    tensors: Sequence[torch.Tensor],
    value: float,
    multiple: int,
    port: Port | None,
) -> Sequence[torch.Tensor]:
    shapes = [tensor.shape[1:] for tensor in tensors]
    target = list(padded_shape(shapes, port or Port("", None), multiple))
    if all(list(tensor.shape[1:]) == target for tensor in tensors):
        return tensors
    whole = tensors[0].new_full((sum(map(len, tensors)), *target), value)
    start = 0
    for tensor in tensors:
        stop = start + len(tensor)
        corner = (slice(start, stop), *map(slice, tensor.shape[1:]))
        whole[corner] = tensor
        start = stop
    return [whole]
