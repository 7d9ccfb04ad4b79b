"""Shared by `Alike` and `Budget`: the trait of a request, the weights of a batch, and the wait for other requests."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace.policies import BatchPolicy, Cut, Greedy, InstanceView, Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.policies import Waiting

__all__ = ["PickingPolicy", "closes", "number_of", "value_of"]

_WITHOUT_LENGTH = (dict, set, frozenset)
"""Their number of members says nothing of how long the work on them takes."""


def value_of(request: Any, key: str) -> Any:
    """Return what a request has under a key. Where it has none, ``length`` and ``shape`` are those of ``data``.

    Raises:
        InputError: The request has no such key, and ``data`` does not say it either.
    """
    if key in request:
        return request[key]
    data = request.get("data")
    if key == "length" and hasattr(data, "__len__") and not isinstance(data, _WITHOUT_LENGTH):
        try:
            return len(data)
        except TypeError:  # an array without axes
            pass
    if key == "shape" and hasattr(data, "shape"):
        return tuple(data.shape)
    derived = {"length": "data that has a length", "shape": "data that has a shape"}
    also = f", or {derived[key]}" if key in derived else ""
    raise InputError(
        f"the batch policy of the node reads the key {key!r}",
        key=key,
        expected=f"this key{also}",
        got=f"data of type {type(data).__name__}" if key in derived else None,
    )


def number_of(value: Any, key: str) -> float:
    """Return a length or a cost as a number.

    Raises:
        InputError: It is no number, below 0 or not finite.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputError(key=key, expected="a number of at least 0", got=type(value).__name__)
    number = float(value)
    if not (isfinite(number) and number >= 0):
        raise InputError(key=key, expected="a finite number of at least 0", got=repr(number))
    return number


def closes(queue: Queue) -> bool:
    """Tell whether the pipeline closes. A fake queue of a test need not say it: see `headrace.policies.Queue`."""
    return bool(getattr(queue, "closing", False))


class PickingPolicy(BatchPolicy):
    """Base of policies that pick, with the keys of `headrace.policies.Greedy`."""

    Options = Greedy.Options
    picks = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._sizes: tuple[int, ...] = self.options.batch_sizes or ()
        self._pad: bool = self.options.pad
        self._linger_s: float = self.options.batching_timeout / 1000

    def _most(self, instance: InstanceView) -> float:
        """Return the greatest weight of a batch on an instance; infinity for none."""
        most = float("inf") if instance.max is None else instance.max
        return max((size for size in self._sizes if size <= most), default=most)

    def _least(self, instance: InstanceView) -> int:
        """Return the smallest weight of a batch on an instance that needs no copies."""
        return min((size for size in self._sizes if size >= instance.min), default=instance.min)

    def _rows(self, weight: int, instance: InstanceView) -> int:
        """Return the weight with which a batch runs, filled up with copies where the node says ``pad``."""
        if not self._pad:
            return weight
        weight = max(weight, instance.min)
        return min((size for size in self._sizes if size >= weight), default=weight)

    def _sized(self, window: Sequence[Waiting], places: list[int], weight: int) -> list[int]:
        """Leave out the last of the places until the rest has an allowed size; all stay where none has."""
        if not self._sizes or self._pad:
            return places
        for count in range(len(places), 0, -1):
            if weight in self._sizes:
                return places[:count]
            weight -= window[places[count - 1]].weight
        return places

    def _over_at(self, queue: Queue) -> float:
        """Return when the oldest request has waited ``batching_timeout``."""
        return float(getattr(queue, "oldest", queue[0].arrival)) + self._linger_s

    def _timer(self, queue: Queue, now: float, *, full: bool) -> str:
        """Return the reason of a batch: ``timer`` where it has room left and the wait for others is over, else none."""
        over = not full and self._linger_s and now >= self._over_at(queue)
        return "timer" if over else ""

    def _lingers(self, queue: Queue, now: float, most: float) -> Cut | None:
        """Return the `Cut` of a batch with room left that waits for other requests. None if the wait is over, or in vain."""
        over_at = self._over_at(queue)
        if now >= over_at or not getattr(queue, "running", 0) or closes(queue):
            return None
        return Cut(0, over_at, None if most == float("inf") else int(most))
