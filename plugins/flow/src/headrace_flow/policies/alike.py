"""`Alike`: batches of requests with similar lengths, equal shapes or any other similar key."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from headrace.errors import InputError
from headrace.policies import Cut, Greedy, InstanceView, Queue
from headrace_flow.policies.picking import PickingPolicy, closes, number_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.policies import Waiting

__all__ = ["Alike"]


class _Group(NamedTuple):
    """Requests that may share a batch. Of two groups the greater becomes the batch.

    Attributes:
        weight: The sum of their weights.
        youth: The first place among them, negative: the request that has waited longest goes first.
        nearness: By how little they differ, negative.
        places: Their places in the window.
        full: Whether a further similar request was too heavy for the batch.
    """

    weight: int
    youth: int
    nearness: float
    places: tuple[int, ...]
    full: bool


class Alike(PickingPolicy):
    """Form batches of similar requests: neighbours in length, or requests of equal shape.

    Of the first 256 requests it takes the heaviest group within ``spread`` that fits into the instance. Of equally heavy
    groups it takes the group of the first request, then the group with the least spread. So a request may be overtaken.
    Once the first request has waited ``batching_timeout`` and then ``patience_ms``, it is in the next batch. A waiting
    request of the greatest priority is in every batch. A request queued again by its backend, as by `Iterate` after
    each step, counts with its present length.

    While another instance runs, a group with room left waits ``batching_timeout`` for other requests, as with
    ``greedy``. A group below the ``min`` of the node waits for neighbours until the patience is over. Then the nearest
    requests fill it up, however different they are.

    Example:
        ``batch_policy = "Alike(by=length, spread=0.2, patience_ms=20)"``
    """

    class Options(Greedy.Options):
        """Keys of the node for the policy.

        Attributes:
            by: The key of a request that is compared: numbers by their spread, all else for being equal. Where a
                request has no `length` or `shape`, it is that of `data`.
            spread: The most that (greatest - least) / greatest may be in a batch.
            patience_ms: How long the first request may be overtaken, in milliseconds after batching_timeout.
        """

        by: str = Field("length", min_length=1)
        spread: float = Field(0.2, ge=0, le=1)
        patience_ms: float = Field(20, ge=0)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._by: str = self.options.by
        self._spread: float = self.options.spread
        self._patience_s: float = self._linger_s + self.options.patience_ms / 1000

    def trait(self, request: Any) -> float | tuple[Any]:
        """Return the length of a request as a float, or the value that has to be equal in a tuple.

        Raises:
            InputError: The request does not have the key, or a value that cannot be compared.
        """
        value = value_of(request, self._by)
        if isinstance(value, list):
            value = tuple(value)
        try:
            hash(value)
        except TypeError as error:
            needed = "a number, a text or a shape"
            raise InputError(key=self._by, expected=needed, got=type(value).__name__) from error
        if isinstance(value, Real) and not isinstance(value, bool):
            return number_of(value, self._by)
        return (value,)

    def cut(self, queue: Queue, instance: InstanceView, now: float) -> Cut:
        """Form a batch. See `headrace.policies.BatchPolicy.cut`."""
        most, least = self._most(instance), self._least(instance)
        window = [queue[place] for place in range(len(queue))]
        first = window[0]
        if first.weight > most:
            return Cut(0)
        due_at = first.arrival + self._patience_s
        due = now >= due_at or closes(queue)
        # The requests of the greatest priority stand first. One of them has to be in the batch.
        leading = 1
        while not due and leading < len(window) and window[leading].priority == first.priority:
            leading += 1
        group = max([*self._numbers(window, most, leading), *self._equals(window, most, leading)])
        places = sorted(group.places)
        weight = group.weight
        if weight < least and not self._pad:
            if not due and getattr(queue, "open", True):
                return Cut(0, due_at)
            places, weight = self._with_nearest(window, places, weight, (least, most))
        elif not group.full and weight < most and self._linger_s:
            waits = self._lingers(queue, now, most)
            if waits is not None:
                return waits
        reason = "patience" if now >= due_at else self._timer(queue, now, full=group.full)
        return Cut(tuple(self._sized(window, places, weight)), reason=reason)

    def _numbers(self, window: Sequence[Waiting], most: float, leading: int) -> Iterable[_Group]:
        """Return the best run of neighbours in length that holds one of the first ``leading`` places, if there is one."""
        order = sorted(
            [place for place, entry in enumerate(window) if type(entry.trait) is float],
            key=lambda place: (window[place].trait, place),
        )
        lengths = [window[place].trait for place in order]
        weights = [window[place].weight for place in order]
        spread, count = self._spread, len(order)
        runs: list[tuple[int, int, int, bool]] = []
        heaviest = weight = leads = end = 0
        # For each first request the longest run from it on. Begin and end only move to the right.
        for begin, low in enumerate(lengths):
            heavy = False
            while end < count and _apart(low, lengths[end]) <= spread:
                heavy = weight + weights[end] > most
                if heavy:
                    break
                weight += weights[end]
                leads += order[end] < leading
                end += 1
            if leads and weight >= heaviest:
                heaviest = weight
                runs.append((weight, begin, end, heavy))
            if end > begin:
                weight -= weights[begin]
                leads -= order[begin] < leading
            else:
                end += 1
        heaviest_runs = [run[1:] for run in runs if run[0] == heaviest]
        at = order.index(0) if 0 in order else -1
        # The runs of the first request are better than all others.
        of_first = [run for run in heaviest_runs if run[0] <= at < run[1]]
        best = max(
            [
                (
                    -min(order[begin:end]),
                    -_apart(lengths[begin], lengths[end - 1]),
                    begin,
                    end,
                    heavy,
                )
                for begin, end, heavy in of_first or heaviest_runs
            ],
            default=None,
        )
        if best is not None:
            youth, nearness, begin, end, heavy = best
            yield _Group(heaviest, youth, nearness, tuple(order[begin:end]), heavy)

    def _equals(self, window: Sequence[Waiting], most: float, leading: int) -> Iterable[_Group]:
        """Return the groups of equal requests whose first one has one of the first ``leading`` places."""
        groups: dict[Any, tuple[list[int], list[int]]] = {}
        for place, entry in enumerate(window):
            if type(entry.trait) is tuple and entry.weight <= most:
                group = groups.get(entry.trait)
                if group is not None:
                    group[0].append(place)
                elif place < leading:
                    groups[entry.trait] = ([place], [])
        for places, left_out in groups.values():
            weight = 0
            for place in places:
                if weight + window[place].weight > most:
                    left_out.append(place)
                else:
                    weight += window[place].weight
            taken = tuple(place for place in places if place not in left_out)
            yield _Group(weight, -taken[0], 0.0, taken, bool(left_out))

    def _with_nearest(
        self, window: Sequence[Waiting], places: list[int], weight: int, bounds: tuple[int, float]
    ) -> tuple[list[int], int]:
        """Add the nearest in length until a batch has the least weight. Groups of equal shape get none."""
        least, most = bounds
        if type(window[places[0]].trait) is not float:
            return places, weight
        low = min(window[place].trait for place in places)
        high = max(window[place].trait for place in places)
        others = [
            (max(low - entry.trait, entry.trait - high), place)
            for place, entry in enumerate(window)
            if type(entry.trait) is float and place not in places
        ]
        for _, place in sorted(others):
            if weight >= least:
                break
            if weight + window[place].weight <= most:
                places.append(place)
                weight += window[place].weight
        return places, weight


def _apart(low: float, high: float) -> float:
    """Return the spread of two lengths: (high - low) / high."""
    return (high - low) / high if high else 0.0
