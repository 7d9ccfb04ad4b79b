"""The probe ``BatchTimes`` notes how long batches of each size run, in a file that ``headrace simulate`` reads."""

from __future__ import annotations

import random
import threading
from bisect import bisect_right
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import Field

import headrace
from headrace.errors import SetupError
from headrace_observe.files import check_writable, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.hookspecs import BatchRecord

__all__ = ["BatchTimes", "quantiles"]

_Kept = TypeVar("_Kept")

_KEPT = 2000
"""The most batches that are kept per size; if there are more, each has the same chance to be kept."""

_WRITTEN = 200
"""For each size, at most so many times are written."""

_ENOUGH = 20
"""The number of batches of a size from which its time beside a number of other batches is known."""

_LATEST = 256
"""The number of most recent batches among which those that ran beside a batch are searched."""

_HANDED_OVER_S = 20e-6
"""A batch that begins sooner after its cut counts as run by the thread that has cut it, not by a woken one."""


_AT_ONCE_S = 500e-6
"""A thread that has ended a batch cuts the next one sooner than this, if one is due."""

_TURN_S = 1e-3
"""A client that has its answer sends the next request sooner than this after the client before it, in a closed loop."""


def quantiles(values: Sequence[float], count: int) -> list[float]:
    """Return ``count`` of the values with the same spread: the middle one of each of ``count`` equal parts.

    Args:
        values: In ascending order, at least one.
        count: How many values to give. If there are not more, all are given.
    """
    if len(values) <= count:
        return list(values)
    return [values[int((k + 0.5) * len(values) / count)] for k in range(count)]


class _Noted:
    """A batch that has run: when it began and ended, and how long others ran meanwhile, in sum."""

    __slots__ = ("ended", "shared_s", "started")

    def __init__(self, started: float, ended: float) -> None:
        self.started, self.ended, self.shared_s = started, ended, 0.0

    @property
    def beside(self) -> int:
        """How many other batches ran beside it on average, as a whole number."""
        return round(self.shared_s / (self.ended - self.started)) if self.shared_s > 0 else 0


def _spreads(batches: Iterable[_Noted]) -> dict[str, Any]:
    """Give the spread of the times of batches of one size: of all, and by how many others ran beside."""
    groups: dict[int, list[float]] = {}
    for one in batches:
        groups.setdefault(one.beside, []).append(1000 * (one.ended - one.started))
    whole = [value for group in groups.values() for value in group]
    found: dict[str, Any] = {"ms": _written(whole, _WRITTEN)}
    often = {beside: group for beside, group in sorted(groups.items()) if len(group) >= _ENOUGH}
    if len(often) > 1:
        found["beside"] = {
            str(beside): _written(group, _WRITTEN) for beside, group in often.items()
        }
    return found


def _written(values: list[float], count: int) -> list[float]:
    return [round(value, 5) for value in quantiles(sorted(values), count)]


class _Sample(Generic[_Kept]):
    """A sample of at most `_KEPT` values (J. S. Vitter, Random sampling with a reservoir, 1985).

    Attributes:
        count: How many values were added.
        values: The sample.
    """

    def __init__(self) -> None:
        self.count = 0
        self.values: list[_Kept] = []
        self._draw = random.Random(0).randrange  # noqa: S311 - no secret

    def add(self, value: _Kept) -> None:
        """Add a value, which may replace another."""
        self.count += 1
        if len(self.values) < _KEPT:
            self.values.append(value)
        elif (place := self._draw(self.count)) < _KEPT:
            self.values[place] = value


class _Turns:
    """How long clients take to send their next requests, one after the other, once a batch has answered them.

    Attributes:
        sample: The times in milliseconds: from the end of a batch to the next arrival, and from each of the arrivals to
            the one after it, as many as the batch had requests.
    """

    def __init__(self) -> None:
        self.sample: _Sample[float] = _Sample()
        self._ends: list[tuple[float, int]] = []
        self._arrivals: list[float] = []

    def add(self, record: BatchRecord) -> None:
        """Add a batch; the requests that came after its end are known once their own batches have ended."""
        self._ends.append((record.ended, len(record.requests)))
        self._arrivals += [request.arrival for request in record.requests]
        if len(self._ends) >= 2 * _LATEST:
            self.sum_up(_LATEST)

    def sum_up(self, count: int | None = None) -> None:
        """Add to the sample what followed the first ``count`` of the ends, and forget those; None for all."""
        arrivals = sorted(self._arrivals)
        for ended, answered in self._ends[:count]:
            before, place = ended, bisect_right(arrivals, ended)
            for arrival in arrivals[place : place + answered]:
                if arrival - before > _TURN_S:  # no answer was the reason for this one
                    break
                self.sample.add(1000 * (arrival - before))
                before = arrival
        del self._ends[:count]
        # Of two batches that end at about the same time, the one that is reported first may have ended last.
        first = min((ended for ended, _ in self._ends), default=inf)
        self._arrivals = arrivals[bisect_right(arrivals, first) :]


