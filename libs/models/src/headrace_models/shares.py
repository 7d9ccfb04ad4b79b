"""Aliases: a name that stands for a model, or for several by their shares."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Problem
from headrace_models.sources import is_shares

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Shares"]


class Shares:
    """The shares of an alias: which model serves a request.

    Attributes:
        shares: The part of requests that each model serves, by name, ``"detect"`` or ``"detect:3"``. They sum to 1.
    """

    def __init__(self, alias: str, target: Any, draw: Callable[[], float]) -> None:
        """Check the target of an alias.

        Args:
            alias: The alias.
            target: The name of a model, or shares by name: numbers that need not sum to 1.
            draw: Returns a random number in [0, 1).

        Raises:
            ConfigError: It is neither of them, a share is negative or not finite, or all are 0.
        """
        shares = {target: 1.0} if isinstance(target, str) else target
        wrong = None
        if not is_shares(shares):
            wrong = "is neither the name of a model nor a table of shares"
        elif not all(0 <= share < float("inf") for share in shares.values()):
            wrong = "has a share that is negative or not finite"
        elif not sum(shares.values()):
            wrong = "has no share above 0"
        if wrong is not None:
            hint = (
                f'Write {alias} = "detect:3", or {alias} = {{"detect:3" = 0.9, "detect:4" = 0.1}}.'
            )
            raise ConfigError(Problem("models", f"the alias {alias!r} {wrong}", hint=hint))
        total = sum(shares.values())
        self.shares = {name: value / total for name, value in shares.items()}
        self._names = [name for name, share in self.shares.items() if share]
        self._ends = [*accumulate(share for share in self.shares.values() if share)][:-1]
        self._draw = draw

    def name(self, key: str | bytes | None = None) -> str:
        """Return the name of the model that serves a request.

        Args:
            key: Requests with the same key are served by the same model as long as the shares stay. None: drawn.
        """
        if not self._ends:
            return self._names[0]
        at = self._draw() if key is None else _fraction(key)
        return self._names[bisect_right(self._ends, at)]


def _fraction(key: str | bytes) -> float:
    """Return a number in [0, 1) that a key always has, evenly spread over keys, in every process."""
    data = key.encode() if isinstance(key, str) else key
    return (int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 11) / (1 << 53)
