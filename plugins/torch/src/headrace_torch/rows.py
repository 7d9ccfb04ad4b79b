"""`Row`: what one word of this plugin hands the next one of in place of a tensor of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Row"]


class Row(tuple):  # type: ignore[type-arg]
    """A row of a whole, ``(whole, index)``, which the next word mostly takes as the whole it is of.

    A tensor per row costs two calls into torch, to make it and to free it, and each gives up the
    interpreter's lock. Nobody else sees a row: an element gives them where
    `headrace.InitContext.followed_by` says that a word of this plugin alone is given its results.
    """

    __slots__ = ()

    def tensor(self) -> torch.Tensor:
        """Give the row as a tensor, a view of the whole."""
        whole, index = self
        row: torch.Tensor = whole[index]
        return row
