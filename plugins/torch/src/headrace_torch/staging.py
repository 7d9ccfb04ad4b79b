"""Pinned memory that one element copies through, from batch to batch: taken once, and looked at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from headrace_torch.arrays import are_alike, gather, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace_torch.place import Place

__all__ = ["Staging"]


class Staging:
    """Pinned memory of one element, for the rows of one batch.

    The end of a batch waits for the stream, so the next batch may use the memory again; a second use
    within one batch gets memory of its own.

    Args:
        place: Device and stream of the instance.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._memory: torch.Tensor | None = None
        self._rows: torch.Tensor | None = None
        self._array: NDArray[Any] | None = None
        self._turn = -1

    def moved_arrays(self, arrays: Sequence[Any]) -> torch.Tensor | None:
        """Move numpy arrays of one shape and dtype to the device as the rows of one tensor.

        No array becomes a tensor of its own: making and freeing one gives up the interpreter's lock.

        Returns:
            ``[N, ...]``; None where they differ, are something else or of a dtype that torch lacks,
            or where there is nothing to copy.
        """
        if self._place.stream is None or not are_alike(arrays):
            return None
        kind = torch_dtype(arrays[0].dtype)
        if kind is None:
            return None
        staged = self._take((len(arrays), *arrays[0].shape), kind)
        gather(arrays, self.array_of(staged))
        return staged.to(self._place.device, non_blocking=True)

    def copied_out(self, whole: torch.Tensor) -> torch.Tensor:
        """Copy a tensor of this instance to the pinned memory, and wait for it.

        Returns:
            The copy, which is to be copied in its turn before the next batch.
        """
        staged = self._take(tuple(whole.shape), whole.dtype)
        staged.copy_(whole, non_blocking=True)
        self._place.use()
        self._place.wait()
        return staged

    def array_of(self, staged: torch.Tensor) -> NDArray[Any] | None:
        """Give a tensor on the CPU as a numpy array on its memory; None where numpy lacks its dtype."""
        if staged is self._rows and self._array is not None:
            return self._array
        try:
            array: NDArray[Any] = staged.numpy()
        except (TypeError, RuntimeError):
            return None
        if staged is self._rows:
            self._array = array
        return array

    def _take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self._turn == self._place.turns:  # copies of this batch may be on their way
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        self._turn = self._place.turns
        rows = self._rows
        if rows is not None and rows.shape == shape and rows.dtype is dtype:
            return rows
        nbytes = math.prod(shape) * dtype.itemsize
        if self._memory is None or len(self._memory) < nbytes:
            self._memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        self._rows = self._memory[:nbytes].view(dtype).view(shape)
        self._array = None
        return self._rows

    def close(self) -> None:
        """Give the memory back; its copies are done."""
        self._memory = self._rows = self._array = None
