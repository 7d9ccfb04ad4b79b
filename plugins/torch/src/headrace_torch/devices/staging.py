"""Pinned memory through which one element copies; it is allocated once and used for batch after batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from headrace_torch.requests.arrays import are_alike, gather, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace_torch.devices.place import Place

__all__ = ["Staging"]


class Staging:
    """Pinned memory of one element, for the rows of one batch.

    The end of a batch waits for the stream, so no copy uses the memory any more when the next batch takes it. A
    second use within one batch gets other memory, since the first copy may still be running.

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

        No tensor is made for a single array, because making and freeing one releases the interpreter lock.

        Returns:
            ``[N, ...]``. None if the arrays differ, one is no numpy array, torch lacks the dtype, or the instance is
            not on CUDA.
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
            The copy in pinned memory, which the caller must copy again before the next batch overwrites it.
        """
        staged = self._take(tuple(whole.shape), whole.dtype)
        staged.copy_(whole, non_blocking=True)
        self._place.use()
        self._place.wait()
        return staged

    def array_of(self, staged: torch.Tensor) -> NDArray[Any] | None:
        """Return a tensor on the CPU as a numpy array on the same memory; None if numpy lacks its dtype."""
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
        if self._turn == self._place.turns:  # an earlier copy of this batch may still be running
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
        """Release the memory; all copies are done by then."""
        self._memory = self._rows = self._array = None
