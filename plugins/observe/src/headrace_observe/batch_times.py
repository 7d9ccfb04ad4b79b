"""How long batches run, by their size: the probe ``BatchTimes``, whose file ``headrace simulate`` reads."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace_observe.figures import percentile
from headrace_observe.files import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.hookspecs import BatchRecord

__all__ = ["BatchTimes", "quantiles"]

_KEPT = 2000
"""Of each size the latest so many batches are kept."""

_WRITTEN = 200
"""Of each size at most so many values are written."""

_HANDED_OVER_S = 20e-6
"""What begins sooner after it was cut is run by the thread that has cut it."""


def quantiles(values: Sequence[float], count: int) -> list[float]:
    """Give ``count`` values that are spread like ``values``: those in the middle of equal parts.

    Args:
        values: In ascending order, at least one.
        count: How many to give; all of them where there are no more.
    """
    if len(values) <= count:
        return list(values)
    return [values[int((k + 0.5) * len(values) / count)] for k in range(count)]


class BatchTimes:
    """Note the time of every batch without an error, and write the times when the pipeline closes.

    The file is JSON, ``{"nodes": {node: {size: {"count": n, "ms": [...]}}}, "wake_ms": {node: w}}``: per
    node and number of requests in the batch how many batches there were, and the spread of their
    times in milliseconds, ascending. The clock covers a batch on its instance, without the queue.
    ``wake_ms`` is the median from a batch's cut to its start where a thread was woken to run it.
    """

    class Options(headrace.Options):
        """Where the times go."""

        path: headrace.OutputPath = Field(description="The JSON file that is written at close.")

    def __init__(self, options: Options) -> None:
        self._path = options.path
        self._lock = threading.Lock()
        self._noted: dict[tuple[str, int], deque[float]] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._wakes: dict[str, deque[float]] = {}

    def batch_ran(self, record: BatchRecord) -> None:
        """Note one batch."""
        if any(error is not None for error in record.errors):
            return
        key = (record.node, len(record.errors))
        last = record.requests[-1]
        woken = record.started - last.cut if last.cut > last.arrival else 0.0
        with self._lock:
            self._noted.setdefault(key, deque(maxlen=_KEPT)).append(record.ended - record.started)
            self._counts[key] = self._counts.get(key, 0) + 1
            if woken > _HANDED_OVER_S:
                self._wakes.setdefault(record.node, deque(maxlen=_KEPT)).append(woken)

    def to_dict(self) -> dict[str, Any]:
        """Give what the file holds."""
        nodes: dict[str, dict[str, Any]] = {}
        with self._lock:
            for node, size in sorted(self._noted):
                spread = quantiles(sorted(self._noted[node, size]), _WRITTEN)
                nodes.setdefault(node, {})[str(size)] = {
                    "count": self._counts[node, size],
                    "ms": [round(1000 * value, 5) for value in spread],
                }
            wakes = {
                node: round(1000 * percentile(sorted(found), 50), 5)
                for node, found in self._wakes.items()
            }
        return {"nodes": nodes, "wake_ms": wakes}

    def close(self) -> None:
        """Write the file."""
        write_json(self._path, self.to_dict())
