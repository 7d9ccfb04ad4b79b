"""Measures how long a request waits in the pipeline and how long it runs there, for the access log.

The pipeline reports every batch to the probe ``ServeTimes``. Each request carries a `RunTimes` in its ``context``,
which every node and every element of ``each`` gets. The probe records the times there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RunTimes", "ServeTimes", "TimedContext", "is_timed", "with_probe"]

_PROBE = "ServeTimes"


class RunTimes:
    """The times at which a request of the protocol arrived and ran, in all nodes and for all of its items."""

    def __init__(self) -> None:
        self._runs: list[tuple[float, float]] = []
        self._arrived = float("inf")

    def add(self, arrived: float, began: float, ended: float) -> None:
        """Note one run, with times in seconds of one clock.

        Several threads may call it at a time without a lock, because ``append`` loses nothing. The race: threads A
        and B record an arrival at the same moment. In either order the later arrival may stay, and the logged
        queue time is then a little shorter.
        """
        self._runs.append((began, ended))
        self._arrived = min(self._arrived, arrived)

    def queue_and_run_s(self) -> tuple[float, float] | None:
        """Return the seconds in which the request only waited, and the seconds in which some part of it ran.

        None if no part of the request ever ran.
        """
        if not self._runs:
            return None
        run, until = 0.0, 0.0
        for began, ended in sorted(self._runs):
            run += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return max(0.0, until - self._arrived - run), run


class TimedContext(dict[str, Any]):
    """The ``context`` of a request, with its `RunTimes`; pickled for another process it becomes a plain dict."""

    __slots__ = ("times",)

    def __init__(self, content: Mapping[str, Any], times: RunTimes) -> None:
        super().__init__(content)
        self.times = times

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ServeTimes:
    """The probe: after every batch it notes the batch's times for each of its requests."""

    @staticmethod
    def batch_ran(record: Any) -> None:
        """Note when each request of the batch arrived, and when the batch ran."""
        for request in record.requests:
            context = request.request.get("context")
            if type(context) is TimedContext:
                context.times.add(request.arrival, record.started, record.ended)


def is_timed(pipe: headrace.Pipeline) -> bool:
    """Return whether a pipeline has the probe."""
    return _PROBE in pipe.config.plan().probes


def with_probe(source: Any, config: headrace.PipelineConfig) -> headrace.PipelineConfig:
    """Give a configuration with this probe added to its probes.

    Args:
        source: The configuration as a dict, or the path of its file.
        config: The configuration that was read from ``source``.
    """
    probes = [text.replace("${", "$${") for text in config.plan().probes]
    own = {"probes": [*probes, _PROBE]}
    if isinstance(source, dict):
        base, table = None, dict(source)
    else:
        path = Path(source).absolute()
        base, table = path.parent, {"extends": path.name}
    if "probes" in config.to_dict():
        table |= own
    else:
        table["global"] = {**table.get("global", {}), **own}
    return headrace.PipelineConfig.load(table, base=base)