class BatchTimes:
    """The probe that notes the time of every batch without an error, and writes the times when the pipeline closes.

    The file is JSON, ``{"nodes": {node: {size: {"count": n, "ms": [...]}}}, "wake_ms": {node: [...]},
    "between_ms": {node: [...]}, "turn_ms": {node: [...]}}``. For each
    node and number of requests in a batch, ``count`` is the number of batches, and ``ms`` has the spread of
    their times in milliseconds, ascending. The clock covers a batch on its instance, without the queue.
    ``beside`` has the same by how many other batches, of any node, ran meanwhile (on average), because batches that
    share processors or a device slow each other down. ``wake_ms`` has the spread of the times, in milliseconds, from
    the cut of a batch to its start, over the batches for which a thread was woken. ``between_ms`` has the spread of
    the times from the end of a batch to the start of the next one in the same thread, over the batches whose first
    request waited for that and that were cut at once, because no policy lingered. ``turn_ms`` has the spread of the
    times that clients take one after the other, once a batch has answered them, to send their next requests.
    """

    class Options(headrace.Options):
        """The file for the times."""

        path: headrace.OutputPath = Field(description="The JSON file that is written at close.")

    def __init__(self, options: Options) -> None:
        """Begin to note.

        Raises:
            SetupError: The file cannot be written.
        """
        self._path = options.path
        try:
            check_writable(options.path)
        except OSError as error:
            why = f"the times {options.path} cannot be written: {error.strerror}"
            raise SetupError(why) from error
        self._lock = threading.Lock()
        self._noted: dict[tuple[str, int], _Sample[_Noted]] = {}
        self._latest: deque[_Noted] = deque(maxlen=_LATEST)
        self._wakes: dict[str, _Sample[float]] = {}
        self._between: dict[str, _Sample[float]] = {}
        self._turns: dict[str, _Turns] = {}
        self._before: dict[tuple[str, int], tuple[int, float]] = {}
        """Per node and instance: the thread of its last batch, and when that batch ended."""

    def batch_ran(self, record: BatchRecord) -> None:
        """Note one batch."""
        key = (record.node, len(record.errors))
        last = record.requests[-1]
        woken = record.started - last.cut if last.cut > last.arrival else 0.0
        noted = _Noted(record.started, record.ended)
        with self._lock:
            place = (record.node, record.instance)
            thread, before = self._before.get(place, (None, 0.0))
            self._before[place] = record.thread, record.ended
            self._turns.setdefault(record.node, _Turns()).add(record)
            if any(error is not None for error in record.errors):
                return
            for other in reversed(self._latest):  # batches are reported at their ends
                if other.ended <= noted.started:
                    break
                shared_s = min(noted.ended, other.ended) - max(noted.started, other.started)
                noted.shared_s += shared_s
                other.shared_s += shared_s
            self._latest.append(noted)
            self._noted.setdefault(key, _Sample()).add(noted)
            waited = thread == record.thread and record.requests[0].arrival < before
            if waited and last.cut - before < _AT_ONCE_S:
                between_s = record.started - before
                self._between.setdefault(record.node, _Sample()).add(1000 * between_s)
            elif woken > _HANDED_OVER_S:
                self._wakes.setdefault(record.node, _Sample()).add(1000 * woken)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file as plain data."""
        nodes: dict[str, dict[str, Any]] = {}
        with self._lock:
            for (node, size), noted in sorted(self._noted.items()):
                about = {"count": noted.count, **_spreads(noted.values)}
                nodes.setdefault(node, {})[str(size)] = about
            for turns in self._turns.values():
                turns.sum_up()
            switches = {
                "wake_ms": self._wakes,
                "between_ms": self._between,
                "turn_ms": {node: turns.sample for node, turns in self._turns.items()},
            }
            written = {
                key: {
                    n: _written(found.values, _WRITTEN) for n, found in noted.items() if found.count
                }
                for key, noted in switches.items()
            }
        return {"nodes": nodes, **written}

    def close(self) -> None:
        """Write the file."""
        write_json(self._path, self.to_dict())
