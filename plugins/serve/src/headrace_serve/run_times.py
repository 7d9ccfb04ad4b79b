"""How long a request waited in its pipeline, and how long it ran there, for the line that is logged of it.

The probe ``ServeTimes`` of the pipeline hears of every batch. A request carries what takes its times in its
``context``, which goes with it through a graph and to each of its elements.
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
    """When a request of the protocol waited and ran: in all nodes, and all items of it."""

    def __init__(self) -> None:
        self._runs: list[tuple[float, float]] = []
        self._arrived = float("inf")

    def add(self, arrived: float, began: float, ended: float) -> None:
        """Note one run, in seconds of one clock; threads may do so at a time."""
        self._runs.append((began, ended))
        self._arrived = min(self._arrived, arrived)

    def queue_and_run_s(self) -> tuple[float, float] | None:
        """Give the seconds in which nothing of it ran though it had arrived, and those in which something did.

        None where nothing of it ever ran.
        """
        if not self._runs:
            return None
        run, until = 0.0, 0.0
        for began, ended in sorted(self._runs):
            run += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return max(0.0, until - self._arrived - run), run


class TimedContext(dict[str, Any]):
    """The ``context`` of a request, with what takes its times; in another process it is a plain dict."""

    __slots__ = ("times",)

    def __init__(self, content: Mapping[str, Any], times: RunTimes) -> None:
        super().__init__(content)
        self.times = times

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ServeTimes:
    """The probe: gives every batch that has run to the requests that were in it."""

    reentrant = True  # it takes no lock

    @staticmethod
    def batch_ran(record: Any) -> None:
        """Note when each request of a batch arrived, and the batch ran."""
        for one in record.requests:
            context = one.request.get("context")
            if type(context) is TimedContext:
                context.times.add(one.arrival, record.started, record.ended)


def is_timed(pipe: headrace.Pipeline) -> bool:
    """Tell whether the probe is one of a pipeline."""
    return _PROBE in headrace.explain(pipe.config).get("probes", ())


def with_probe(source: Any, config: headrace.PipelineConfig) -> headrace.PipelineConfig:
    """Give a configuration with the probe beside those that it has.

    Args:
        source: A dict, or the path of a file.
        config: What was read from it.
    """
    probes = [text.replace("$", "$$") for text in headrace.explain(config).get("probes", ())]
    own = {"probes": [*probes, _PROBE]}
    if isinstance(source, dict):
        base, made = None, dict(source)
    else:
        path = Path(source).absolute()
        base, made = path.parent, {"extends": path.name}
    if "probes" in config.to_dict():
        made |= own
    else:
        made["global"] = {**made.get("global", {}), **own}
    return headrace.PipelineConfig.load(made, base=base)
