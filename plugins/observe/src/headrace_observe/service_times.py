"""How long a batch takes, by its size: from a file that was measured, or written by hand."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError, among
from headrace_observe.files import read_json
from headrace_observe.memory import is_dump, read_dump

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from headrace_observe.memory import Memory

__all__ = ["ServiceTimes", "read_times", "times_of"]

_SWITCHES = ("wake_ms", "between_ms", "turn_ms")
"""The keys of the times that switches of threads take."""

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
            InputError: Only one size was measured, and ``size`` is larger.
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


def read_times(path: str | os.PathLike[str]) -> dict[str, ServiceTimes]:
    """Read the times of batches of each node.

    The file is JSON, as ``bench --save-times`` writes it, ``{"nodes": {"main": {"8": {"ms": [4.1,
    4.3]}}}, "wake_ms": {"main": [0.1, 0.3]}, "between_ms": {"main": 0.1}, "turn_ms": {"main": 0.1}}``, or by hand: ``{"main": {"1": 2.0, "8": [4.1, 4.3]}}``, in
    milliseconds. Beside ``ms``, ``beside`` may have the times by how many other batches ran meanwhile.

    Raises:
        InputError: The file cannot be read or is invalid, or has a key that would be ignored. The error says where.
    """
    if is_dump(_head_of(path)):
        return times_of(read_dump(path)[0], str(path))
    content = read_json(path)
    more: dict[str, dict[str, list[float]]] = {}
    keys = ("nodes", *_SWITCHES)
    known = [name for name in keys if isinstance(content, dict) and name in content]
    if any(not _is_by_size(content[name]) for name in known):  # else a node has the name
        if "nodes" not in content:
            raise InputError(
                f'{path}: {known[0]} stands beside "nodes", which has the times of each node: '
                f'{{"nodes": {{"main": {{"1": 2.0}}}}, "{known[0]}": {{"main": 0.1}}}}'
            )
        _refuse_others(content, keys, str(path))
        more = {
            name: _by_node(content.get(name, {}), f"{path}: {name}", content["nodes"])
            for name in _SWITCHES
        }
        content = content["nodes"]
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path}: expected an object with the times of each node")
    return {
        str(node): _node(
            str(node),
            sizes,
            str(path),
            {name: more[name].get(node, []) for name in more},
        )
        for node, sizes in content.items()
    }


def _head_of(path: str | os.PathLike[str]) -> str:
    with contextlib.suppress(OSError, ValueError), Path(path).open(encoding="utf-8") as file:
        return file.readline(200)
    return ""


def times_of(memory: Memory, origin: str = "what is remembered") -> dict[str, ServiceTimes]:
    """Return the times of the batches that are remembered, for each node. ``origin`` is named in errors.

    Raises:
        InputError: No batch of a node is remembered.
    """
    found: dict[str, ServiceTimes] = {}
    for name in memory.nodes:
        ran = {
            (place, one.cut): (one.size, 1000 * (one.ended - one.cut))
            for (node, place), batches in memory.batches.items()
            if node == name
            for one in batches
        }
        by_size: dict[int, list[float]] = {}
        for size, ms in ran.values():
            by_size.setdefault(size, []).append(ms)
        if not by_size:
            raise InputError(f"{origin}: no batch of the node {name!r} is remembered")
        requests = sum(size * len(times) for size, times in by_size.items())
        found[name] = ServiceTimes(name, by_size, origin, requests)
    return found


def _is_by_size(found: Any) -> bool:
    return isinstance(found, dict) and bool(found) and all(str(size).isdecimal() for size in found)


def _refuse_others(found: dict[str, Any], known: Sequence[str], place: str) -> None:
    for one in found:
        if one not in known:
            raise InputError(f"{place}: there is no key {one!r}", hint=among(one, known))


def _by_node(found: Any, place: str, nodes: Any) -> dict[str, list[float]]:
    if not isinstance(found, dict):
        raise InputError(f"{place}: expected a time in milliseconds, or a list of them, per node")
    if isinstance(nodes, dict):
        _refuse_others(found, list(nodes), place)
    return {node: _times(times, f"{place}.{node}") for node, times in found.items()}


def _node(
    node: str,
    sizes: Any,
    origin: str,
    switches: Mapping[str, Sequence[float]],
) -> ServiceTimes:
    if not isinstance(sizes, dict) or not sizes:
        raise InputError(f"{origin}: {node}: expected an object with times by batch size")
    measured: dict[int, list[float]] = {}
    shared: dict[int, dict[int, list[float]]] = {}
    requests: int | None = 0
    for size, found in sizes.items():
        place = f"{origin}: {node}.{size}"
        if not str(size).isdecimal() or int(size) < 1:
            raise InputError(f"{place}: expected a batch size, a whole number of at least 1")
        times, count = found, None
        if isinstance(found, dict):
            _refuse_others(found, ("ms", "count", "beside"), place)
            times, count = found.get("ms"), found.get("count")
            shared[int(size)] = _by_number(found.get("beside", {}), f"{place}.beside")
        if count is not None and (type(count) is not int or count < 0):
            raise InputError(f"{place}.count: expected how many batches there were, got {count!r}")
        measured[int(size)] = _times(times, place)
        requests = None if requests is None or count is None else requests + int(size) * count
    if not any(any(times) for times in measured.values()):
        raise InputError(f"{origin}: {node}: all times are 0, so there is no throughput to predict")
    wakes_ms, between_ms, turns_ms = (switches.get(name, ()) for name in _SWITCHES)
    return ServiceTimes(
        node, measured, origin, requests, wakes_ms, between_ms, turns_ms, beside=shared
    )


def _by_number(found: Any, place: str) -> dict[int, list[float]]:
    if not isinstance(found, dict) or not all(str(number).isdecimal() for number in found):
        raise InputError(f"{place}: expected times by how many other batches ran")
    return {int(number): _times(times, f"{place}.{number}") for number, times in found.items()}


def _times(found: Any, place: str) -> list[float]:
    times = found if isinstance(found, list) else [found]
    if not times or not all(_is_time(one) for one in times):
        raise InputError(f"{place}: expected a time in milliseconds, or a list of them")
    return times


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf
