"""Weights of requests, and ranges of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import BackendError, InputError, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.keys import Request


RANGE_HINT = "min is an int of at least 1, max is None or an int of at least min."


def weight_of(batch: Sequence[Request]) -> int:
    """Give the weight of a batch: the sum of ``request_size``, 1 where an item has none."""
    total = 0
    for request in batch:
        total += request.get("request_size", 1)
    return total


def range_problem(least: object, most: object) -> str | None:
    """Tell what is wrong with a batch range, None for nothing."""
    if _is_weight(least) and (most is None or (_is_weight(most) and most >= least)):  # type: ignore[operator]
        return None
    return f"min={least!r}, max={most!r} is no batch range"


def _is_weight(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def wrong_weight(request: Request) -> RequestError:
    """Make the error of an item in a batch whose weights cannot be summed up."""
    weight = request.get("request_size", 1)
    if _is_weight(weight):
        return BackendError("another item of the batch has a 'request_size' that is no int")
    return InputError(
        "the weight of the request is wrong",
        key="request_size",
        expected="an int of at least 1",
        got=repr(weight),
    )
