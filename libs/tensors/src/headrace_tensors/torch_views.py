"""Reads tensors of torch on a CUDA device by their address, without torch's capsule, which costs ten times as much."""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

from headrace_tensors.entering import order_behind, torch_stream

__all__ = ["TorchView", "is_plain_torch", "order_behind_torch", "torch_dtype", "view_of_torch"]


class TorchView(NamedTuple):
    """The memory of a tensor, in the order of its axes.

    Attributes:
        pointer: Address of the first element on the device.
        shape: Lengths of its axes.
        dtype: Name of its type, as numpy writes it.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str


def view_of_torch(value: Any, ordinal: int) -> TorchView | None:
    """Return a view of a plain torch tensor on the device ``ordinal``. torch is not imported.

    Before it is read, the reader's stream has to come behind the work that makes it, see `order_behind_torch`. None for
    every other value, and for a tensor that may have to be refused.
    """
    if not is_plain_torch(value, ordinal):
        return None
    return TorchView(value.data_ptr(), tuple(value.shape), torch_dtype(value))


def is_plain_torch(value: Any, ordinal: int) -> bool:
    """Tell whether `view_of_torch` has a view of a value."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor or value.get_device() != ordinal:
        return False
    if value.layout is not torch.strided or value.requires_grad or not value.is_contiguous():
        return False
    # `is_conj` and `is_neg` let go of the interpreter lock. Complex numbers alone are conjugated, and negated real ones are
    # the imaginary parts of these, of which no two lie side by side.
    return not (torch_dtype(value).startswith("complex") or (value.numel() < 2 and value.is_neg()))


def torch_dtype(value: Any) -> str:
    """Return the name of a tensor's type, as numpy writes it."""
    return _name_of(value.dtype)


def order_behind_torch(stream: int, ordinal: int) -> None:
    """Make later work on ``stream`` wait for torch's current stream of this thread, as ``__dlpack__`` does."""
    torch = sys.modules.get("torch")
    if torch is not None:
        order_behind(stream, torch_stream(torch, ordinal), ordinal)


@functools.cache
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
