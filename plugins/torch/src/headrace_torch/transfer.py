"""Copies between CPU and device: through pinned memory, without waiting, and finished where said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headrace_torch.tensors import refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_torch.place import Place

__all__ = ["as_numpy", "copied_back", "moved_in", "moved_together"]


def moved_in(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """Give a tensor on the device of an instance; itself where it is there already.

    From the CPU to CUDA it goes through pinned memory, which torch's allocator uses again only
    after the copy has passed the stream.
    """
    if tensor.device == place.device:
        if place.stream is not None:
            place.take_in(tensor)
        return tensor
    if place.stream is None:
        return tensor.to(place.device)
    if tensor.device.type == "cpu":
        if not tensor.is_pinned():
            tensor = torch.empty_like(
                tensor, memory_format=torch.contiguous_format, pin_memory=True
            ).copy_(tensor)
    elif tensor.device.type == "cuda":
        beside = place.beside(tensor.device)
        with beside.on_stream():  # torch copies on the stream that is current where it reads
            beside.take_in(tensor)
            return tensor.to(place.device, non_blocking=True)
    return tensor.to(place.device, non_blocking=True)


def moved_together(tensors: Sequence[torch.Tensor], place: Place) -> torch.Tensor | None:
    """Move CPU tensors of one shape and dtype to CUDA as the rows of one tensor, in one copy.

    Returns:
        ``[N, ...]``; None where they differ, or lie elsewhere, or there is nothing to copy.
    """
    first = tensors[0]
    if place.stream is None or any(
        one.device.type != "cpu" or one.shape != first.shape or one.dtype != first.dtype
        for one in tensors
    ):
        return None
    pinned = torch.empty((len(tensors), *first.shape), dtype=first.dtype, pin_memory=True)
    torch.stack(list(tensors), out=pinned)  # one call: each gives up the interpreter's lock
    return pinned.to(place.device, non_blocking=True)


def copied_back(tensors: Sequence[torch.Tensor], place: Place) -> list[torch.Tensor]:
    """Give tensors of one device on the CPU, finished: one wait for all of them.

    Args:
        tensors: Tensors on the device of ``place``; those on the CPU stay as they are.
        place: That device, and the stream on which they were made.

    Returns:
        Tensors in ordinary memory of their own.
    """
    if place.stream is None:
        if place.device.type == "mps":
            place.use()
            place.wait()
        return [one.cpu() for one in tensors]
    with place.on_stream():
        staged = []
        for one in tensors:
            place.take_in(one)
            staged.append(
                torch.empty(one.shape, dtype=one.dtype, pin_memory=True).copy_(
                    one, non_blocking=True
                )
            )
        place.use()
        place.wait()
    # Pinned memory is scarce, and callers may keep results for long.
    return [one.clone() for one in staged]


def as_numpy(tensor: torch.Tensor, key: str = "data") -> Any:
    """Give a CPU tensor as a numpy array on the same memory.

    Raises:
        InputError: numpy has no such dtype (``bfloat16``).
    """
    try:
        return tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        what = f"numpy has no such array ({error})"
        raise refused(what, "a dtype that numpy has", tensor, key) from None
