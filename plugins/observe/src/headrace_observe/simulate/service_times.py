"""How long a batch takes, by its size: from a file that was measured, or written by hand."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import pydantic
from pydantic import Field

from headrace.errors import InputError
from headrace_observe.files import lines_of
from headrace_observe.memory import is_dump, read_dump

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from headrace_observe.memory import Memory, Visit

__all__ = ["ServiceTimes", "read_times", "times_of"]

_ENOUGH = 20
"""The number of batches of a size from which its time beside a number of other batches is known."""

_HANDED_OVER_S = 20e-6
"""A batch that begins sooner after its cut counts as run by the thread that has cut it, not by a woken one."""

_AT_ONCE_S = 500e-6
"""A thread that has ended a batch cuts the next one sooner than this, if one is due."""

_TURN_S = 1e-3
"""A client that has its answer sends the next request sooner than this after the client before it, in a closed loop."""

_HINT = 'Times are milliseconds by node and batch size: {"main": {"1": 2.0, "8": [4.1, 4.3]}}.'

_Ms = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
_Times = Annotated[
    list[_Ms],
    Field(min_length=1),
    pydantic.BeforeValidator(lambda times: times if isinstance(times, list) else [times]),
]

_PARTS = 200
"""The number of equal parts in the table of a spread."""


class ServiceTimes:
    """The times of batches of one node.

    For a size that was not measured, each quantile is interpolated linearly between the neighbouring sizes. Above the
    largest size it is extrapolated from the two largest. Below the smallest it is that of the smallest.

    Args:
        node: The name of the node, for errors.
        measured: The times of each batch size, in milliseconds. Sizes from 1, at least one time each.
        beside: The times of a batch size by how many other batches ran meanwhile, as far as they are known. Between
            two known numbers the lower one is used, and above the largest that one.
        origin: The file of the times, for errors.
        requests: The number of requests in all these batches. None if it is not known.
        wakes_ms: How long a woken thread takes to go on, in milliseconds. None if that is not known.
        between_ms: The times from the end of a batch to the start of one that waited for its instance, in
            milliseconds. None if they are not known.
        turns_ms: How long a client that has its answer takes to send its next request, while the others wait for
            their turns, in milliseconds. None if that is not known.

    Attributes:
        requests: As given.
        wakes_s, between_s, turns_s: The spread of ``wakes_ms``, of ``between_ms`` and of ``turns_ms``, in seconds,
            ascending. Empty if they are not known.
        extrapolated: The sizes outside of the measured ones whose times were asked for.
    """

    def __init__(
        self,
        node: str,
        measured: Mapping[int, Sequence[float]],
        origin: str,
        requests: int | None = None,
        wakes_ms: Sequence[float] = (),
        between_ms: Sequence[float] = (),
        turns_ms: Sequence[float] = (),
        beside: Mapping[int, Mapping[int, Sequence[float]]] | None = None,
    ) -> None:
        self.requests = requests
        self.wakes_s = _spread(wakes_ms) if wakes_ms else []
        self.between_s = _spread(between_ms) if between_ms else []
        self.turns_s = _spread(turns_ms) if turns_ms else []
        self._node, self._origin = node, origin
        self._spread = {size: _spread(times) for size, times in measured.items()}
        self._beside = {
            size: {number: _spread(times) for number, times in sorted(known.items())}
            for size, known in (beside or {}).items()
        }
        self._sizes = sorted(self._spread)
        self._tables: dict[tuple[int, int], list[float]] = {}
        self.extrapolated: set[int] = set()

    def seconds(self, size: int, part: float, beside: int = 0) -> float:
        """Return the time of a batch, in seconds.

        Args:
            size: The number of requests in the batch.
            part: The share of batches of this size that are quicker, from 0 to below 1.
            beside: How many other batches run.

        Raises:
            InputError: Only one size was measured, and ``size`` is larger; or none was.
        """
        table = self._tables.get((size, beside))
        if table is None:
            table = self._tables[size, beside] = self._table(size, beside)
        return table[int(part * len(table))]

    def _measured(self, size: int, beside: int) -> list[float]:
        known = self._beside.get(size)
        if not known:
            return self._spread[size]
        return known[max((number for number in known if number <= beside), default=min(known))]

    def _table(self, size: int, beside: int) -> list[float]:
        sizes = self._sizes
        if not sizes:
            raise InputError(f"{self._origin}: there is no batch of the node {self._node!r}")
        if size in self._spread:
            return self._measured(size, beside)
        self.extrapolated.update([size] if not sizes[0] < size < sizes[-1] else [])
        if size < sizes[0]:
            return self._measured(sizes[0], beside)
        if len(sizes) == 1:
            raise InputError(
                f"{self._origin}: node {self._node!r} has times for batches of {sizes[0]} alone, and a "
                f"batch of {size} is to be simulated: measure or give a second size, or limit batches to {sizes[0]} "
                f"with --set {self._node}.max={sizes[0]}"
            )
        above = min(bisect_left(sizes, size), len(sizes) - 1)
        low, high = sizes[above - 1], sizes[above]
        share = (size - low) / (high - low)
        pairs = zip(self._measured(low, beside), self._measured(high, beside), strict=True)
        return [max(a + share * (b - a), min(a, b)) for a, b in pairs]


def _spread(times: Sequence[float]) -> list[float]:
    """Return a table of `_PARTS` quantiles in seconds, from times in milliseconds."""
    ordered = sorted(times)
    return [ordered[int((k + 0.5) * len(ordered) / _PARTS)] / 1000 for k in range(_PARTS)]


_BY_HAND = pydantic.TypeAdapter(
    Annotated[
        dict[str, Annotated[dict[Annotated[int, Field(ge=1)], _Times], Field(min_length=1)]],
        Field(min_length=1),
    ]
)


def read_times(path: str | os.PathLike[str]) -> dict[str, ServiceTimes]:
    """Read the times of batches of each node.

    The file is a dump of the probe `Remember`, as ``bench --save-times`` and ``observe why --save`` write it, or JSON by hand, in
    milliseconds: ``{"main": {"1": 2.0, "8": [4.1, 4.3]}}``.

    Raises:
        InputError: The file cannot be read or is invalid. The error says where.
    """
    if is_dump(path):
        return times_of(read_dump(path), str(path))
    try:
        times = _BY_HAND.validate_json("\n".join(lines_of(path, "the times")))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = "".join(f": {part}" for part in first["loc"][:2])
        raise InputError(f"{path}{where}: {first['msg']}", hint=_HINT) from error
    for node, sizes in times.items():
        if not any(map(any, sizes.values())):
            raise InputError(
                f"{path}: {node}: all times are 0, so there is no throughput to predict"
            )
    return {node: ServiceTimes(node, sizes, str(path)) for node, sizes in times.items()}


def times_of(memory: Memory, origin: str = "what is remembered") -> dict[str, ServiceTimes]:
    """Return the times of the batches that are remembered, for each node. ``origin`` is named in errors."""
    beside = _beside(memory)
    times: dict[str, ServiceTimes] = {}
    for name in memory.nodes:
        by_size: dict[int, list[float]] = defaultdict(list)
        shared: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        wakes_ms: list[float] = []
        between_ms: list[float] = []
        ends: list[tuple[float, int]] = []
        for batch, before in _in_turn(memory, name):
            ends.append((batch.ended, batch.size))
            if batch.code != "ok":
                continue
            ms = 1000 * (batch.ended - batch.started)
            by_size[batch.size].append(ms)
            shared[batch.size][beside[batch]].append(ms)
            if before is not None and batch.arrival < before.ended > batch.cut - _AT_ONCE_S:
                between_ms.append(1000 * (batch.started - before.ended))
            elif batch.arrival < batch.cut < batch.started - _HANDED_OVER_S:
                wakes_ms.append(1000 * (batch.started - batch.cut))
        often = {
            size: {number: ms for number, ms in known.items() if len(ms) >= _ENOUGH}
            for size, known in shared.items()
        }
        arrivals = sorted(visit.arrival for visit in memory.visits if visit.node == name)
        requests = sum(size * len(each) for size, each in by_size.items())
        times[name] = ServiceTimes(
            *(name, by_size, origin, requests, wakes_ms, between_ms, _turns_ms(ends, arrivals)),
            beside={size: known for size, known in often.items() if len(known) > 1},
        )
    return times


def _in_turn(memory: Memory, node: str) -> Iterator[tuple[Visit, Visit | None]]:
    """Give the batches of a node, each with the one before it on its instance."""
    for (name, _), batches in memory.batches.items():
        if name == node:
            yield from zip(batches, [None, *batches], strict=False)


def _beside(memory: Memory) -> dict[Visit, int]:
    """Return how many other batches ran beside each on average, as a whole number."""
    shared_s: dict[Visit, float] = {}
    running: list[Visit] = []
    every = (batch for batches in memory.batches.values() for batch in batches)
    for batch in sorted(every, key=lambda ran: ran.started):
        shared_s[batch] = 0.0
        running = [other for other in running if other.ended > batch.started]
        for other in running:
            both_s = min(batch.ended, other.ended) - batch.started
            shared_s[batch] += both_s
            shared_s[other] += both_s
        running.append(batch)
    return {
        visit: round(both_s / (visit.ended - visit.started)) if both_s else 0
        for visit, both_s in shared_s.items()
    }


def _turns_ms(ends: Sequence[tuple[float, int]], arrivals: Sequence[float]) -> list[float]:
    """Return how long clients take to send their next requests, one after the other, once a batch has answered them.

    These are the times from the end of a batch to the next arrival, and from each arrival to the one after it, for as many
    requests as the batch had.
    """
    turns = []
    for ended, answered in ends:
        before, place = ended, bisect_right(arrivals, ended)
        for arrival in arrivals[place : place + answered]:
            if arrival - before > _TURN_S:  # no answer was the reason for this one
                break
            turns.append(1000 * (arrival - before))
            before = arrival
    return turns
