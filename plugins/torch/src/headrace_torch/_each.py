"""Loops over the requests of a batch, as short as they can be: a chain of words is full of them.

A loop in Python takes less time than the same of `map` and `operator`: its steps are specialised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.keys import Request

__all__ = ["any_has", "each_holds", "of_each", "put_in_each"]


def of_each(batch: Sequence[Request], key: str) -> list[Any]:
    """Give what each request holds under a key, None where it has none."""
    return [request.get(key) for request in batch]


def any_has(batch: Sequence[Request], key: str) -> bool:
    """Tell whether a request has a key."""
    for request in batch:  # noqa: SIM110 - a generator costs three times as much
        if key in request:
            return True
    return False


def each_holds(batch: Sequence[Request], key: str, values: Iterable[Any]) -> bool:
    """Tell whether each request holds the very object of `values` under a key, in order."""
    for request, value in zip(batch, values, strict=False):  # noqa: SIM110 - as above
        if request.get(key) is not value:
            return False
    return True


def put_in_each(batch: Sequence[Request], key: str, values: Iterable[Any]) -> None:
    """Write one of the values into each request, in order; there are as many."""
    for request, value in zip(batch, values, strict=False):
        request[key] = value
