"""The computation of `FixTensor`: finds out what a model's input takes, and converts an array to fit it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import BackendError
from headrace_torch.devices.transfer import moved_in
from headrace_torch.requests.items import as_rows
from headrace_torch.requests.tensors import as_tensor, refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_torch.devices.place import Place

__all__ = ["WAITING", "Target", "fixed", "target_of"]

WAITING = "headrace_torch.fixing"
"""The key in a scope for the list of `FixTensor`s that still wait for a model to declare its inputs."""

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Target:
    """What one input of a model takes.

    Attributes:
        dtype: The dtype of the input. None if neither the model nor an option declares it.
        shape: An int per fixed axis, None per dynamic one, the batch axis first. None if neither the model
            nor an option declares it.
    """

    dtype: torch.dtype | None
    shape: tuple[int | None, ...] | None

    @property
    def text(self) -> str:
        """A text for errors that says what a request may hold for the input."""
        kind = "a tensor" if self.dtype is None else str(self.dtype).removeprefix("torch.")
        if self.shape is None:
            return f"{kind}: a sample, or rows with `request_size`"
        axes = ", ".join("*" if n is None else str(n) for n in self.shape[1:])
        return f"{kind} [{axes}] (one sample, or `request_size` rows of them; channels may be last)"


def target_of(inputs: Mapping[str, Mapping[str, Any]] | None, options: Any) -> Target:
    """Return the target that the model declares. The options fill in what it does not declare.

    Args:
        inputs: The model's inputs, ``{name: {"dtype": "float32", "shape": [None, 3, 8, 8]}}``.
            None if the model does not declare them.
        options: The options of `FixTensor`.

    Raises:
        BackendError: The model has several inputs and the option ``input`` names none of them.
    """
    port: Mapping[str, Any] = {}
    if inputs:
        name = options.input or (next(iter(inputs)) if len(inputs) == 1 else "")
        if name not in inputs:
            raise BackendError(
                f"the model has the inputs {', '.join(inputs)}, and `data` is for one of them",
                hint="Name it in the option `input`.",
            )
        port = inputs[name]
    kind, _, written = _shape_text(options).rpartition(":")
    dtype = port.get("dtype") or options.dtype or kind or None
    shape = port.get("shape")
    if shape is None and written:
        axes = (int(axis) for axis in written.split("x"))
        shape = [None, *(None if axis < 0 else axis for axis in axes)]
    return Target(
        None if dtype is None else getattr(torch, dtype), None if shape is None else tuple(shape)
    )


def _shape_text(options: Any) -> str:
    """Return the text of the option ``shape``, or this input's text from a table; ``""`` if there is none."""
    shape = options.shape
    if isinstance(shape, dict):
        name = options.input or (next(iter(shape)) if len(shape) == 1 else "")
        shape = shape.get(name)
    return shape or ""


def fixed(
    value: Any, target: Target, place: Place, *, rows: int | None = None, cast: bool = False
) -> torch.Tensor:
    """Return an array in the form that the model takes, on the device of the instance.

    Args:
        value: One sample, or ``rows`` rows, with the model's axes, or with the channels last.
        target: What the model takes.
        place: Device and stream of the instance.
        rows: ``request_size`` of the request. None: the request has none.
        cast: Whether to convert to the model's dtype.

    Returns:
        A contiguous tensor ``[N, ...]`` of the target's dtype.

    Raises:
        InputError: ``value`` is no array, or has other axes or another dtype than the model takes.
    """
    tensor = as_tensor(value, "data", target.text)
    if target.dtype is not None and tensor.dtype != target.dtype and not cast:
        raise refused(
            "wrong dtype", target.text, tensor, hint="cast = true converts, without scaling."
        )
    if tensor.is_complex() and not (target.dtype is None or target.dtype.is_complex):
        raise refused("a conversion would drop the imaginary parts", target.text, tensor)
    if target.shape is None:
        sample = rows is None
    else:
        tensor, sample = _with_axes(tensor, target)
    if tensor is not value:
        place.keep(value)
    tensor = as_rows(tensor, 1 if rows is None else rows, "data", sample=sample)
    tensor = moved_in(tensor, place)
    if target.dtype is not None:
        tensor = tensor.to(target.dtype)
    return tensor.contiguous()


def _with_axes(tensor: torch.Tensor, target: Target) -> tuple[torch.Tensor, bool]:
    """Return a tensor with the model's axes, and whether it is one sample."""
    shape = target.shape or ()
    missing = len(shape) - tensor.ndim
    ends = shape[1:]
    if missing in (0, 1):
        lengths = tuple(tensor.shape[1 - missing :])
        if _fits(lengths, ends) and not (_by_channels(lengths, ends)):
            return tensor, missing == 1
        turned = (lengths[-1], *lengths[:-1])
        if len(ends) == 3 and _fits(turned, ends) and turned[0] in _CHANNELS:
            return tensor.movedim(-1, -3), missing == 1
        if _fits(lengths, ends):
            return tensor, missing == 1
    if missing == 2 and len(ends) == 3 and ends[0] in (1, None):
        # This is a grey image without an axis for its channel.
        lengths = (1, *tensor.shape)
        if _fits(lengths, ends):
            return tensor.unsqueeze(0), True
    raise refused("wrong shape", target.text, tensor)


def _fits(lengths: tuple[int, ...], ends: tuple[int | None, ...]) -> bool:
    return len(lengths) == len(ends) and all(
        fixed is None or length == fixed for length, fixed in zip(lengths, ends, strict=True)
    )


def _by_channels(lengths: tuple[int, ...], ends: tuple[int | None, ...]) -> bool:
    """Return whether the channels must be the last axis, judged by the lengths of the axes.

    That is so if the model fixes no number of channels, and the length of the last axis is a number of channels
    (1, 3 or 4) but that of the first axis is not.
    """
    return (
        len(ends) == 3
        and ends[0] is None
        and lengths[0] not in _CHANNELS
        and lengths[-1] in _CHANNELS
    )
