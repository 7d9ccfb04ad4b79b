"""Keeps parsed requests of one model, because clients repeat them."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["ParsedCache"]

T = TypeVar("T")

_MOST = 256
_MOST_BYTES = 4096


class ParsedCache(Generic[T]):
    """Parsed requests of one model, by the bytes they were parsed from: at most 256, of up to 4096 bytes each.

    Attributes:
        known: The requests by their bytes.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, T] = {}

    def keep(self, written: bytes, request: T) -> None:
        """Keep a parsed request, unless its bytes are too many; if it is full, all earlier entries are dropped."""
        if len(written) <= _MOST_BYTES:
            if len(self.known) >= _MOST:
                self.known.clear()
            self.known[written] = request
