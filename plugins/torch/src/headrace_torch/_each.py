"""Loops over the requests of a batch that take no step of Python for each: a chain of words is full of them."""

from __future__ import annotations

from collections import deque
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.keys import Request

__all__ = ["any_has", "each_holds", "of_each", "put_in_each"]


def of_each(batch: Sequence[Request], key: str) -> list[Any]:
    """Give what each request holds under a key, None where it has none."""
    return list(map(dict.get, batch, repeat(key)))


def any_has(batch: Sequence[Request], key: str) -> bool:
    """Tell whether a request has a key."""
    return any(map(dict.__contains__, batch, repeat(key)))


def each_holds(batch: Sequence[Request], key: str, values: Iterable[Any]) -> bool:
    """Tell whether each request holds the very object of `values` under a key, in order."""
    return all(map(is_, map(dict.get, batch, repeat(key)), values))


def put_in_each(batch: Sequence[Request], key: str, values: Iterable[Any]) -> None:
    """Write one of the values into each request, in order; there are as many."""
    deque(map(dict.__setitem__, batch, repeat(key), values), 0)
