"""Reads an input as a tensor on the instance's device, behind the work that makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headrace_torch.requests.tensors import ARRAY, refused, tensor_of

if TYPE_CHECKING:
    from headrace_torch.devices.place import Place

__all__ = ["input_tensor"]


def input_tensor(
    value: Any, place: Place, key: str = "data", expected: str = ARRAY, *, strict: bool = True
) -> torch.Tensor:
    """Return an input as a tensor on the instance's device. The stream is ordered behind the work that makes it.

    With ``strict`` False a tensor in the memory of the host is returned as it is.

    Raises:
        InputError: ``value`` is no array, or on another device than the instance.
    """
    tensor = tensor_of(value, key, expected)
    if not strict and tensor.device.type == "cpu":
        return tensor
    if tensor.device != place.device:
        device = place.device
        raise refused(
            f"the array is on {tensor.device}, this instance computes on {device}",
            f"{expected} on {device}",
            value if isinstance(value, torch.Tensor) else tensor,
            key,
            hint="GpuTensor, CpuTensor and FixTensor move arrays; a node's `device` says where it"
            " computes. Behind an engine write output_device = 'device'.",
        )
    if place.stream is not None:
        place.take_in(tensor)
        if not isinstance(value, torch.Tensor):
            place.keep(value)
    return tensor
