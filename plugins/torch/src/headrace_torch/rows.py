"""`Row`: what one word of this plugin hands the next one of in place of a tensor of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Handed", "Row"]


class Handed:
    """The rows of a whole that goes from word to word of a batch, while the requests keep their rows.

    Attributes:
        whole: ``[N, ...]``, what the last word has made; None between two batches.
        rows: The N rows of it.
    """

    __slots__ = ("rows", "whole")

    def __init__(self, number: int) -> None:
        self.whole: Any = None
        self.rows = [Row(self, index) for index in range(number)]


class Row:
    """A row of a whole, which the next word mostly takes as the whole it is of.

    A tensor per row costs two calls into torch, to make it and to free it, and each gives up the
    interpreter's lock. Nobody else sees a row: an element gives them where
    `headrace.InitContext.followed_by` says that a word of this plugin alone is given its results.
    """

    __slots__ = ("_handed", "_index")

    def __init__(self, handed: Handed, index: int) -> None:
        self._handed, self._index = handed, index

    def tensor(self) -> torch.Tensor:
        """Give the row as a tensor, a view of the whole."""
        row: torch.Tensor = self._handed.whole[self._index]
        return row
