"""Copies between CPU and devices, through pinned memory; only `copied_back` waits for its copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headrace_torch.requests.tensors import refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_torch.devices.place import Place

__all__ = ["as_numpy", "copied_back", "moved_in", "moved_together"]


def moved_in(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """Return a tensor on the device of an instance. A tensor that is there already is returned unchanged.

    A copy from the CPU to CUDA goes through pinned memory, which torch's allocator reuses only after the stream has
    done the copy.
    """
    if tensor.device == place.device:
        if place.stream is not None:
            place.take_in(tensor)
        return tensor
    if place.stream is None:
        if tensor.device.type == "cuda":
            # The default stream would also wait for work of other threads.
            return copied_back([tensor], place.beside(tensor.device))[0]
        return tensor.to(place.device)
    if tensor.device.type == "cpu":
        if not tensor.is_pinned():
            tensor = torch.empty_like(
                tensor, memory_format=torch.contiguous_format, pin_memory=True
            ).copy_(tensor)
    elif tensor.device.type == "cuda":
        beside = place.beside(tensor.device)
        with beside.on_stream():  # torch copies on the current stream of the source's device
            beside.take_in(tensor)
            return tensor.to(place.device, non_blocking=True)
    return tensor.to(place.device, non_blocking=True)


def moved_together(tensors: Sequence[torch.Tensor], place: Place) -> torch.Tensor | None:
    """Move CPU tensors of one shape and dtype to CUDA as the rows of one tensor, in one copy.

    Returns:
        ``[N, ...]``. None if the tensors differ, one is not on the CPU, or the instance is not on CUDA.
    """
    first = tensors[0]
    if place.stream is None or any(
        tensor.device.type != "cpu" or tensor.shape != first.shape or tensor.dtype != first.dtype
        for tensor in tensors
    ):
        return None
    pinned = torch.empty((len(tensors), *first.shape), dtype=first.dtype, pin_memory=True)
    torch.stack(list(tensors), out=pinned)  # one call, as each call releases the interpreter lock
    return pinned.to(place.device, non_blocking=True)


def copied_back(tensors: Sequence[torch.Tensor], place: Place) -> list[torch.Tensor]:
    """Copy tensors of one device to the CPU, and wait once until all copies are done.

    Args:
        tensors: Tensors on the device of ``place``.
        place: The device of the tensors, with a stream on which they are read.

    Returns:
        Tensors on the CPU, in ordinary (not pinned) memory of their own.
    """
    if place.stream is None:
        if place.device.type == "mps":
            place.use()
            place.wait()
        return [tensor.cpu() for tensor in tensors]
    with place.on_stream():
        staged = []
        for tensor in tensors:
            place.take_in(tensor)
            staged.append(
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
                    tensor, non_blocking=True
                )
            )
        place.use()
        place.wait()
    # The results are copied to ordinary memory: pinned memory is scarce, and callers may keep results for long.
    return [array.clone() for array in staged]


def as_numpy(tensor: torch.Tensor) -> Any:
    """Return a CPU tensor as a numpy array on the same memory.

    Raises:
        InputError: numpy does not have the dtype (as ``bfloat16``).
    """
    try:
        return tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        problem = f"numpy has no such array ({error})"
        raise refused(problem, "a dtype that numpy has", tensor) from None
