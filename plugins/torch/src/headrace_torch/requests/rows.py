"""`Row`: passed by one backend of this plugin to the next, instead of a tensor for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Handed", "Row"]


class Handed:
    """The N rows of a batch. Each backend replaces the whole tensor behind them. The `Row` objects stay the same.

    Attributes:
        whole: ``[N, ...]``, the tensor made by the last backend. None between two batches.
        rows: The N rows of ``whole``.
    """

    __slots__ = ("rows", "whole")

    def __init__(self, number: int) -> None:
        self.whole: Any = None
        self.rows = [Row(self, index) for index in range(number)]


class Row:
    """A row of a tensor. The next backend usually takes the whole tensor, so the row need not become a tensor.

    A tensor per row would cost two calls into torch, to make and to free it, and both release the interpreter lock.
    Only backends of this plugin see a `Row`: an element writes rows only if `headrace.InitContext.expression.followed_by` says
    that a backend of this plugin alone reads its results.
    """

    __slots__ = ("_handed", "_index")

    def __init__(self, handed: Handed, index: int) -> None:
        self._handed, self._index = handed, index

    def tensor(self) -> torch.Tensor:
        """Return the row as a tensor, a view of the whole."""
        row: torch.Tensor = self._handed.whole[self._index]
        return row
